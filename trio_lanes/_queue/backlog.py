"""A priority queue of waiting jobs, with removal from anywhere.

The position of a job in the order is one integer, its *rank*; the lowest rank is served first. A
rank is the job's place less its priority, which is shifted above all places: comparing two ranks
compares the priorities first, and the places second. A heap of plain integers is compared in C and
is not tracked by the garbage collector. The jobs themselves are in a dict by rank, so that taking
a job from the middle is a dict deletion. The deletion leaves only a number in the heap: a backlog
never keeps an ended job alive.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar, final

T = TypeVar("T")

_PLACE_BITS: Final = 64  # bits: at a million places a microsecond, half a million years
LAST: Final = 2**62  # a place behind all others


def rank(priority: int, place: int) -> int:
    """Return the rank of an item with that priority and that place."""
    return place - (priority << _PLACE_BITS) if priority else place


def in_order(heap: list[Any]) -> Iterator[Any]:
    """Yield the entries of ``heap``, the lowest first, equal entries once. The heap stays as it is.

    The first n take O(n log n), however long the heap is.
    """
    front = [(heap[0], 0)] if heap else []
    last: object = None
    while front:
        entry, place = heapq.heappop(front)
        if entry != last:
            yield entry
        last = entry
        for child in (2 * place + 1, 2 * place + 2):
            if child < len(heap):
                heapq.heappush(front, (heap[child], child))


@final
class Backlog(Generic[T]):
    """Items by rank; the lowest is the best. Adding, removing and popping are O(log n)."""

    __slots__ = ("_heap", "items")

    def __init__(self) -> None:
        self._heap: list[int] = []  # ranks, some of them no longer in items
        self.items: dict[int, T] = {}
        """{rank: item}, for reading."""

    def add(self, rank: int, item: T) -> None:
        """Put ``item`` in at ``rank``, which no other item has."""
        self.items[rank] = item
        heapq.heappush(self._heap, rank)

    def remove(self, rank: int) -> None:
        """Take out the item with ``rank``."""
        del self.items[rank]
        # At most as many dead ranks as living ones: rebuilding is paid for by the removals.
        if len(self._heap) > 2 * len(self.items) + 16:
            self._heap = list(self.items)
            heapq.heapify(self._heap)

    def best_rank(self) -> int:
        """Return the lowest rank. There must be an item."""
        heap, items = self._heap, self.items
        while heap[0] not in items:
            heapq.heappop(heap)
        return heap[0]

    def best(self) -> T:
        """Return the item with the lowest rank. There must be an item."""
        return self.items[self.best_rank()]

    def pop(self) -> T:
        """Take out the item with the lowest rank. There must be an item."""
        heap, items = self._heap, self.items
        while (best := heapq.heappop(heap)) not in items:
            pass
        return items.pop(best)

    def in_order(self) -> Iterator[T]:
        """Yield the items, the best first; read no more items than are taken."""
        return (self.items[rank] for rank in in_order(self._heap) if rank in self.items)

    def copy(self) -> Backlog[T]:
        """Return another backlog with the same items."""
        other: Backlog[T] = Backlog()
        other._heap = self._heap.copy()
        other.items.update(self.items)
        return other
