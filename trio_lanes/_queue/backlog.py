"""Where a job waits: the order of waiting jobs, with removal from anywhere.

A job's place in an order is one integer, its *rank*, and the lowest is served first: a rank is
the job's place in line less its priority shifted above all places, so that comparing two ranks
compares priority first and place second. A heap of plain integers is compared in C and is not
tracked by the garbage collector; the jobs themselves are in a dict by rank, so that taking one
from the middle is a dict deletion. What that leaves in the heap is only a number: an ended job
is never kept alive by a backlog.
"""

from __future__ import annotations

import heapq
from typing import Final, Generic, TypeVar, final

T = TypeVar("T")

_PLACES: Final = 64  # bits: at a million places a microsecond, half a million years
LAST: Final = 2**62  # a place behind all others


def rank(priority: int, place: int) -> int:
    """The rank of whoever has that priority and that place in line."""
    return place - (priority << _PLACES) if priority else place


@final
class Backlog(Generic[T]):
    """Items by rank; the lowest is the best. Adding, removing and popping are O(log n)."""

    __slots__ = ("_heap", "items")

    def __init__(self) -> None:
        self._heap: list[int] = []  # ranks, some of them no longer in items
        self.items: dict[int, T] = {}
        """{rank: item}, to look at."""

    def add(self, rank: int, item: T) -> None:
        """Put ``item`` in at ``rank``, which nothing else has."""
        self.items[rank] = item
        heapq.heappush(self._heap, rank)

    def remove(self, rank: int) -> None:
        """Take out whatever has ``rank``."""
        del self.items[rank]
        # At most as many dead ranks as living ones: rebuilding is paid for by the removals.
        if len(self._heap) > 2 * len(self.items) + 16:
            self._heap = list(self.items)
            heapq.heapify(self._heap)

    def best_rank(self) -> int:
        """The lowest rank. There must be one."""
        heap, items = self._heap, self.items
        while heap[0] not in items:
            heapq.heappop(heap)
        return heap[0]

    def best(self) -> T:
        """Whatever has the lowest rank. There must be something."""
        return self.items[self.best_rank()]

    def pop(self) -> T:
        """Take out whatever has the lowest rank. There must be something."""
        heap, items = self._heap, self.items
        while (best := heapq.heappop(heap)) not in items:
            pass
        return items.pop(best)

    def copy(self) -> Backlog[T]:
        """Another one with the same items."""
        other: Backlog[T] = Backlog()
        other._heap = self._heap.copy()
        other.items.update(self.items)
        return other
