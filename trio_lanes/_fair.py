"""Where a job waits in a lane that is fair, or in which waiting counts.

Between priorities: the oldest waiting job of each is compared, by what its wait adds to its
priority, and the highest is served. All waits grow alike, so which one is highest depends on no
clock: ``priority + (now - since) / aging`` is highest where ``since - priority * aging`` is
lowest, whatever ``now`` is. So the priorities stand in a heap by that number, which changes only
when their oldest job does. It is exact, a fraction, so that a tie is a tie: then the higher
priority is served.

Inside a priority: by arrival; or, in a fair line, the owners take turns, each with its earliest
job. An owner that was served goes behind the others, and one of which nothing waits is forgotten.
What is nobody's turn, and goes before all of them, is owned by `FIRST`.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Collection, Hashable
from fractions import Fraction
from typing import Final, Generic, TypeVar, final

from ._backlog import Backlog

T = TypeVar("T", bound=Hashable)

FIRST: Final = object()


@final
class FairLine(Generic[T]):
    """The items that wait, the next of them first.

    All is O(log n). An item is equal to itself alone, and no two have the same arrival.
    """

    __slots__ = ("_aging", "_fair", "_lines", "_order", "_places")

    def __init__(self, aging: float = math.inf, fair: bool = False) -> None:
        self._aging = None if aging == math.inf else Fraction(aging)
        self._fair = fair
        self._places: dict[T, tuple[int, int, Hashable]] = {}  # {item: (priority, arrival, owner)}
        self._lines: dict[int, _Line[T]] = {}  # {priority: those who have it}
        self._order = _Lowest()  # of the priorities, negated, so that the higher wins a tie

    def __len__(self) -> int:
        return len(self._places)

    def items(self) -> Collection[T]:
        """Everything that waits, in the order in which it was added."""
        return self._places.keys()

    def add(
        self,
        item: T,
        *,
        priority: int,
        arrival: int,
        since: float | Fraction,
        owner: Hashable = None,
    ) -> None:
        """Put ``item`` in, which has waited ``since`` then, for ``owner``."""
        if not self._fair:
            owner = None
        line = self._lines.get(priority)
        if line is None:
            line = self._lines[priority] = _Line()
        self._places[item] = priority, arrival, owner
        line.add(item, arrival, owner)
        if self._aging is not None:
            line.waits.put(arrival, since)
        self._rank(priority, line)

    def remove(self, item: T) -> None:
        """Take out ``item``, which is in."""
        priority, arrival, owner = self._places.pop(item)
        line = self._lines[priority]
        line.remove(arrival, owner)
        self._left(priority, arrival, line)

    def best(self) -> T:
        """The item that is served next. There must be one."""
        return self._lines[-self._order.lowest()].best()

    def pop(self) -> T:
        """Take out the item that is served next. There must be one."""
        priority = -self._order.lowest()
        line = self._lines[priority]
        item = line.pop()
        _, arrival, _ = self._places.pop(item)
        self._left(priority, arrival, line)
        return item

    def copy(self) -> FairLine[T]:
        """Another one, in which the same are served in the same order."""
        other: FairLine[T] = FairLine(fair=self._fair)
        other._aging = self._aging
        for priority, line in self._lines.items():
            for owner, backlog in line.owners.items():  # in the order of their turns
                for arrival, item in backlog.items.items():
                    since = line.waits.values.get(arrival, 0.0)
                    other.add(item, priority=priority, arrival=arrival, since=since, owner=owner)
        return other

    def _left(self, priority: int, arrival: int, line: _Line[T]) -> None:
        if self._aging is not None:
            line.waits.drop(arrival)
        if line.owners:
            self._rank(priority, line)
        else:
            del self._lines[priority]
            self._order.drop(-priority)

    def _rank(self, priority: int, line: _Line[T]) -> None:
        rank: float | Fraction = -priority
        if self._aging is not None:
            oldest = line.waits.lowest_value()
            if oldest == line.oldest:
                return
            line.oldest = oldest
            rank = Fraction(oldest) - priority * self._aging
        self._order.put(-priority, rank)


class _Line(Generic[T]):
    """Those of one priority."""

    __slots__ = ("oldest", "owners", "waits")

    def __init__(self) -> None:
        # {owner: those that wait for it, by arrival}, in the order of their turns. A dict would
        # take linear time to find its first item after many deletions at the front.
        self.owners: OrderedDict[Hashable, Backlog[T]] = OrderedDict()
        self.waits = _Lowest()  # {arrival: since}
        self.oldest: float | Fraction | None = None  # the lowest of them that was ranked

    def add(self, item: T, arrival: int, owner: Hashable) -> None:
        backlog = self.owners.get(owner)
        if backlog is None:
            backlog = self.owners[owner] = Backlog()
            if owner is FIRST:
                self.owners.move_to_end(FIRST, last=False)
        backlog.add(arrival, item)

    def remove(self, arrival: int, owner: Hashable) -> None:
        backlog = self.owners[owner]
        backlog.remove(arrival)
        if not backlog.items:
            del self.owners[owner]

    def best(self) -> T:
        return next(iter(self.owners.values())).best()

    def pop(self) -> T:
        owner, backlog = next(iter(self.owners.items()))
        item = backlog.pop()
        if not backlog.items:
            del self.owners[owner]
        elif owner is not FIRST:
            self.owners.move_to_end(owner)
        return item


class _Lowest:
    """Numbers by key, of which the lowest is found: of equal ones, that of the lowest key."""

    __slots__ = ("_heap", "values")

    def __init__(self) -> None:
        self._heap: list[tuple[float | Fraction, int]] = []  # some of them no longer in values
        self.values: dict[int, float | Fraction] = {}
        """{key: number}, to look at."""

    def put(self, key: int, value: float | Fraction) -> None:
        """Have ``key`` stand at ``value``."""
        if self.values.get(key) != value:
            self.values[key] = value
            heapq.heappush(self._heap, (value, key))
            self._shrink()

    def drop(self, key: int) -> None:
        """Forget ``key``."""
        del self.values[key]
        self._shrink()

    def lowest(self) -> int:
        """The key of the lowest. There must be one."""
        heap, values = self._heap, self.values
        while values.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][1]

    def lowest_value(self) -> float | Fraction:
        """The lowest. There must be one."""
        return self.values[self.lowest()]

    def _shrink(self) -> None:
        # At most as many dead entries as living ones: the changes have paid for a rebuilding.
        if len(self._heap) > 2 * len(self.values) + 16:
            self._heap = [(value, key) for key, value in self.values.items()]
            heapq.heapify(self._heap)
