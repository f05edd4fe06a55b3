"""A priority queue with aging, and with turns for the owners of jobs.

Between priorities: each priority counts with what the wait of its oldest job adds to it, and a job
of the highest is served. All waits grow at the same rate, so the order depends on no clock:
``priority + (now - since) / aging`` is highest where ``since - priority * aging`` is
lowest, whatever ``now`` is. So a heap holds the priorities by that number, which changes only when
the oldest job of the priority changes. The number is exact, a fraction, so that equal values
compare as equal: then the higher priority is served.

Inside a priority: by arrival; or, in a fair line, the owners take turns, each with its earliest
job. The arrival of its first job gives an owner its turn, so that a job which inherits an arrival
inherits a turn, unless its owner has one. An owner that was served goes behind all other owners,
and an owner without waiting jobs is forgotten. Jobs of the owner `FIRST` take no turns: they go
before the jobs of all other owners. With weights, the owners of each entry of these take turns, and
`Shares` chooses between the entries.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import islice
from typing import Final, Generic, TypeVar, final

from .._config.shares import UNLISTED_CLASS
from .backlog import Backlog, in_order
from .shares import Scale, Shares

T = TypeVar("T", bound=Hashable)

FIRST: Final = object()

_TURNS: Final = 40  # bits: turns after one arrival, before the next
_SERVED: Final = 1 << (_TURNS - 1)  # turns from this one on are for owners that were served


@final
class FairLine(Generic[T]):
    """The waiting items, in the order of service.

    A change, and a look at the next item, take O(log n). An item is equal to itself alone, and no
    two items have the same arrival.
    """

    __slots__ = ("_aging", "_fair", "_lines", "_order", "_places", "_scale")

    def __init__(
        self, aging: float = math.inf, fair: bool = False, weights: Mapping[str, float] = {}
    ) -> None:
        self._aging = None if aging == math.inf else Fraction(aging)
        self._fair = fair
        self._scale = Scale(weights) if weights else None
        self._places: dict[T, tuple[int, int, Hashable]] = {}  # {item: (priority, arrival, owner)}
        self._lines: dict[int, _Priority[T]] = {}  # {priority: its items}
        self._order = _Lowest()  # of the priorities, negated, so that the higher wins a tie

    def __len__(self) -> int:
        return len(self._places)

    def items(self) -> Collection[T]:
        """All waiting items, in the order in which they were added."""
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
        """Add ``item`` for ``owner``. It has waited since the time ``since``."""
        if not self._fair:
            owner = None
        line = self._lines.get(priority)
        if line is None:
            line = self._lines[priority] = _Priority(self._scale)
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

    def move(self, item: T, arrival: int) -> None:
        """Give ``item``, which is in, another arrival."""
        priority, old, owner = self._places[item]
        self._places[item] = priority, arrival, owner
        line = self._lines[priority]
        line.move(item, old, arrival, owner)
        if self._aging is not None:
            line.waits.put(arrival, line.waits.values[old])
            line.waits.drop(old)

    def best(self) -> T:
        """Return the item that is served next. There must be an item."""
        return self._lines[-self._order.lowest()].best()

    def pop(self) -> T:
        """Take out the item that is served next. There must be an item."""
        priority = -self._order.lowest()
        line = self._lines[priority]
        item = line.pop()
        _, arrival, _ = self._places.pop(item)
        self._left(priority, arrival, line)
        return item

    def first_of(self, priority: int) -> T | None:
        """Return the item of ``priority`` that is served first, or None if no such item waits."""
        line = self._lines.get(priority)
        return None if line is None else line.best()

    def since(self) -> float | Fraction:
        """Return when the longest wait in the best priority began; 0 without aging.

        There must be an item.
        """
        oldest = self._lines[-self._order.lowest()].oldest
        return 0 if oldest is None else oldest

    def urgency(self, now: float) -> tuple[int | Fraction, int]:
        """Return the best priority at ``now``: with what waiting adds to it, and without.

        Of two lines, also of different aging, the line with the higher value is served first. There
        must be an item.
        """
        priority = -self._order.lowest()
        if self._aging is None:
            return priority, priority
        return priority + (Fraction(now) - Fraction(self.since())) / self._aging, priority

    def overtakes_at(self, other: FairLine[T], now: float) -> float:
        """Return when it will be above ``other``, which is served before it; `math.inf` for never.

        Only a line of other aging overtakes. Both must have an item.
        """
        gains = self._gain() - other._gain()
        if gains <= 0:
            return math.inf
        moment = Fraction(now) + (other.urgency(now)[0] - self.urgency(now)[0]) / gains
        when = float(moment)
        while when <= moment:  # at that moment they are equal
            when = math.nextafter(when, math.inf)
        return when

    def _gain(self) -> Fraction:
        """What a second of waiting adds to a priority."""
        return Fraction(0) if self._aging is None else 1 / self._aging

    def in_order(self) -> Iterator[T]:
        """Yield the items in the order of service; read no more items than are taken."""
        if self._aging is None:
            for priority in sorted(self._lines, reverse=True):
                yield from self._lines[priority].in_order()
            return
        served: set[int] = set()  # arrivals
        items = {priority: line.in_order() for priority, line in self._lines.items()}
        waits = {priority: line.waits.in_order() for priority, line in self._lines.items()}
        oldest = {priority: next(entries) for priority, entries in waits.items()}
        ranks = [(rank, key) for key, rank in self._order.values.items()]
        heapq.heapify(ranks)
        while ranks:
            priority = -heapq.heappop(ranks)[1]
            item = next(items[priority])
            yield item
            served.add(self._places[item][1])
            entry: tuple[float | Fraction, int] | None = oldest[priority]
            while entry is not None and entry[1] in served:
                entry = next(waits[priority], None)
            if entry is not None:
                oldest[priority] = entry
                rank = Fraction(entry[0]) - priority * self._aging
                heapq.heappush(ranks, (rank, -priority))

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Give the owners other weights; they keep their turns. This takes linear time in them."""
        self._scale = Scale(weights) if weights else None
        for line in self._lines.values():
            line.set_scale(self._scale)

    def copy(self) -> FairLine[T]:
        """Return another line that serves the same items in the same order."""
        other: FairLine[T] = FairLine(fair=self._fair)
        other._scale, other._aging = self._scale, self._aging
        other._places = dict(self._places)
        for priority, line in self._lines.items():
            other._lines[priority] = line.copy()
            other._rank(priority, other._lines[priority])
        return other

    def _left(self, priority: int, arrival: int, line: _Priority[T]) -> None:
        if self._aging is not None:
            line.waits.drop(arrival)
        if not line.is_empty:
            self._rank(priority, line)
        else:
            del self._lines[priority]
            self._order.drop(-priority)

    def _rank(self, priority: int, line: _Priority[T]) -> None:
        rank: float | Fraction = -priority
        if self._aging is not None:
            oldest = line.waits.lowest_value()
            if oldest == line.oldest:
                return
            line.oldest = oldest
            rank = Fraction(oldest) - priority * self._aging
        self._order.put(-priority, rank)


class _Priority(Generic[T]):
    """The items of one priority."""

    __slots__ = ("_latest", "_rings", "_scale", "_served", "_shares", "oldest", "waits")

    def __init__(self, scale: Scale | None) -> None:
        self._scale = scale
        self._shares = None if scale is None else Shares(scale)
        self._rings: dict[str | None, _Ring[T]] = {}  # {class of owners: items}; None: of `FIRST`
        self._latest = 0  # the highest arrival so far
        self._served = 0  # how often an owner was served
        self.waits = _Lowest()  # {arrival: since}
        self.oldest: float | Fraction | None = None  # the lowest of `waits` when it was last ranked

    @property
    def is_empty(self) -> bool:
        return not self._rings

    def _class_of(self, owner: Hashable) -> str | None:
        if owner is FIRST:
            return None
        return UNLISTED_CLASS if self._scale is None else self._scale.weight_class(owner)

    def add(self, item: T, arrival: int, owner: Hashable) -> None:
        self._latest = max(self._latest, arrival)
        name = self._class_of(owner)
        if self._ring(name).add(item, arrival, owner):
            self._count_owners(name)

    def _ring(self, name: str | None) -> _Ring[T]:
        ring = self._rings.get(name)
        if ring is None:
            ring = self._rings[name] = _Ring()
        return ring

    def remove(self, arrival: int, owner: Hashable) -> None:
        name = self._class_of(owner)
        if self._rings[name].remove(arrival, owner):
            self._count_owners(name)

    def move(self, item: T, old: int, arrival: int, owner: Hashable) -> None:
        self._rings[self._class_of(owner)].move(item, old, arrival, owner)

    def best(self) -> T:
        return self._rings[self._next()].best()

    def pop(self) -> T:
        name = self._next()
        if self._shares is not None and name is not None:
            self._shares.served(name)
        self._served += 1
        ring = self._rings[name]
        owners = len(ring.turns)
        item = ring.pop((self._latest << _TURNS) + _SERVED + self._served)
        if len(ring.turns) < owners:
            self._count_owners(name)
        return item

    def _next(self) -> str | None:
        rings = self._rings
        if len(rings) == 1:
            return next(iter(rings))
        assert None in rings or self._shares is not None
        return None if None in rings or self._shares is None else self._shares.next()

    def _count_owners(self, name: str | None) -> None:
        """The class ``name`` has more or fewer owners with work."""
        owners = len(self._rings[name].turns)
        if not owners:
            del self._rings[name]
        if self._shares is not None and name is not None:
            self._shares.set_owners(name, owners)

    def in_order(self) -> Iterator[T]:
        """Yield the items in the order of service; read no more items than are taken."""
        yield self.best()  # mostly it is enough, and the classes are not read
        yield from islice(self._all_in_order(), 1, None)

    def _all_in_order(self) -> Iterator[T]:
        rings = {name: ring.in_order() for name, ring in self._rings.items() if name is not None}
        if None in self._rings:
            yield from (item for item, _ in self._rings[None].in_order())
        shares = None if self._shares is None else self._shares.copy()
        owners = {name: len(self._rings[name].turns) for name in rings}
        while rings:
            name = next(iter(rings)) if shares is None else shares.next()
            item, is_last = next(rings[name])
            yield item
            if shares is not None:
                shares.served(name)
            if is_last:
                owners[name] -= 1
                if shares is not None:
                    shares.set_owners(name, owners[name])
                if not owners[name]:
                    del rings[name]

    def set_scale(self, scale: Scale | None) -> None:
        """Put the owners into the classes of other weights; no class is owed anything."""
        rings, self._rings, self._scale = self._rings, {}, scale
        self._shares = None if scale is None else Shares(scale)
        for ring in rings.values():
            for owner in ring.turns:
                name = self._class_of(owner)
                self._ring(name).take_over(ring, owner)
                self._count_owners(name)

    def copy(self) -> _Priority[T]:
        other: _Priority[T] = _Priority(self._scale)
        other._rings = {name: ring.copy() for name, ring in self._rings.items()}
        other._shares = None if self._shares is None else self._shares.copy()
        other._latest, other._served = self._latest, self._served
        for arrival, since in self.waits.values.items():
            other.waits.put(arrival, since)
        return other


class _Ring(Generic[T]):
    """The items of owners that take turns."""

    __slots__ = ("_backlogs", "_owners", "turns")

    def __init__(self) -> None:
        self._backlogs: dict[Hashable, Backlog[T]] = {}  # {owner: its items, by arrival}
        self._owners: Backlog[Hashable] = Backlog()  # by their turns
        self.turns: dict[Hashable, int] = {}
        """{owner: its turn}, for reading."""

    def add(self, item: T, arrival: int, owner: Hashable) -> bool:
        """Add an item; return whether its owner had none."""
        backlog = self._backlogs.get(owner)
        if is_new := backlog is None:
            backlog = self._backlogs[owner] = Backlog()
            self._give_turn(owner, arrival << _TURNS)
        backlog.add(arrival, item)
        return is_new

    def remove(self, arrival: int, owner: Hashable) -> bool:
        """Take an item out; return whether its owner has none left."""
        backlog = self._backlogs[owner]
        backlog.remove(arrival)
        if backlog.items:
            return False
        self._owners.remove(self.turns.pop(owner))
        del self._backlogs[owner]
        return True

    def move(self, item: T, old: int, arrival: int, owner: Hashable) -> None:
        backlog = self._backlogs[owner]
        backlog.remove(old)
        backlog.add(arrival, item)
        turn = self.turns[owner]
        if turn >> _TURNS == old and not turn & _SERVED:  # the turn came from that arrival
            self._owners.remove(turn)
            self._give_turn(owner, arrival << _TURNS)

    def best(self) -> T:
        return self._backlogs[self._owners.best()].best()

    def pop(self, next_turn: int) -> T:
        """Take out the item that is served next. If its owner has more, it gets that turn."""
        owner = self._owners.pop()
        backlog = self._backlogs[owner]
        item = backlog.pop()
        if not backlog.items:
            del self._backlogs[owner], self.turns[owner]
        else:
            self._give_turn(owner, next_turn)
        return item

    def in_order(self) -> Iterator[tuple[T, bool]]:
        """Yield the items in the order of service, and whether each is the last of its owner."""
        backlogs = (self._backlogs[owner] for owner in self._owners.in_order())
        turns: Iterable[tuple[Iterator[T], int]] = (
            (backlog.in_order(), len(backlog.items)) for backlog in backlogs
        )
        while True:  # an owner that was served goes behind all others
            left: list[tuple[Iterator[T], int]] = []
            for items, count in turns:
                yield next(items), count == 1
                if count > 1:
                    left.append((items, count - 1))
            if not left:
                return
            turns = left

    def take_over(self, other: _Ring[T], owner: Hashable) -> None:
        """Share an owner of another ring, with its turn there."""
        self._backlogs[owner] = other._backlogs[owner]
        self._give_turn(owner, other.turns[owner])

    def copy(self) -> _Ring[T]:
        other: _Ring[T] = _Ring()
        for owner in self.turns:
            other.take_over(self, owner)
            other._backlogs[owner] = self._backlogs[owner].copy()
        return other

    def _give_turn(self, owner: Hashable, turn: int) -> None:
        while turn in self._owners.items:  # another owner may have had the inherited arrival before
            turn += 1
        self.turns[owner] = turn
        self._owners.add(turn, owner)


class _Lowest:
    """Numbers by key, in order: of equal numbers, the number with the lowest key comes first."""

    __slots__ = ("_heap", "values")

    def __init__(self) -> None:
        self._heap: list[tuple[float | Fraction, int]] = []  # some of them no longer in values
        self.values: dict[int, float | Fraction] = {}
        """{key: number}, for reading."""

    def put(self, key: int, value: float | Fraction) -> None:
        """Set the number of ``key`` to ``value``."""
        if self.values.get(key) != value:
            self.values[key] = value
            heapq.heappush(self._heap, (value, key))
            self._shrink()

    def drop(self, key: int) -> None:
        """Forget ``key``."""
        del self.values[key]
        self._shrink()

    def lowest(self) -> int:
        """Return the key of the lowest number. There must be a number."""
        heap, values = self._heap, self.values
        while values.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][1]

    def lowest_value(self) -> float | Fraction:
        """Return the lowest number. There must be a number."""
        return self.values[self.lowest()]

    def in_order(self) -> Iterator[tuple[float | Fraction, int]]:
        """Yield the numbers and their keys, the lowest first."""
        return (entry for entry in in_order(self._heap) if self.values.get(entry[1]) == entry[0])

    def _shrink(self) -> None:
        # At most as many dead entries as living ones: the changes have paid for a rebuilding.
        if len(self._heap) > 2 * len(self.values) + 16:
            self._heap = [(value, key) for key, value in self.values.items()]
            heapq.heapify(self._heap)
