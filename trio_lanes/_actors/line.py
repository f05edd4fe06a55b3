"""The line of a global lane: the jobs that their sessions have forwarded, in order."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple, Protocol, final

from .._queue.backlog import LAST, in_order, rank
from .._queue.fair import FIRST, FairLine
from .job import AnyJob
from .state import RUNNING


class Displacement(NamedTuple):
    """How other jobs of its session would make way for a job that is forwarded now."""

    arrival: int = LAST
    """The arrival of the job in its lane: last of all, unless it inherits one."""
    leave: Sequence[AnyJob] = ()
    """The jobs that would leave the lines of their lanes."""
    moved: Mapping[AnyJob, int] = {}
    """The jobs in the line of its lane that would have other arrivals, in order of the moves."""


class Line(Protocol):
    """Waiting jobs, the best of which is served next."""

    @property
    def items(self) -> Collection[object]:
        """A collection that is as long as the line, for a fast test of emptiness."""

    def __len__(self) -> int: ...
    def jobs(self) -> Iterable[AnyJob]: ...
    def add(self, job: AnyJob) -> None: ...
    def remove(self, job: AnyJob) -> None: ...
    def move(self, job: AnyJob, arrival: int) -> None:
        """Move ``job`` to the position of that arrival. The lane then sets ``job._arrival``."""

    def best(self) -> AnyJob: ...
    def since(self) -> float | Fraction:
        """When the longest wait in the head's priority began; 0 without aging."""

    def before(self, job: AnyJob) -> list[AnyJob]: ...
    def in_order(self) -> Iterator[AnyJob]: ...
    def copy(self) -> Line: ...
    def pop(self) -> AnyJob: ...


@final
class PlainLine:
    """By priority, then by arrival.

    It is a `Backlog` for ranks that mostly come in order: a deque holds these, and is faster than a
    heap, the more so the longer the line is.
    """

    __slots__ = ("_late", "_ranks", "items")

    def __init__(self) -> None:
        self._ranks: deque[int] = deque()  # in order; some of them no longer in items
        self._late: list[int] = []  # a heap of the ranks that did not come in order
        self.items: dict[int, AnyJob] = {}
        """{rank: job}, for reading."""

    def __len__(self) -> int:
        return len(self.items)

    def jobs(self) -> Iterable[AnyJob]:
        return self.items.values()

    def since(self) -> float:
        return 0

    def before(self, job: AnyJob) -> list[AnyJob]:
        mine, items = rank(job._priority, job._arrival), self.items
        return [items[theirs] for theirs in sorted(items) if theirs < mine]

    def in_order(self) -> Iterator[AnyJob]:
        """Yield the jobs, the next to start first; read no more jobs than are taken."""
        last = None
        for place in heapq.merge(self._ranks, in_order(self._late)):
            if place != last and place in self.items:
                yield self.items[place]
            last = place

    def copy(self) -> PlainLine:
        other = PlainLine()
        for place in sorted(self.items):
            other.items[place] = self.items[place]
            other._ranks.append(place)
        return other

    def add(self, job: AnyJob, arrival: int | None = None) -> None:
        place = job._arrival if arrival is None else arrival
        if job._priority:
            place = rank(job._priority, place)
        self.items[place] = job
        ranks = self._ranks
        if ranks and place < ranks[-1]:
            heapq.heappush(self._late, place)
        else:
            ranks.append(place)

    def remove(self, job: AnyJob) -> None:
        del self.items[rank(job._priority, job._arrival)]
        if len(self._ranks) + len(self._late) > 2 * len(self.items) + 16:
            self._ranks = deque(sorted(self.items))
            self._late.clear()

    def move(self, job: AnyJob, arrival: int) -> None:
        self.remove(job)
        self.add(job, arrival)

    def best(self) -> AnyJob:
        ranks, late, items = self._ranks, self._late, self.items
        while ranks and ranks[0] not in items:
            ranks.popleft()
        while late and late[0] not in items:
            heapq.heappop(late)
        return items[late[0] if late and not (ranks and ranks[0] < late[0]) else ranks[0]]

    def pop(self) -> AnyJob:
        ranks, late, items = self._ranks, self._late, self.items
        while True:
            if late and not (ranks and ranks[0] < late[0]):
                place = heapq.heappop(late)
            else:
                place = ranks.popleft()
            if place in items:
                return items.pop(place)


@final
class SharedLine:
    """By priority, which waiting raises if there is aging; in turns of owners if it is fair."""

    __slots__ = ("_fair",)

    def __init__(self, *, aging: float, fair: bool, weights: Mapping[str, float]) -> None:
        self._fair: FairLine[AnyJob] = FairLine(aging, fair, weights)

    @property
    def items(self) -> Collection[object]:
        return self._fair.items()

    def __len__(self) -> int:
        return len(self._fair)

    def jobs(self) -> Iterator[AnyJob]:
        return iter(self._fair.items())

    def before(self, job: AnyJob) -> list[AnyJob]:
        line = self._fair.copy()
        return list(iter(line.pop, job))

    def in_order(self) -> Iterator[AnyJob]:
        return self._fair.in_order()

    def set_weights(self, weights: Mapping[str, float]) -> None:
        self._fair.set_weights(weights)

    def copy(self) -> SharedLine:
        other: SharedLine = SharedLine.__new__(SharedLine)
        other._fair = self._fair.copy()
        return other

    def add(self, job: AnyJob) -> None:
        self._fair.add(
            job,
            priority=job._priority,
            arrival=job._arrival,
            since=job._waiting_since,
            owner=FIRST if job._state is RUNNING else job.owner,
        )

    def remove(self, job: AnyJob) -> None:
        self._fair.remove(job)

    def move(self, job: AnyJob, arrival: int) -> None:
        self._fair.move(job, arrival)

    def best(self) -> AnyJob:
        return self._fair.best()

    def since(self) -> float | Fraction:
        return self._fair.since()

    def pop(self) -> AnyJob:
        return self._fair.pop()
