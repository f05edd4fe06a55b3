"""Rate limits in a store: their marks of past starts, and the time of the next start.

A start takes the costs of its job, by unit: one request if the job names none. The marks are kept
in the store, in the store's time. So they hold for all instances, and survive restarts.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Final, TypeAlias, final
from urllib.parse import quote

from ... import RateLimit
from ..._config.exact import NEVER_USED, bucket_shape, rounded_up
from .._contract.records import GroupLimit, LaneLimit
from .job_record import JobRecord
from .tables import Tables

Mark: TypeAlias = tuple[float, int]
"""A time, and a sum of charges."""
Costs: TypeAlias = Mapping[str, int]
"""{unit: amount}"""
REQUESTS: Final = "requests"
_KEY: Final = re.compile(r"lane (.*) (?:gcra|sliding) \d+(?: \S+)?", re.DOTALL)
ONE_REQUEST: Final[Costs] = MappingProxyType({REQUESTS: 1})


@final
class Meter:
    """One rate limit, over the marks that it keeps in the store.

    All amounts are whole numbers, so sums are exact.

    ``"sliding"`` keeps a mark of each start whose charge is still in the window, and of the last
    start before these: (when, the sum of all charges up to and with this start). The sum begins
    again at 0 when the window is empty. So the start that must leave the window before another
    amount fits is found by a binary search.

    ``"gcra"`` keeps one mark: (since when the limit has been in use without a break, the sum of the
    charges since). So its theoretical arrival time is exact, however long that is.

    An amount above the limit, or above the burst of ``"gcra"``, is admitted when nothing is in use,
    as in the core.

    Attributes:
      key: the name under which the store keeps the marks.
      unit: the unit that is counted.
    """

    def __init__(self, key: str, limit: RateLimit) -> None:
        self.key: Final = key
        self.unit: Final = limit.unit
        self._sliding: Final = limit.algorithm == "sliding"
        if self._sliding:
            self._most = math.floor(limit.limit)
            self._per = Fraction(limit.per)
        else:
            self._burst, rate = bucket_shape(limit.limit, limit.per, limit.burst)
            self._interval = 1 / rate

    def arrival(self, mark: Mark) -> Fraction:
        """Return the theoretical arrival time of a limit by ``"gcra"``, whose mark is given."""
        time, amount = mark
        return Fraction(time) + amount * self._interval

    def ready_at(self, marks: Sequence[Mark], amount: int) -> float:
        """Return the earliest time at which the limit admits an amount."""
        if not marks:
            return NEVER_USED
        if not self._sliding:
            ahead = max(self._burst - amount, Fraction(0)) * self._interval
            return rounded_up(self.arrival(marks[-1]) - ahead)
        # the charges up to this sum must have left the window
        leaving = marks[-1][1] - max(self._most - amount, 0)
        if leaving <= 0:
            return NEVER_USED
        time, _ = marks[bisect_left(marks, leaving, key=_sum)]
        return rounded_up(Fraction(time) + self._per)

    def refilled_at(self, mark: Mark) -> float:
        """Return when the limit is as new, if its last mark is ``mark``."""
        if self._sliding:
            return rounded_up(Fraction(mark[0]) + self._per)
        return rounded_up(self.arrival(mark))

    def charged(self, marks: Sequence[Mark], amount: int, now: float) -> tuple[Mark, int]:
        """Return the mark of a start now, and how many marks the store keeps with it."""
        if self._sliding:
            gone = self.gone(marks, now)
            if gone == len(marks):
                return (now, amount), 1
            # one that has left stays: a later search may find it
            return (now, marks[-1][1] + amount), len(marks) + 1 - max(gone - 1, 0)
        if marks and self.arrival(marks[-1]) > now:
            time, before = marks[-1]
            return (time, before + amount), 1
        return (now, amount), 1

    def given_back(self, marks: Sequence[Mark], at: float, amount: int, now: float) -> list[Mark]:
        """Return the marks as if the charge at a time had been smaller by an amount.

        They stay the same if the limit has been as new since.
        """
        if not self._sliding:
            time, charged = marks[-1] if marks else (math.inf, 0)
            if at < time or self.arrival((time, charged)) <= now:
                return list(marks)
            return [(time, charged - amount)] if charged > amount else []
        place = bisect_right(marks, at, key=_time) - 1
        if place < 0 or marks[place][0] != at:
            return list(marks)
        most = marks[place][1] - amount
        return [
            (time, total - amount if number >= place else min(total, most))
            for number, (time, total) in enumerate(marks)
        ]

    def used(self, marks: Sequence[Mark], now: float) -> int:
        """Return the amount that counts against the limit now."""
        if not marks:
            return 0
        if self._sliding:
            gone = self.gone(marks, now)
            return marks[-1][1] - (marks[gone - 1][1] if gone else 0)
        left = self.arrival(marks[-1]) - Fraction(now)
        return max(0, math.ceil(left / self._interval))

    def gone(self, marks: Sequence[Mark], now: float) -> int:
        """Return how many marks are of charges that have left the window."""
        since = Fraction(now) - self._per
        for number, (time, _) in enumerate(marks):
            if time > since:
                return number
        return len(marks)

    def continued(self, marks: Sequence[Mark], old: Meter, now: float) -> Sequence[Mark]:
        """Return this limit's marks, when it replaces ``old``, whose marks are given.

        Of ``"gcra"``, the used part stays the same, and leaks at the new rate from now on. Of
        ``"sliding"``, the charges that are in the old window stay.
        """
        if self._sliding:
            gone = old.gone(marks, now)
            before = marks[gone - 1][1] if gone else 0
            return [(time, total - before) for time, total in list(marks)[gone:]]
        if not marks:
            return marks
        used = max(old.arrival(marks[-1]) - Fraction(now), Fraction(0)) / old._interval
        whole = math.floor(used)
        return [(rounded_up(Fraction(now) + (used - whole) * self._interval), whole)]


def _sum(mark: Mark) -> int:
    return mark[1]


def _time(mark: Mark) -> float:
    return mark[0]


def lane_meters(name: str, limit: LaneLimit) -> list[Meter]:
    """Return the meters of a lane."""
    return list(_meters(f"lane {name}", limit.rates))


def group_meters(name: str, limit: GroupLimit) -> list[Meter]:
    """Return the meters of a group."""
    return list(_meters(f"group {name}", limit.rates))


def quota_meters(line: str, limits: Sequence[RateLimit]) -> list[Meter]:
    """Return the meters of a quota, by the name of its line."""
    return list(_meters(line, limits))


def _meters(owner: str, rates: Sequence[RateLimit]) -> Iterator[Meter]:
    # numbered by kind, so that a changed limit inherits the marks of its own kind
    numbers = Counter[str]()
    for limit in rates:
        # quoted, so that `lane_of` finds the name of the lane, whatever blanks it has
        unit = "" if limit.unit == REQUESTS else f" {quote(limit.unit, safe='')}"
        kind = f"{limit.algorithm}{unit}"
        yield Meter(f"{owner} {limit.algorithm} {numbers[kind]}{unit}", limit)
        numbers[kind] += 1


def lane_of(key: str) -> str | None:
    """Return the lane of a meter with a key; None: it is of a group."""
    found = _KEY.fullmatch(key)
    return None if found is None else found[1]


def costs_of(job: JobRecord) -> Costs:
    """Return what a start of a job takes from rates, by unit."""
    return ONE_REQUEST if job.cost is None else json.loads(job.cost)


def charge(tables: Tables, meters: Iterable[Meter], costs: Costs, now: float) -> None:
    """Charge all meters with the costs of a start."""
    for meter in meters:
        amount = costs.get(meter.unit)
        if amount:
            mark, keep = meter.charged(tables.marks(meter.key), amount, now)
            tables.put_mark(meter.key, mark, keep, meter.refilled_at(mark))


def ready_at(tables: Tables, meters: Iterable[Meter], costs: Costs) -> float:
    """Return the earliest time at which all meters admit a start of these costs."""
    times = (
        meter.ready_at(tables.marks(meter.key), amount)
        for meter in meters
        if (amount := costs.get(meter.unit))
    )
    return max(times, default=NEVER_USED)


def replace(tables: Tables, old: Sequence[Meter], new: Sequence[Meter], now: float) -> None:
    """Replace meters; the new meters inherit the marks of the old."""
    before = {meter.key: meter for meter in old}
    for meter in new:
        past = before.pop(meter.key, None)
        if past is not None:
            marks = meter.continued(tables.marks(meter.key), past, now)
            tables.forget_marks(meter.key)
            for mark in marks:
                tables.put_mark(meter.key, mark, len(marks), meter.refilled_at(mark))
    for key in before:
        tables.forget_marks(key)


def to_json(rates: Sequence[RateLimit]) -> str:
    """Return the JSON text of rate limits, as a store keeps it."""
    return json.dumps(
        [[rate.limit, rate.per, rate.algorithm, rate.burst, rate.unit] for rate in rates]
    )


def from_json(text: str) -> tuple[RateLimit, ...]:
    """Return the rate limits of a text from `to_json`."""
    return tuple(
        # in a store of an earlier version a rate has no unit: it counts requests
        RateLimit(limit, per, algorithm=algorithm, burst=burst, unit=(*unit, REQUESTS)[0])
        for limit, per, algorithm, burst, *unit in json.loads(text)
    )


def group_to_json(group: GroupLimit) -> str:
    """Return the JSON text of a group, as a store keeps it."""
    most = None if group.concurrency == math.inf else group.concurrency
    return json.dumps([group.members, most, dict(group.reserve), to_json(group.rates)])


def group_from_json(text: str) -> GroupLimit:
    """Return the group of a text from `group_to_json`."""
    members, most, reserve, rates = json.loads(text)
    return GroupLimit(tuple(members), math.inf if most is None else most, reserve, from_json(rates))


def check_groups(lanes: Mapping[str, LaneLimit], groups: Mapping[str, GroupLimit]) -> None:
    """Check that groups fit lanes.

    Raises:
      ValueError: for a member that is not a lane, or is in two groups.
    """
    group_of: dict[str, str] = {}
    for name, group in groups.items():
        for member in group.members:
            if member not in lanes:
                raise ValueError(f"group {name!r} has the member {member!r}, which is not a lane")
            if member in group_of:
                raise ValueError(
                    f"lane {member!r} is in two groups: {group_of[member]!r}, {name!r}"
                )
            group_of[member] = name
