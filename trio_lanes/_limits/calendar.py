"""Limits of calendar days and months: their meter, and where it has the time of the wall from.

A day begins at local midnight, a month with its first day. So a day may have 23 or 25 hours. If a
clock change skips midnight, the day begins with what follows; if midnight comes twice, with the
first.

A meter is asked with times of a clock that is never set: Trio's, or a store's. ``ahead`` says by
how much that clock is ahead of Unix time. The one mark is (the end of the window in Unix time, the
sum of its charges). It counts until then, also if the wall clock is set back, so that no window is
opened twice.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, tzinfo
from fractions import Fraction
from functools import cache
from typing import Any, Final, Literal, final

import trio

from .._config import check as _check
from .._config.exact import NEVER_USED, Amount, Exact, exact, rounded, rounded_up
from .meters import Mark, Marks

SET_BY: Final = 1.0
"""Seconds by which the wall clock must differ from the machine's monotonic clock to have been
set. Less may be the time between two readings."""
_FROM: Final = 1_735_689_600  # the year 2025
_TO: Final = 2_713_910_400  # the year 2056


@final
class CalendarWindow:
    """The meter of a calendar window: all of the limit may be charged from its beginning on."""

    __slots__ = ("_ahead", "_limit", "_per", "_zone")

    def __init__(
        self,
        limit: Exact,
        per: Literal["day", "month"],
        timezone: str,
        ahead: Callable[[], float],
    ) -> None:
        self._limit = limit
        self._per = per
        self._zone = _check.time_zone("timezone", timezone)
        self._ahead = ahead

    def ready_at(self, marks: Marks, amount: Amount) -> float:
        """Return when an amount may be charged; a time that has passed means now."""
        if not marks or marks[-1][1] <= max(self._limit - exact(amount), 0):
            return NEVER_USED
        return self.refilled_at(marks)

    def charged(
        self, marks: Marks, amount: Amount | Fraction, now: float
    ) -> tuple[list[Mark], int]:
        """Return the marks that a charge adds, and how many of all marks then stay."""
        used = self.used(marks, now)
        end = marks[-1][0] if used else float(self._end_of(now))
        return [(end, used + exact(amount))], 1

    def given_back(self, marks: Marks, amount: Amount | Fraction, now: float, at: float) -> Marks:
        """Return the marks as if less by an amount had been charged at a time."""
        used = self.used(marks, now)
        if not used or self._end_of(at) != marks[-1][0]:
            return marks  # it was charged to a window that is over
        return [(marks[-1][0], max(used - exact(amount), 0))]

    def shortened(self, marks: deque[Mark]) -> deque[Mark]:
        """Return the fewest marks that admit the same, but cannot be corrected: all of them."""
        return marks

    def refilled_at(self, marks: Marks) -> float:
        """Return since or from when the limit is fully replenished."""
        if not marks:
            return NEVER_USED
        return rounded_up(Fraction(marks[-1][0]) + Fraction(self._ahead()))

    def left(self, marks: Marks, now: float) -> float:
        """Return how much may be charged at once now; below 0, a debt."""
        return rounded(self._limit - self.used(marks, now))

    def used(self, marks: Marks, now: float) -> Exact:
        """Return the amount that counts against the limit now."""
        return marks[-1][1] if marks and marks[-1][0] > self._unix(now) else 0

    def continued(self, marks: Marks, old: Any, now: float) -> list[Mark]:
        """Return the marks of this limit, which replaces ``old``, one of its kind.

        What was charged counts until the window of the old limit ends.
        """
        return list(marks)

    def _unix(self, now: float) -> Fraction:
        return Fraction(now) - Fraction(self._ahead())

    def _end_of(self, now: float) -> int:
        return window_end(math.floor(self._unix(now)), self._per, self._zone)


def window_end(second: int, per: Literal["day", "month"], zone: tzinfo) -> int:
    """Return when the window that holds a second ends: both are Unix time."""
    begun = datetime.fromtimestamp(second, zone).date()
    if per == "month":
        begun = begun.replace(day=1)
    while True:
        begun = _next(begun, per)
        end = int(datetime(begun.year, begun.month, begun.day, tzinfo=zone).timestamp())
        if end > second:  # else the clock was set back over midnight, and this is not the first
            return end


def _next(begun: date, per: Literal["day", "month"]) -> date:
    if per == "day":
        return begun + timedelta(days=1)
    return (begun + timedelta(days=31)).replace(day=1)


@cache
def utc_offsets(timezone: str) -> list[tuple[int, int]]:
    """Return since when local time is ahead of UTC by how many seconds, for a script in a store.

    It has the clock changes from 2025 to 2055, the same for all instances with the same database.
    """
    zone = _check.time_zone("timezone", timezone)

    def offset_at(second: int) -> int:
        there = datetime.fromtimestamp(second, zone).replace(tzinfo=UTC)
        return round(there.timestamp()) - second

    found = [(0, offset_at(_FROM))]
    for day in range(_FROM, _TO, 86_400):
        low, high = day, day + 86_400
        if offset_at(high) != found[-1][1]:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if offset_at(middle) != found[-1][1] else (middle, high)
            found.append((high, offset_at(high)))
    return found


@final
class _Reading:
    """What the clocks said when the wall clock was last found to be set, or was first read."""

    __slots__ = ("ahead", "wall_of_machine")

    def __init__(self) -> None:
        self.wall_of_machine = time.time() - time.monotonic()
        self.ahead = trio.current_time() - time.time()


_READING: Final = trio.lowlevel.RunVar[_Reading]("trio_lanes wall clock")


def ahead_of_wall() -> float:
    """Return the seconds by which Trio's clock is ahead of Unix time.

    That is what it was when it was first asked for in this run: so on a `trio.testing.MockClock`,
    days pass with the virtual time. It follows if the wall clock is set, or the machine has slept.
    """
    try:
        first = _READING.get()
    except LookupError:
        first = _Reading()
        _READING.set(first)
    moved = time.time() - time.monotonic() - first.wall_of_machine
    if abs(moved) > SET_BY:
        first.wall_of_machine += moved
        first.ahead -= moved
    return first.ahead
