"""Rate limits in a store: their marks of past starts, and the time of the next start.

Every start is one request. The marks are kept in the store, in the store's time. So they hold for
all instances, and survive restarts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Final, TypeAlias, final

from ... import RateLimit
from ..._limits.meters import NEVER_USED, bucket_shape, rounded_up
from .._contract.records import GroupLimit, LaneLimit
from .tables import Tables

Mark: TypeAlias = tuple[float, int]
"""A time, and a number of starts."""


@final
class Meter:
    """One rate limit, over the marks that it keeps in the store.

    ``"sliding"`` keeps a mark of each start. ``"gcra"`` keeps one mark: since when the limit has
    been in use without a break, and how many starts there were since; so its theoretical arrival
    time is exact, however long that is.

    Attributes:
      key: the name under which the store keeps the marks.
      keep: how many marks the store keeps.
    """

    def __init__(self, key: str, limit: RateLimit) -> None:
        self.key: Final = key
        self._sliding: Final = limit.algorithm == "sliding"
        if self._sliding:
            # with a limit below 1, a start is admitted when the period holds no other
            self.keep = max(1, math.floor(limit.limit))
            self._ahead = Fraction(limit.per)
        else:
            burst, rate = bucket_shape(limit.limit, limit.per, limit.burst)
            self.keep = 1
            self._interval = 1 / rate
            self._ahead = -max(burst - 1, Fraction(0)) * self._interval

    def _arrival(self, mark: Mark) -> Fraction:
        time, number = mark
        return Fraction(time) + (0 if self._sliding else number * self._interval)

    def ready_at(self, marks: Sequence[Mark]) -> float:
        """Return the earliest time at which the limit admits the next start."""
        if len(marks) < self.keep:
            return NEVER_USED
        return rounded_up(self._arrival(marks[-self.keep]) + self._ahead)

    def charged(self, marks: Sequence[Mark], now: float) -> Mark:
        """Return the mark of a start now."""
        if not self._sliding and marks and self._arrival(marks[-1]) > now:
            time, number = marks[-1]
            return time, number + 1
        return now, 1

    def continued(self, marks: Sequence[Mark], old: Meter, now: float) -> Sequence[Mark]:
        """Return this limit's marks, when it replaces ``old``, whose marks are given.

        Of ``"gcra"``, the used part stays the same, and leaks at the new rate from now on.
        """
        if self._sliding or not marks:
            return marks
        used = max(old._arrival(marks[-1]) - Fraction(now), Fraction(0)) / old._interval
        whole = math.floor(used)
        return [(rounded_up(Fraction(now) + (used - whole) * self._interval), whole)]


def lane_meters(name: str, limit: LaneLimit) -> list[Meter]:
    """Return the meters of a lane."""
    return list(_meters(f"lane {name}", limit.rates))


def group_meters(name: str, limit: GroupLimit) -> list[Meter]:
    """Return the meters of a group."""
    return list(_meters(f"group {name}", limit.rates))


def _meters(owner: str, rates: Sequence[RateLimit]) -> Iterator[Meter]:
    # numbered by algorithm, so that a changed limit inherits the marks of its own kind
    numbers = {"gcra": 0, "sliding": 0}
    for limit in rates:
        yield Meter(f"{owner} {limit.algorithm} {numbers[limit.algorithm]}", limit)
        numbers[limit.algorithm] += 1


def charge(tables: Tables, meters: Sequence[Meter], now: float) -> None:
    """Charge all meters with a start."""
    for meter in meters:
        mark = meter.charged(tables.marks(meter.key), now)
        tables.put_mark(meter.key, mark, meter.keep)


def ready_at(tables: Tables, meters: Sequence[Meter]) -> float:
    """Return the earliest time at which all meters admit the next start."""
    return max((meter.ready_at(tables.marks(meter.key)) for meter in meters), default=NEVER_USED)


def replace(tables: Tables, old: Sequence[Meter], new: Sequence[Meter], now: float) -> None:
    """Replace meters; the new meters inherit the marks of the old."""
    before = {meter.key: meter for meter in old}
    for meter in new:
        past = before.pop(meter.key, None)
        if past is not None:
            marks = meter.continued(tables.marks(meter.key), past, now)
            tables.forget_marks(meter.key)
            for mark in marks:
                tables.put_mark(meter.key, mark, meter.keep)
    for key in before:
        tables.forget_marks(key)


def to_json(rates: Sequence[RateLimit]) -> str:
    """Return the JSON text of rate limits, as a store keeps it."""
    return json.dumps([[rate.limit, rate.per, rate.algorithm, rate.burst] for rate in rates])


def from_json(text: str) -> tuple[RateLimit, ...]:
    """Return the rate limits of a text from `to_json`."""
    return tuple(
        RateLimit(limit, per, algorithm=algorithm, burst=burst)
        for limit, per, algorithm, burst in json.loads(text)
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
