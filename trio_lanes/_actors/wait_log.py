"""The records of where the wait of a job went; `trio_lanes._waiting.accounts` writes them.

An actor holds all but the first of its waiting jobs for the same cause at each time: it is paused,
or it runs as many as it may, or others are before them. It keeps one account of that, and a job
notes how the account stood when it came. Only the first has a cause of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from .job import AnyJob

_ROUNDING: Final = 1e-9  # seconds


@final
class Account:
    """For how long an actor has held its jobs so far, by its pauses and as it was full."""

    __slots__ = ("_full", "_paused", "_since", "cause", "head")

    def __init__(self, now: float) -> None:
        self.cause = "order"  # of all but the head; or "pause", or "session"
        self.head: AnyJob | None = None
        self._since = now
        self._paused = self._full = 0.0  # seconds, up to then

    def turn(self, cause: str, now: float) -> None:
        """Hold the jobs for ``cause`` from now on."""
        self._paused, self._full = self.read(now)
        self.cause, self._since = cause, now

    def read(self, now: float) -> tuple[float, float]:
        """Return the seconds so far of pauses, and as it was full."""
        if self.cause == "order":
            return self._paused, self._full
        if self.cause == "pause":
            return self._paused + now - self._since, self._full
        return self._paused, self._full + now - self._since


@final
class WaitLog:
    """The wait of one job: the parts that are over, and the part that goes on."""

    __slots__ = ("_at_first", "_cause", "_seconds", "_since", "_until", "account")

    def __init__(self) -> None:
        self.account: Account | None = None  # of the part that goes on; None: there is none
        self._seconds: dict[str, float] = {}
        self._since = 0.0  # when the part that goes on began
        self._at_first = (0.0, 0.0)  # how the account stood then
        self._cause: str | None = None  # its own, as the head of the account
        self._until = math.inf

    @property
    def alone(self) -> bool:
        """Whether it waits for a cause of its own."""
        return self._cause is not None

    def follow(self, account: Account, now: float) -> None:
        """Wait from now on for what the jobs of ``account`` wait for."""
        if self.account is not None:
            self.close(now)
        self.account, self._since, self._cause = account, now, None
        self._at_first = account.read(now)

    def hold(self, account: Account, cause: str, now: float, until: float = math.inf) -> None:
        """Wait from now on for ``cause``, and from ``until`` on because others are before it."""
        if self._cause != cause or self._until != until or self.account is not account:
            if self.account is not None:
                self.close(now)
            self.account, self._since, self._cause, self._until = account, now, cause, until

    def close(self, now: float) -> None:
        """End the part that goes on."""
        if self._since < now:
            self._add_part(self._seconds, now)
        self.account = None

    def read(self, now: float, in_all: float) -> Mapping[str, float]:
        """Return the seconds by cause so far; all but those for room are ``in_all``."""
        seconds = self._seconds.copy()
        if self.account is not None:
            self._add_part(seconds, now)
        of_wait = [cause for cause in seconds if cause != "room"]
        if of_wait:  # the differences of an account are rounded
            longest = max(of_wait, key=seconds.__getitem__)
            seconds[longest] += in_all - math.fsum(seconds[cause] for cause in of_wait)
        return seconds

    def _add_part(self, seconds: dict[str, float], now: float) -> None:
        """Add the part that goes on to ``seconds``, up to now."""
        in_order = now - self._since
        if self._cause is not None:
            alone = min(now, self._until) - self._since
            if alone > 0:
                seconds[self._cause] = seconds.get(self._cause, 0.0) + alone
                in_order -= alone
        else:
            assert self.account is not None
            (paused, full), (before, full_before) = self.account.read(now), self._at_first
            if paused > before:
                seconds["pause"] = seconds.get("pause", 0.0) + paused - before
                in_order -= paused - before
            if full > full_before:
                seconds["session"] = seconds.get("session", 0.0) + full - full_before
                in_order -= full - full_before
        if in_order > _ROUNDING:
            seconds["order"] = seconds.get("order", 0.0) + in_order
