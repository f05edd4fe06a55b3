"""What the model knows of a lane: its line, its rate, and its group."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from tests.model.model_jobs import ModelJob


class Setting(NamedTuple):
    """What lanes are opened with, and what does not change."""

    main: int = 1
    cron: int = 1
    sub: int = 1
    session_width: int = 1
    session_bound: float = inf
    fair: bool = False
    """Whether owners take turns in "main"."""
    rate: float = inf
    """How many may start in "main" in a second."""
    group: tuple[float, int] | None = None
    """The budget of the group of "main" and "cron", and what of it is kept for "cron"."""
    group_rate: float = inf
    """How many may start in two seconds in the lanes of the group."""


Turn = tuple[int, bool, int]
"""By an arrival; or after that and after others, if its owner was served since."""


@dataclass
class ModelLine:
    """The jobs that their sessions let start in a lane."""

    fair: bool
    jobs: list[ModelJob] = field(default_factory=list)
    turns: dict[int, dict[str | None, Turn]] = field(default_factory=dict)  # {priority: ...}
    latest: dict[int, int] = field(default_factory=dict)  # {priority: the last arrival}
    served: int = 0

    def join(self, job: ModelJob) -> None:
        assert job.arrival is not None
        self.jobs.append(job)
        self.latest[job.priority] = max(job.arrival, self.latest.get(job.priority, 0))
        turns = self.turns.setdefault(job.priority, {})
        turns.setdefault(job.owner, (job.arrival, False, 0))

    def leave(self, job: ModelJob) -> None:
        self.jobs.remove(job)
        if job.owner not in {mate.owner for mate in self._equals(job.priority)}:
            del self.turns[job.priority][job.owner]
        if not self.turns[job.priority]:
            del self.latest[job.priority]

    def move(self, job: ModelJob, arrival: int) -> None:
        turns = self.turns[job.priority]
        if turns[job.owner] == (job.arrival, False, 0):
            turns[job.owner] = (arrival, False, 0)
        job.arrival = arrival

    def start(self, job: ModelJob) -> None:
        self.leave(job)
        turns = self.turns[job.priority]
        if job.owner in turns:
            self.served += 1
            turns[job.owner] = (self.latest[job.priority], True, self.served)

    def heads(self) -> list[ModelJob]:
        """The next of them: several if they came in the same moment."""
        best = self._equals(max((job.priority for job in self.jobs), default=0))
        if self.fair:
            turns = self.turns[best[0].priority] if best else {}
            first = min(turns.values(), default=None)
            owners = [owner for owner, turn in turns.items() if turn == first]
            return [
                job
                for owner in owners
                for job in _first([mate for mate in best if mate.owner == owner])
            ]
        return _first(best)

    def _equals(self, priority: int) -> list[ModelJob]:
        return [job for job in self.jobs if job.priority == priority]


def _first(jobs: list[ModelJob]) -> list[ModelJob]:
    first = min((job.arrival or 0 for job in jobs), default=0)
    return [job for job in jobs if job.arrival == first]


@dataclass
class ModelRate:
    """So many starts in any window of that length; an infinite number is no limit."""

    limit: float
    per: float
    starts: list[float] = field(default_factory=list)

    def ready_at(self) -> float:
        """From when on one more may start."""
        if len(self.starts) < self.limit:
            return -inf
        return self.starts[-int(self.limit)] + self.per


@dataclass(eq=False)
class ModelLane:
    concurrency: int
    line: ModelLine
    rate: ModelRate
    max_waiting: float = inf
    paused: bool = False
    generation: int = 0
    started: int = 0
    finished: int = 0
    returning: list[ModelJob] = field(default_factory=list)  # they want slots back


@dataclass
class ModelGroup:
    """Two lanes that share a budget, of which the second has a part for itself."""

    budget: float
    reserved: int
    rate: ModelRate

    members = ("main", "cron")

    def admits(self, lane: str, used: dict[str, int]) -> bool:
        """Whether there is a token for ``lane``."""
        kept = 0 if lane == "cron" else max(0, self.reserved - used["cron"])
        return sum(used.values()) + kept < self.budget
