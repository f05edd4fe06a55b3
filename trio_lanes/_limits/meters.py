"""The meters of rate limits: the past charges of one limit, and the time of the next free charge.

Two meters have one interface. Amounts are taken as they are written, so 0.1 is a tenth; times are
taken as the clock gives them, to the last bit. All arithmetic is exact, in whole numbers and
fractions: a meter that runs for months does not drift, and only the time that is returned is a
float, rounded up. So a job that comes back at that time is admitted, and no window ever holds more
than its limit by a rounding.

Every charge is made now. A correction says when the charge that it corrects was made: a meter gives
back at most the amount that this charge still occupies.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from fractions import Fraction
from typing import Final, final

import attrs

from .._config.exact import NEVER_USED, Exact, bucket_shape, exact, rounded_up

_NOTHING: Final = Fraction(0)
_DIPS: Final = 64  # that a bucket remembers


@final
class SlidingWindow:
    """The exact meter: it remembers every charge until the charge has left the window.

    Charges of the same time are one entry, with their sum. An entry leaves at its own time plus
    ``per``, so the earliest entries are always the next to leave. A job waits until as many of them
    have left as its cost needs, mostly one.
    """

    __slots__ = ("_entries", "_limit", "_per", "_used")

    def __init__(self, limit: float, per: float) -> None:
        self._limit = exact(limit)
        self._per = Fraction(per)
        self._entries: deque[_Entry] = deque()  # that have not left, in order
        self._used: Exact = 0  # the sum of their amounts

    def ready_at(self, amount: float, now: float) -> float:
        """When ``amount`` may be charged: now, if that is not later than ``now``."""
        self._prune(now)
        excess = self._used - max(self._limit - exact(amount), 0)
        ready = NEVER_USED
        for entry in self._entries:
            if excess <= 0:
                break
            excess -= entry.amount
            ready = entry.leaves
        return ready

    def charge(self, amount: float | Fraction, now: float) -> None:
        """Take ``amount``, whether there is room for it or not."""
        self._prune(now)
        self._append(exact(amount), now)

    def give_back(self, amount: float | Fraction, now: float, charged_at: float) -> None:
        """Take ``amount`` less than was taken at ``charged_at``."""
        self._prune(now)
        for entry in self._entries:
            if entry.time == charged_at:  # else it has left
                back = min(exact(amount), entry.amount)
                entry.amount -= back
                self._used -= back

    def refilled_at(self, now: float) -> float:
        """Since or from when this meter is as a new one."""
        self._prune(now)
        return self._entries[-1].leaves if self._entries else NEVER_USED

    def left(self, now: float) -> float:
        """How much may be charged at once now; below 0, a debt."""
        self._prune(now)
        return float(self._limit - self._used)

    def under(self, limit: float, per: float) -> SlidingWindow:
        """A meter with these numbers and the same past."""
        other = SlidingWindow(limit, per)
        for entry in self._entries:
            other._append(entry.amount, entry.time)
        return other

    @property
    def per(self) -> Fraction:
        """The length of the window."""
        return self._per

    def _append(self, amount: Exact, time: float) -> None:
        entries = self._entries
        if entries and time <= entries[-1].time:
            entries[-1].amount += amount
        else:
            entries.append(_Entry(time, rounded_up(Fraction(time) + self._per), amount))
        self._used += amount

    def _prune(self, now: float) -> None:
        entries = self._entries
        while entries and entries[0].leaves <= now:
            self._used -= entries.popleft().amount


@attrs.define(eq=False)
class _Entry:
    time: float
    leaves: float
    amount: Exact


@final
class Bucket:
    """The smoothing meter: the generic cell rate algorithm (GCRA) of ITU-T I.371, with amounts.

    It is kept in the form that I.371 calls a leaky bucket, which admits the same amounts as the
    form with a theoretical arrival time: ``used`` leaks at an even rate, and an amount up to the
    burst is admitted when it fits on top, that is, when ``used <= burst - amount``. A larger amount
    is admitted when nothing is used.

    The bound: let a window begin with an admission at s and end with an admission x later, and let
    N be the sum of the whole amounts in it. After the last admission ``used`` is at least N less
    the leak of that time, and at most the burst, so N <= burst + rate * x. With
    ``burst + rate * per == limit + 1`` and x < per that is N < limit + 1, which for whole numbers
    is N <= limit.
    """

    __slots__ = ("_at", "_burst", "_dips", "_interval", "_per", "_rate", "_used")

    def __init__(self, limit: float, per: float, burst: float | None) -> None:
        self._at = _NOTHING  # when it was charged last
        self._used = _NOTHING  # right after that
        # [(time of a charge, ``used`` right before it)] since the bucket was last full, the
        # lowest since each of these times: both ascend
        self._dips: list[tuple[float, Fraction]] = []
        self._per = Fraction(per)
        self._burst, self._rate = bucket_shape(limit, per, burst)
        self._interval = 1 / self._rate

    def ready_at(self, amount: float, now: float) -> float:
        """When ``amount`` may be charged: now, if that is not later than ``now``."""
        excess = self._used - max(self._burst - Fraction(exact(amount)), _NOTHING)
        if excess <= 0:
            return NEVER_USED
        return rounded_up(self._at + excess * self._interval)

    def charge(self, amount: float | Fraction, now: float) -> None:
        """Take ``amount``, whether there is room for it or not."""
        used = self._used_at(now)
        while self._dips and self._dips[-1][1] >= used:
            self._dips.pop()
        self._dips.append((now, used))
        if len(self._dips) > _DIPS:  # the later of two with the lower value gives back less
            (_, lower), (later, _) = self._dips[:2]
            self._dips[:2] = [(later, lower)]
        self._used = used + Fraction(exact(amount))
        self._at = Fraction(now)

    def give_back(self, amount: float | Fraction, now: float, charged_at: float) -> None:
        """Take ``amount`` less than was taken at ``charged_at``.

        If the bucket has been full since then, or would have been, the amount that would have run
        over is not given back.
        """
        used = self._used_at(now)
        later = bisect_right(self._dips, charged_at, key=lambda dip: dip[0])
        lowest = min([used, *(dip[1] for dip in self._dips[later : later + 1])])
        back = min(Fraction(exact(amount)), lowest)
        kept = self._dips[:later]
        rest = [(time, dip - back) for time, dip in self._dips[later:]]
        while rest and kept and kept[-1][1] >= rest[0][1]:
            kept.pop()
        self._dips = kept + rest
        self._used = used - back
        self._at = Fraction(now)

    def refilled_at(self, now: float) -> float:
        """Since or from when this meter is as a new one."""
        if not self._used:
            return NEVER_USED
        return rounded_up(self._at + self._used * self._interval)

    def left(self, now: float) -> float:
        """How much may be charged at once now; below 0, a debt."""
        return float(self._burst - self._used_at(now))

    def under(self, limit: float, per: float, burst: float | None, now: float) -> Bucket:
        """A meter with these numbers and the same past."""
        other = Bucket(limit, per, burst)
        other._at, other._used = Fraction(now), self._used_at(now)
        other._dips = self._dips.copy()
        return other

    @property
    def per(self) -> Fraction:
        """The time in which the limit may be used."""
        return self._per

    def _used_at(self, now: float) -> Fraction:
        if not self._used:
            return _NOTHING
        return max(self._used - self._rate * (Fraction(now) - self._at), _NOTHING)
