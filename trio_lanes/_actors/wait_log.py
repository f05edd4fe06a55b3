"""The records of where the wait of a job went; `trio_lanes._waiting.accounts` writes them.

An actor holds all but the first of its waiting jobs for the same cause at each time: it is paused,
or it runs as many as it may, or others are before them. It keeps one account of that, and a job
notes how the account stood when it came, and when it left. Only the first has a cause of its own.
Nothing is added up before `Job.waits` is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

if TYPE_CHECKING:
    from .job import AnyJob

_ROUNDING: Final = 1e-9  # seconds

Mark: TypeAlias = tuple[str, float, float, float]
"""How an account stands: its cause, since when, and the seconds up to then in which it was paused,
and in which it was full."""

Own: TypeAlias = tuple[str, float]
"""A cause of one job, and until when it holds: from then on others are before the job."""

Log: TypeAlias = tuple[Any, Mark | None, Any, Mark | None, Own, float]
"""The wait of one job: the parts that are over, and the part that goes on.

A bare tuple, since one is made for each part: the log before, or the seconds by cause before; how
the account of that part stood at its end; the account of this part, None if the wait is over; how
it stood at the begin, or None: the job has a cause of its own; that cause; when this part began.
"""

SHARED: Final[Own] = ("", math.inf)
"""In the place of a cause of its own: the job waits for what the others of the account wait for."""


@final
class Account:
    """For how long an actor has held its jobs so far, by its pauses and as it was full."""

    __slots__ = ("head", "mark")

    def __init__(self, now: float) -> None:
        # Of all but the head. The causes are "order", "pause" and "session"
        self.mark: Mark = ("order", now, 0.0, 0.0)
        self.head: AnyJob | None = None  # if it has a cause of its own

    def turn(self, cause: str, now: float) -> None:
        """Hold the jobs for ``cause`` from now on."""
        held, since, paused, full = self.mark  # as `_read`, on the way of every job that waits
        if held == "session":
            full += now - since
        elif held == "pause":
            paused += now - since
        self.mark = (cause, now, paused, full)


def _read(mark: Mark, at: float) -> tuple[float, float]:
    """Return the seconds of pauses, and as the actor was full, up to ``at``."""
    cause, since, paused, full = mark
    if cause == "pause":
        return paused + at - since, full
    return (paused, full + at - since) if cause == "session" else (paused, full)


def added_up(log: Log, until: float) -> dict[str, float]:
    """Return the seconds by cause; the part that goes on ends at ``until``."""
    seconds: dict[str, float] = {}
    mark = None if log[2] is None else log[2].mark
    rest: Log | Mapping[str, float] | None = log
    while isinstance(rest, tuple):
        rest, mark_before, account, first_mark, own, since = rest
        if account is not None and since < until:
            _add_part(seconds, since, until, own, first_mark, mark)
        until, mark = since, mark_before
    for cause, more in (rest or {}).items():
        seconds[cause] = seconds.get(cause, 0.0) + more
    return seconds


def _add_part(
    seconds: dict[str, float],
    since: float,
    until: float,
    own: tuple[str, float],
    first: Mark | None,
    last: Mark | None,
) -> None:
    parts = [(own[0], min(until, own[1]) - since)]
    if first is not None:
        assert last is not None
        (paused, full), (before, full_before) = _read(last, until), _read(first, since)
        parts = [("pause", paused - before), ("session", full - full_before)]
    in_order = until - since
    for cause, part in parts:
        if part > 0:
            seconds[cause] = seconds.get(cause, 0.0) + part
            in_order -= part
    if in_order > _ROUNDING:
        seconds["order"] = seconds.get("order", 0.0) + in_order


def waits(log: Log, until: float, in_all: float) -> Mapping[str, float]:
    """Return the seconds by cause up to ``until``; all but those for room are ``in_all``."""
    seconds = added_up(log, until)
    of_wait = [cause for cause in seconds if cause != "room"]
    if of_wait:  # the differences of an account are rounded
        longest = max(of_wait, key=seconds.__getitem__)
        seconds[longest] += in_all - math.fsum(seconds[cause] for cause in of_wait)
    return seconds
