"""The meters of rate limits: the marks of past charges, and the time of the next free charge.

A meter is the arithmetic of one limit, and keeps nothing. What it knows of the past are marks,
which `Rates` keeps in memory, and a durable store in its tables. The script of a Valkey store,
`rates.lua`, is a translation of this file.

A mark is (when, the sum of all charges up to then). The sums begin at 0 when a limit that is fully
replenished is charged. A charge adds a mark at the end, and drops marks at the front; only a
correction, and a `Bucket` whose use has sunk, replace the marks that there are.

Amounts are taken as they are written, so 0.1 is a tenth; times are taken as the clock gives them,
to the last bit. All arithmetic is exact, in whole numbers and fractions: a meter that runs for
months does not drift, and only the time that is returned is a float, rounded up. So a job that
comes back at that time is admitted, and no window ever holds more than its limit by a rounding.
Whole amounts have whole sums.

Every charge is made now. A correction says when the charge that it corrects was made: a meter gives
back at most the amount that this charge still occupies.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, Final, TypeAlias, final

from .._config.exact import NEVER_USED, Amount, Exact, bucket_shape, exact, rounded, rounded_up

Mark: TypeAlias = tuple[float, Exact]
"""A time, and a sum of charges."""
Marks: TypeAlias = Sequence[Mark]
_ZERO: Final = Fraction(0)
_MAX_MARKS: Final = 64  # marks of a bucket


def put(marks: deque[Mark], added: Iterable[Mark], keep: int) -> None:
    """Add marks, and keep only the last ``keep`` of all."""
    marks.extend(added)
    while len(marks) > keep:
        marks.popleft()


@final
class SlidingWindow:
    """The exact meter: it remembers every charge until the charge has left the window.

    There is a mark of each charge in the window, and of the last charge before these. Charges leave
    in the order of their times. So the charge that must leave before another amount fits is found
    by a binary search.
    """

    __slots__ = ("_limit", "per")

    def __init__(self, limit: Exact, per: float) -> None:
        self._limit = limit
        self.per = Fraction(per)
        """The length of the window."""

    def ready_at(self, marks: Marks, amount: Amount) -> float:
        """Return when an amount may be charged; a time that has passed means now."""
        if not marks:
            return NEVER_USED
        # the charges up to this sum must have left the window
        leaving = marks[-1][1] - max(self._limit - exact(amount), 0)
        if leaving <= 0:
            return NEVER_USED
        return self._leaves(marks[bisect_left(marks, leaving, key=_sum)])

    def charged(
        self, marks: Marks, amount: Amount | Fraction, now: float
    ) -> tuple[list[Mark], int]:
        """Return the marks that a charge adds, and how many of all marks then stay."""
        gone = self._gone(marks, now)
        if gone == len(marks):
            return [(now, exact(amount))], 1
        # one that has left stays: a later search may find it
        return [(now, marks[-1][1] + exact(amount))], len(marks) + 1 - max(gone - 1, 0)

    def given_back(self, marks: Marks, amount: Amount | Fraction, now: float, at: float) -> Marks:
        """Return the marks as if less by an amount had been charged at a time."""
        first, after = bisect_left(marks, at, key=_time), bisect_right(marks, at, key=_time)
        if first == after or Fraction(at) + self.per <= now:
            return marks  # it has left
        marks = list(marks)
        total = marks[after - 1][1]
        most = max(total - exact(amount), marks[first - 1][1] if first else 0)
        for place, (time, so_far) in enumerate(marks[first:], first):
            marks[place] = time, min(so_far, most) if place < after else so_far - (total - most)
        return marks

    def shortened(self, marks: deque[Mark]) -> deque[Mark]:
        """Return the fewest marks that admit the same, but cannot be corrected: all of them."""
        return marks

    def refilled_at(self, marks: Marks) -> float:
        """Return since or from when the limit is fully replenished."""
        return self._leaves(marks[-1]) if marks else NEVER_USED

    def left(self, marks: Marks, now: float) -> float:
        """Return how much may be charged at once now; below 0, a debt."""
        return rounded(self._limit - self.used(marks, now))

    def used(self, marks: Marks, now: float) -> Exact:
        """Return the amount that counts against the limit now."""
        gone = self._gone(marks, now)
        return (marks[-1][1] if marks else 0) - (marks[gone - 1][1] if gone else 0)

    def continued(self, marks: Marks, old: Any, now: float) -> list[Mark]:
        """Return the marks of this limit, which replaces ``old``, one of its kind."""
        gone = old._gone(marks, now)
        before = marks[gone - 1][1] if gone else 0
        return [(time, total - before) for time, total in list(marks)[gone:]]

    def _leaves(self, mark: Mark) -> float:
        return rounded_up(Fraction(mark[0]) + self.per)

    def _gone(self, marks: Marks, now: float) -> int:
        """Return how many marks are of charges that have left the window."""
        since = Fraction(now) - self.per
        for number, (time, _) in enumerate(marks):
            if time > since:
                return number
        return len(marks)


@final
class Bucket:
    """The smoothing meter: the generic cell rate algorithm (GCRA) of ITU-T I.371, with amounts.

    It is written in the form that I.371 calls a leaky bucket, which admits the same amounts as the
    form with a theoretical arrival time: what is used leaks at an even rate, and an amount up to
    the burst is admitted when it fits on top, that is, when ``used <= burst - amount``. A larger
    amount is admitted when nothing is used.

    The first mark says since when the bucket has been in use without a break, the last has the sum
    of all charges since; the theoretical arrival time follows from both. The others are there for
    corrections: what would have run over cannot be given back, so the lowest use since a charge is
    the most that it gives back. The use is lowest right before a charge, a dip. There is a mark for
    each charge right before which less was used than at any time since; other charges are in the
    sum of the mark before them. So the dips ascend, the first is 0, and few are needed.

    The bound: let a window begin with an admission at s and end with an admission x later, and let
    N be the sum of the whole amounts in it. After the last admission ``used`` is at least N less
    the leak of that time, and at most the burst, so N <= burst + rate * x. With
    ``burst + rate * per == limit + 1`` and x < per that is N < limit + 1, which for whole numbers
    is N <= limit.
    """

    __slots__ = ("_burst", "_interval", "_rate", "per")

    def __init__(self, limit: Amount, per: float, burst: Amount | None, scale: int = 1) -> None:
        self.per = Fraction(per)
        """The time in which the limit may be used."""
        burst_of_one, rate_of_one = bucket_shape(limit, per, burst)
        self._burst, self._rate = burst_of_one * scale, rate_of_one * scale
        self._interval = 1 / self._rate

    def ready_at(self, marks: Marks, amount: Amount) -> float:
        """Return when an amount may be charged; a time that has passed means now."""
        ahead = max(self._burst - exact(amount), _ZERO)
        if not marks or marks[-1][1] <= ahead:
            return NEVER_USED
        return rounded_up(self._arrival(marks) - ahead * self._interval)

    def charged(
        self, marks: Marks, amount: Amount | Fraction, now: float
    ) -> tuple[list[Mark], int]:
        """Return the marks that a charge adds, and how many of all marks then stay."""
        if not marks or self._arrival(marks) <= now:
            return [(now, exact(amount))], 1
        total = marks[-1][1]
        mark, used = (now, total + exact(amount)), self._used(marks, total, now)
        if self._dip(marks, len(marks) - 1) < used and len(marks) < _MAX_MARKS:
            return [mark], len(marks) + 1
        changed = [*self._sunk(list(marks), used), mark]
        if len(changed) > _MAX_MARKS:
            # with 0 for its dip, a charge before the second mark gives nothing back
            changed[0] = changed[0][0], 0
            del changed[1:-_MAX_MARKS]
        return changed, len(changed)

    def given_back(self, marks: Marks, amount: Amount | Fraction, now: float, at: float) -> Marks:
        """Return the marks as if less by an amount had been charged at a time.

        If the bucket has been full since then, or would have been, the amount that would have run
        over is not given back.
        """
        after = bisect_right(marks, at, key=_time)
        if not after or self._arrival(marks) <= now:
            return marks
        amount = exact(amount)
        earlier, later = list(marks)[:after], list(marks)[after:]
        time, total = earlier[-1]
        earlier[-1] = time, total - amount
        if later:
            dip = self._dip(marks, after)
            if dip <= 0:
                return marks  # see `charged`
            if dip <= amount:  # it would have been full then, and in use since the next mark
                return [(time, so_far - total) for time, so_far in later]
            self._sunk(earlier, dip - amount)
        return [*earlier, *((time, so_far - amount) for time, so_far in later)]

    def shortened(self, marks: deque[Mark]) -> deque[Mark]:
        """Return the fewest marks that admit the same, but cannot be corrected: one is enough."""
        return deque([(marks[0][0], marks[-1][1])])

    def refilled_at(self, marks: Marks) -> float:
        """Return since or from when the limit is fully replenished."""
        return rounded_up(self._arrival(marks)) if marks else NEVER_USED

    def left(self, marks: Marks, now: float) -> float:
        """Return how much may be charged at once now; below 0, a debt."""
        return rounded(self._burst - self.used(marks, now))

    def used(self, marks: Marks, now: float) -> Exact:
        """Return the amount that counts against the burst now."""
        return max(self._used(marks, marks[-1][1], now), 0) if marks else 0

    def continued(self, marks: Marks, old: Any, now: float) -> list[Mark]:
        """Return the marks of this limit, which replaces ``old``, one of its kind.

        What is used stays the same, and leaks at the new rate from now on.
        """
        if not marks or old._arrival(marks) <= now:
            return []
        faster, since = self._rate - old._rate, Fraction(marks[0][0])
        until = [*(time for time, _ in list(marks)[1:]), now]
        return [
            (time, total + faster * (Fraction(end) - since))
            for (time, total), end in zip(marks, until, strict=True)
        ]

    def whole(self, marks: Marks) -> Mark:
        """Return a mark with a whole sum, for a store: the same is used, to a rounding of time."""
        total = math.ceil(marks[-1][1])
        return rounded_up(self._arrival(marks) - total * self._interval), total

    def _arrival(self, marks: Marks) -> Fraction:
        """Return the theoretical arrival time: from then on nothing is used."""
        return Fraction(marks[0][0]) + marks[-1][1] * self._interval

    def _used(self, marks: Marks, total: Exact, time: float) -> Exact:
        """Return what is used at a time, if that is not later than the arrival time."""
        return total - self._rate * (Fraction(time) - Fraction(marks[0][0]))

    def _dip(self, marks: Marks, place: int) -> Exact:
        """Return what was used right before the first charge of a mark."""
        return self._used(marks, marks[place - 1][1], marks[place][0]) if place else 0

    def _sunk(self, marks: list[Mark], used: Exact) -> list[Mark]:
        """Take the last marks whose dips are not below a use, above 0, into the mark before."""
        total = marks[-1][1]
        while self._dip(marks, len(marks) - 1) >= used:
            marks.pop()
        marks[-1] = marks[-1][0], total
        return marks


def _sum(mark: Mark) -> Exact:
    return mark[1]


def _time(mark: Mark) -> float:
    return mark[0]
