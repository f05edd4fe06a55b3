"""The base class of session lanes and global lanes.

An actor owns a limiter, a mailbox, and a step. The borrowers of the limiter are the jobs that run,
the mailbox takes the jobs that arrive, and the step puts them in order. The actor then answers
questions: a session lane, which job to forward; a global lane, which job may start.
The loop (`trio_lanes._flow.loop`) asks these questions after every change that touches the actor,
and acts on the answers. So an actor has no task of its own, and no other module changes its data.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import trio

from .._limits.rate import Rates, rate_limits
from .._queue.timers import Timer
from .job import AnyJob
from .mailbox import Mailbox
from .options import LaneConfig

if TYPE_CHECKING:
    from .wait import RoomRequest


class Served(Protocol):
    """An object that the loop serves: an actor or a group."""

    touched: bool
    wake_at: float
    timer: Timer | None

    def touch(self) -> None:
        """Have the loop serve it before the present batch ends."""


def changed_by_others(name: str) -> RuntimeError:
    """The error for a limiter without a token for the free slot of the lane ``name``."""
    return RuntimeError(
        f"lane {name!r} has a free slot, but its limiter has no token: other code has taken a "
        "token, or has set `total_tokens`. The limiter of a lane is for reading: set the "
        "concurrency of the lane, or share a limiter with it by LaneConfig(limiter=...)"
    )


Turns: TypeAlias = "deque[Any]"
"""The actors of one kind that have been touched, in the order in which the loop serves them."""


NOT_PAUSED: Final = (False, False, None)
"""The `Pausable.pause` of an object that is not paused."""


class Pausable(ABC):
    """An object that can be paused: a lane of either layer, or a template of global lanes."""

    __slots__ = (
        "config",
        "pause_timer",
        "paused",
        "paused_by_config",
        "paused_by_hand",
        "paused_until",
    )

    def __init__(self, config: LaneConfig) -> None:
        self.config = config
        self.paused = self.paused_by_config = config.paused
        self.paused_by_hand = False  # until it is resumed, as `paused_until`
        self.paused_until: float | None = None  # when a pause ends by itself
        self.pause_timer: Timer | None = None

    @abstractmethod
    def touch(self) -> None:
        """Have the loop serve it, or its lanes, before the present batch ends."""

    @property
    def pause(self) -> tuple[bool, bool, float | None]:
        """Whether its configuration, and a call, pause it; and until when a timer does."""
        # When the lanes are shut, no timer is set any more: there is no time to wait for.
        timed = self.pause_timer is not None and self.pause_timer.is_set
        return self.paused_by_config, self.paused_by_hand, self.paused_until if timed else None


class Actor(Pausable):
    """One lane, of either layer."""

    __slots__ = (
        "bounded",
        "concurrency",
        "generation",
        "limiter",
        "mailbox",
        "rate_until",
        "rates",
        "room_line",
        "timer",
        "told",
        "told_until",
        "touched",
        "turns",
        "wake_at",
        "watched",
        "wrap",
    )

    limiter: trio.CapacityLimiter | None
    mailbox: Mailbox | None

    def __init__(self, turns: Turns, config: LaneConfig) -> None:
        super().__init__(config)
        self.concurrency: float = config.concurrency  # its own limit
        self.bounded = config.max_waiting != math.inf
        self.rates = Rates.of(config.rate)
        self.wrap = config.wrap
        self.limiter = None
        self.mailbox = None
        self.generation = 0  # how often it was reset
        self.turns = turns  # where it stands while it is touched
        self.touched = False  # whether the loop is to serve it
        self.wake_at = math.inf  # when it is to be served although no act touches it
        self.timer: Timer | None = None  # set for that
        self.rate_until = -math.inf  # until when its head waits, or waited, for a rate limit
        self.told_until = -math.inf  # the last of these times that hooks know of
        self.watched = False  # whether a task waits until it runs nothing, or is empty
        self.told = (False, False)  # whether hooks know of waiting, and of unended jobs
        self.room_line: OrderedDict[AnyJob, RoomRequest] | None = None  # {job: waits for room}

    @property
    @abstractmethod
    def name(self) -> str:
        """Its full name; a session's begins with ``session:``."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """How many jobs that it answers for have not started, wherever they are."""

    @property
    @abstractmethod
    def active(self) -> int:
        """How many jobs run."""

    @abstractmethod
    def waiting_jobs(self) -> Iterable[AnyJob]:
        """The jobs that wait and that it answers for."""

    @abstractmethod
    def running_jobs(self) -> list[AnyJob]:
        """The jobs that run, in the order of submission."""

    @abstractmethod
    def step(self) -> None:
        """Take the mail: put each job in it in order."""

    def touch(self) -> None:
        if not self.touched:
            self.touched = True
            self.turns.append(self)

    @property
    def has_room(self) -> bool:
        """Whether one more job may wait in it."""
        return self.waiting < self.config.max_waiting

    @property
    def is_in_use(self) -> bool:
        """Whether it has to stay alive: for a job, for a request for room, or for a pause."""
        has_work = self.waiting or self.active or self.room_line
        return bool(has_work or (self.paused and self.pause != NOT_PAUSED))

    def set_config(self, config: LaneConfig, now: float) -> None:
        """Go on with another configuration; running jobs are not touched."""
        if config.rate != self.config.rate:
            self.rates = self.rates.reconfigured(rate_limits(config.rate), now)
        self.config = config
        self.wrap = config.wrap
        self.concurrency = config.concurrency
        self.bounded = config.max_waiting != math.inf
        self.wake_at = math.inf  # the next step knows better
        if self.limiter is not None and config.limiter is None:
            self.limiter.total_tokens = config.concurrency
        self.touch()
