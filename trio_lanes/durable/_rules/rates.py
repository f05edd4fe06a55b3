"""Rate limits in a store: what they remember of the past, and when the next start may be.

Every start is one request. What a limit remembers is kept in the store, in its time, so it is the
same for all instances, and a restart forgets nothing of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Final, TypeAlias, final

from ..._meters import NEVER_USED, bucket_shape, rounded_up
from ..._rate import RateLimit
from .._contract.records import GroupLimit, LaneLimit
from .tables import Tables

Mark: TypeAlias = tuple[float, int]
"""What a limit remembers: a time, and a number of starts."""


@final
class Meter:
    """One rate limit, and how it reads the marks that it has left in the store.

    ``"sliding"`` leaves a mark with each start. ``"gcra"`` leaves one alone: since when it has been
    in use, and how many have started since; so that its theoretical arrival time can be told
    exactly, however long that is.

    Attributes:
      key: under which the store keeps its marks.
      keep: how many.
    """

    def __init__(self, key: str, limit: RateLimit) -> None:
        self.key: Final = key
        self._sliding: Final = limit.algorithm == "sliding"
        if self._sliding:
            # a start that alone is above the limit is let in when the window is empty
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
        """From when on the next start may be."""
        if len(marks) < self.keep:
            return NEVER_USED
        return rounded_up(self._arrival(marks[-self.keep]) + self._ahead)

    def charged(self, marks: Sequence[Mark], now: float) -> Mark:
        """The mark that a start leaves now."""
        if not self._sliding and marks and self._arrival(marks[-1]) > now:
            time, number = marks[-1]
            return time, number + 1
        return now, 1

    def continued(self, marks: Sequence[Mark], old: Meter, now: float) -> Sequence[Mark]:
        """The marks that this limit is to have, coming in the place of ``old``, which left those.

        Of ``"gcra"``, as much as before is used, and leaks as fast as it does from now on.
        """
        if self._sliding or not marks:
            return marks
        used = max(old._arrival(marks[-1]) - Fraction(now), Fraction(0)) / old._interval
        whole = math.floor(used)
        return [(rounded_up(Fraction(now) + (used - whole) * self._interval), whole)]


def lane_meters(name: str, limit: LaneLimit) -> list[Meter]:
    """The rate limits of a lane."""
    return list(_meters(f"lane {name}", limit.rates))


def group_meters(name: str, limit: GroupLimit) -> list[Meter]:
    """The rate limits of a group."""
    return list(_meters(f"group {name}", limit.rates))


def _meters(owner: str, rates: Sequence[RateLimit]) -> Iterator[Meter]:
    # by algorithm, so that a limit that is changed goes on with the past of its own kind
    numbers = {"gcra": 0, "sliding": 0}
    for limit in rates:
        yield Meter(f"{owner} {limit.algorithm} {numbers[limit.algorithm]}", limit)
        numbers[limit.algorithm] += 1


def charge(tables: Tables, meters: Sequence[Meter], now: float) -> None:
    """Remember a start."""
    for meter in meters:
        mark = meter.charged(tables.marks(meter.key), now)
        tables.put_mark(meter.key, mark, meter.keep)


def ready_at(tables: Tables, meters: Sequence[Meter]) -> float:
    """From when on all of them let the next one start."""
    return max((meter.ready_at(tables.marks(meter.key)) for meter in meters), default=NEVER_USED)


def replace(tables: Tables, old: Sequence[Meter], new: Sequence[Meter], now: float) -> None:
    """Have ``new`` go on with the past of ``old``."""
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
    """Rate limits as a store writes them down."""
    return json.dumps([[rate.limit, rate.per, rate.algorithm, rate.burst] for rate in rates])


def from_json(text: str) -> tuple[RateLimit, ...]:
    """What `to_json` was given."""
    return tuple(
        RateLimit(limit, per, algorithm=algorithm, burst=burst)
        for limit, per, algorithm, burst in json.loads(text)
    )


def group_to_json(group: GroupLimit) -> str:
    """A group as a store writes it down."""
    most = None if group.concurrency == math.inf else group.concurrency
    return json.dumps([group.members, most, dict(group.reserve), to_json(group.rates)])


def group_from_json(text: str) -> GroupLimit:
    """What `group_to_json` was given."""
    members, most, reserve, rates = json.loads(text)
    return GroupLimit(tuple(members), math.inf if most is None else most, reserve, from_json(rates))


def check_groups(lanes: Mapping[str, LaneLimit], groups: Mapping[str, GroupLimit]) -> None:
    """Refuse groups that those lanes cannot be in.

    Raises:
      ValueError: for a member that is no lane, or is in two groups.
    """
    group_of: dict[str, str] = {}
    for name, group in groups.items():
        for member in group.members:
            if member not in lanes:
                raise ValueError(f"group {name!r} has the member {member!r}, which is no lane")
            if member in group_of:
                raise ValueError(
                    f"lane {member!r} is in two groups: {group_of[member]!r}, {name!r}"
                )
            group_of[member] = name
