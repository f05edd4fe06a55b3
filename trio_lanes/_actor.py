"""What session lanes and global lanes have in common.

An actor is its state, its mailbox, and one synchronous `step`, taken after every transition that
may matter to it: mail arrived, a job ended, a limit changed. It has no task of its own, since
whatever could make it act is itself a transition.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import trio
from trio.lowlevel import Task

from ._config import LaneConfig
from ._job import AnyJob, Job

if TYPE_CHECKING:
    from ._lane import LaneActor
    from ._room import Entrant


class Floor(Protocol):
    """What actors share: what they may ask for, and where they are served."""

    def touch(self, actor: Actor) -> None: ...
    def start(self, job: AnyJob) -> None: ...
    def forward(self, job: AnyJob, arrival: int) -> None: ...
    def next_arrival(self) -> int: ...
    def retire(self, actor: Actor) -> None: ...
    def warn_later(self, lane: LaneActor) -> None: ...


class Actor(ABC):
    """One lane, of either layer."""

    __slots__ = (
        "active",
        "bounded",
        "concurrency",
        "config",
        "floor",
        "generation",
        "limiter",
        "paused",
        "room_line",
        "told",
        "touched",
        "waiting",
    )

    def __init__(self, floor: Floor, config: LaneConfig) -> None:
        self.floor = floor
        self.config = config
        self.concurrency = config.concurrency  # always the limiter's total_tokens
        self.bounded = config.max_waiting != math.inf
        self.limiter: trio.CapacityLimiter | None = None
        self.waiting = 0  # jobs that it answers for and that have not started, wherever they are
        self.active = 0  # jobs that hold a token of the limiter, and run
        self.paused = config.paused
        self.generation = 0  # how often it was reset
        self.touched = False  # whether it is in line for a step
        self.told = (False, False)  # whether instruments know of waiting, and of unended jobs
        self.room_line: OrderedDict[Task, Entrant] | None = None  # who waits for room in it

    @property
    @abstractmethod
    def name(self) -> str:
        """Its full name; a session's begins with ``session:``."""

    @abstractmethod
    def waiting_jobs(self) -> Iterable[AnyJob]:
        """The jobs that wait and that it answers for."""

    @abstractmethod
    def send(self, job: AnyJob, /) -> None:
        """Put ``job`` into its mailbox; it is looked at in the next step."""

    @abstractmethod
    def step(self) -> None:
        """Do what can be done now."""

    def running_jobs(self) -> list[AnyJob]:
        """The jobs that hold one of its slots."""
        if self.limiter is None:
            return []
        return [job for job in self.limiter.statistics().borrowers if isinstance(job, Job)]

    @property
    def has_room(self) -> bool:
        """Whether one more job may wait in it."""
        return self.waiting < self.config.max_waiting

    def set_config(self, config: LaneConfig) -> None:
        """Go on with another configuration; running jobs are not touched."""
        self.config = config
        self.concurrency = config.concurrency
        self.bounded = config.max_waiting != math.inf
        if self.limiter is not None:
            self.limiter.total_tokens = config.concurrency
        self.floor.touch(self)
