"""The records of where the wait of a job went; `trio_lanes._waiting.accounts` writes them.

An actor holds all but the first of its waiting jobs for the same cause at each time: it is paused,
or it runs as many as it may, or others are before them. It keeps one account of that, and a job
notes how the account stood when it came, and when it left. Only the first has a cause of its own,
or one that it shares with the first jobs of other lanes of its group, in a `GroupAccount`. Nothing
is added up before `Job.waits` is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias, final

if TYPE_CHECKING:
    from .._limits.rate import Rates
    from .job import AnyJob

_ROUNDING: Final = 1e-9  # seconds

Mark: TypeAlias = tuple[str, float, float, float, float]
"""How an account stands: its cause, since when, the seconds up to then in which it held its jobs
for the first and for the second of its causes, and until when a rate does: from then on others are
before the jobs."""

Own: TypeAlias = tuple[str, float]
"""A cause of one job, and until when it holds: from then on others are before the job."""

Log: TypeAlias = tuple[Any, Mark | None, Any, Mark | None, Own, float]
"""The wait of one job: the parts that are over, and the part that goes on.

A bare tuple, since one is made for each part: the log before, or the seconds by cause before; how
the account of that part stood at its end; the account of this part, None if the wait is over; how
it stood at the begin, or None: the job has a cause of its own; that cause; when this part began.
"""

HeadKey: TypeAlias = tuple[str, Any]
"""What the heads of an account of a group have in common: the label of their lanes, and their
costs; or None, of heads that the rates of their own lanes hold."""

ACCOUNT: Final = 2
"""The place of the account in a `Log`."""
OWN: Final = 4
"""The place of the cause of its own in a `Log`."""

SHARED: Final[Own] = ("", math.inf)
"""In the place of a cause of its own: the job waits for what the others of the account wait for."""


class HoldsHeads(Protocol):
    """A group, as far as it holds the heads of its lanes."""

    @property
    def rates(self) -> Rates: ...
    def admits(self, label: str) -> bool: ...


class Account:
    """For how long an actor has held its jobs so far, by its pauses and as it was full."""

    __slots__ = ("follows", "head", "mark")

    causes: ClassVar[tuple[str, str]] = ("pause", "session")

    def __init__(self, now: float) -> None:
        # Of all but the head. The causes are "order", "pause" and "session"
        self.mark: Mark = ("order", now, 0.0, 0.0, math.inf)
        self.head: AnyJob | None = None  # if it has a cause of its own
        self.follows: GroupAccount | None = None  # if it shares that with heads of other lanes

    def change_cause(self, cause: str, now: float) -> None:
        """Hold the jobs for ``cause`` from now on."""
        held, since, paused, full, _ = self.mark  # as `_read`, on the way of every job that waits
        if held == "session":
            full += now - since
        elif held == "pause":
            paused += now - since
        self.mark = (cause, now, paused, full, math.inf)


@final
class GroupAccount(Account):
    """For how long a group has held the heads of those of its lanes that wait for the same."""

    __slots__ = ("followers", "group", "key")

    causes: ClassVar[tuple[str, str]] = ("group", "rate")

    def __init__(self, now: float, group: HoldsHeads, key: HeadKey) -> None:
        super().__init__(now)
        self.group: Final = group
        self.key: Final = key
        self.followers = 0  # lanes whose heads share it

    def hold(self, cause: str, now: float, until: float = math.inf) -> None:
        """Hold the heads for ``cause`` from now on; for a rate ``until`` that has refilled."""
        if self.mark[0] != cause or self.mark[4] != until:  # else the mark stays true
            self.mark = (cause, now, *_read(self.mark, now), until)


def _read(mark: Mark, at: float) -> tuple[float, float]:
    """Return the seconds of the two causes of an account up to ``at``."""
    cause, since, first, second, until = mark
    if cause in ("pause", "group"):
        return first + at - since, second
    if cause in ("session", "rate"):
        return first, second + max(0.0, min(at, until) - since)
    return first, second


def added_up(log: Log, until: float) -> dict[str, float]:
    """Return the seconds by cause; the part that goes on ends at ``until``."""
    # From the last part to the first. ``until`` is when a part ended, and ``mark`` how its account
    # stood then: both are noted in the part after it.
    seconds: dict[str, float] = {}
    mark = None if log[ACCOUNT] is None else log[ACCOUNT].mark
    rest: Log | Mapping[str, float] | None = log
    while isinstance(rest, tuple):
        rest, mark_before, account, first_mark, own, since = rest
        if account is not None and since < until:  # without an account: the wait was over
            _add_part(seconds, since, until, own, account.causes, first_mark, mark)
        until, mark = since, mark_before
    for cause, more in (rest or {}).items():
        seconds[cause] = seconds.get(cause, 0.0) + more
    return seconds


def _add_part(
    seconds: dict[str, float],
    since: float,
    until: float,
    own: Own,
    causes: tuple[str, str],
    first: Mark | None,
    last: Mark | None,
) -> None:
    parts = [(own[0], min(until, own[1]) - since)]
    if first is not None:
        assert last is not None
        ends, begins = _read(last, until), _read(first, since)
        parts = [(causes[n], ends[n] - begins[n]) for n in (0, 1)]
    in_order = until - since  # what is left when all other causes have had their seconds
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
