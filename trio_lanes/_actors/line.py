"""The line of a global lane: the jobs in it that may start as far as their sessions go."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from fractions import Fraction
from typing import Protocol, final

from .._queue.backlog import Queue, rank
from .._queue.fair import FIRST, FairLine
from .job import AnyJob


class Line(Protocol):
    """Waiting jobs, the best of which is served next."""

    @property
    def items(self) -> Collection[object]:
        """As many as jobs wait in it; what they are is its own."""

    def __len__(self) -> int: ...
    def jobs(self) -> Iterable[AnyJob]: ...
    def add(self, job: AnyJob) -> None: ...
    def remove(self, job: AnyJob) -> None: ...
    def move(self, job: AnyJob, arrival: int) -> None: ...
    def best(self) -> AnyJob: ...
    def since(self) -> float | Fraction:
        """Return when the longest wait in the head's priority began; 0 without aging."""

    def before(self, job: AnyJob) -> list[AnyJob]: ...
    def pop(self) -> AnyJob: ...


@final
class PlainLine:
    """By priority, then by arrival."""

    __slots__ = ("_queue", "best", "items", "pop")

    def __init__(self) -> None:
        self._queue: Queue[AnyJob] = Queue()
        self.items: Collection[object] = self._queue.items
        self.best = self._queue.best
        self.pop = self._queue.pop

    def __len__(self) -> int:
        return len(self.items)

    def jobs(self) -> Iterable[AnyJob]:
        return self._queue.items.values()

    def since(self) -> float:
        return 0

    def before(self, job: AnyJob) -> list[AnyJob]:
        mine, items = rank(job._priority, job._arrival), self._queue.items
        return [items[theirs] for theirs in sorted(items) if theirs < mine]

    def add(self, job: AnyJob) -> None:
        self._queue.add(rank(job._priority, job._arrival), job)

    def remove(self, job: AnyJob) -> None:
        self._queue.remove(rank(job._priority, job._arrival))

    def move(self, job: AnyJob, arrival: int) -> None:
        self.remove(job)
        job._arrival = arrival
        self.add(job)


@final
class SharedLine:
    """By priority, which waiting raises if there is aging; fair to owners inside a priority."""

    __slots__ = ("_fair",)

    def __init__(self, *, aging: float, fair: bool) -> None:
        self._fair: FairLine[AnyJob] = FairLine(aging, fair)

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

    def add(self, job: AnyJob) -> None:
        self._fair.add(
            job,
            priority=job._priority,
            arrival=job._arrival,
            since=job._waiting_since,
            owner=FIRST if job._readmitting else job.owner,
        )

    def remove(self, job: AnyJob) -> None:
        self._fair.remove(job)

    def move(self, job: AnyJob, arrival: int) -> None:
        self._fair.move(job, arrival)
        job._arrival = arrival

    def best(self) -> AnyJob:
        return self._fair.best()

    def since(self) -> float | Fraction:
        return self._fair.since()

    def pop(self) -> AnyJob:
        return self._fair.pop()
