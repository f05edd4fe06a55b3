"""What session lanes and global lanes have in common.

An actor is its state, its mailbox, and one synchronous `step`, taken after every transition that
may matter to it: mail arrived, a job ended, a limit changed. It has no task of its own, since
whatever could make it act is itself a transition.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import trio

from .options import LaneConfig
from .job import AnyJob
from .._limits.rate import Rates, rate_limits
from .._queue.timers import Timer

if TYPE_CHECKING:
    from .lane import LaneActor
    from .._waiting.room import Entrant
    from .template import Template
    from .._waiting.watch import Watches


class Steps(Protocol):
    """What can be touched, and then takes a step."""

    touched: bool

    @property
    def turns(self) -> Turns:
        """The line in which it then stands."""

    def step(self) -> None:
        """Do what can be done now."""


Turns: TypeAlias = "deque[Steps]"
"""Those of one kind that are touched, in order."""


class Floor(Protocol):
    """What actors share: what they may ask for, and where they are served."""

    @property
    def now(self) -> float:
        """When the present transition began."""

    @property
    def lanes(self) -> Mapping[str, LaneActor]:
        """The global ones that are alive, by name."""

    @property
    def templates(self) -> Mapping[str, Template]:
        """The templates of global lanes, by name."""

    @property
    def watches(self) -> Watches: ...
    @property
    def session_turns(self) -> Turns: ...
    @property
    def lane_turns(self) -> Turns: ...
    def spawn(self, fn: Callable[[], Coroutine[Any, Any, None]]) -> None: ...
    def transition(self) -> AbstractContextManager[None]: ...
    def touch(self, actor: Steps) -> None: ...
    def touch_at(self, when: float, actor: Steps, timer: Timer | None) -> Timer: ...
    def start(self, job: AnyJob) -> None: ...
    def regained(self, job: AnyJob) -> None: ...
    def never_comes(self, job: AnyJob) -> bool: ...
    def goes_without(self, job: AnyJob) -> None: ...
    def forward(self, job: AnyJob, arrival: int) -> None: ...
    def next_arrival(self) -> int: ...
    def next_return(self) -> int: ...
    def retire(self, actor: Actor) -> None: ...
    def warn_later(self, lane: LaneActor) -> None: ...
    def rate_limited(self, actor: Actor, until: float) -> None: ...


class Pausable(ABC):
    """What can be paused: a lane of either layer, or a template of global lanes."""

    __slots__ = (
        "config",
        "floor",
        "pause_timer",
        "paused",
        "paused_by_hand",
        "paused_until",
        "touched",
        "turns",
    )

    config: LaneConfig
    floor: Floor
    pause_timer: Timer | None
    paused: bool
    paused_by_hand: bool
    paused_until: float | None  # when a pause ends by itself
    touched: bool  # whether it is in line for a step
    turns: Turns  # the line for that

    @abstractmethod
    def step(self) -> None:
        """Do what can be done now."""

    @property
    def pause(self) -> tuple[bool, float | None]:
        """Whether it is paused until it is resumed, and until when it is paused by a timer."""
        # When the lanes are shut, no timer is set any more: there is no time to wait for.
        timed = self.pause_timer is not None and self.pause_timer.is_set
        return self.paused_by_hand, self.paused_until if timed else None


class Actor(Pausable):
    """One lane, of either layer."""

    __slots__ = (
        "_awaits_charge",
        "_rate_timer",
        "active",
        "bounded",
        "concurrency",
        "generation",
        "limiter",
        "rates",
        "room_line",
        "told",
        "waiting",
        "watched",
        "wrap",
    )

    limiter: trio.CapacityLimiter | None

    def __init__(self, floor: Floor, turns: Turns, config: LaneConfig) -> None:
        self.floor = floor
        self.config = config
        self.concurrency = config.concurrency  # the limiter's total_tokens, if it is its own
        self.bounded = config.max_waiting != math.inf
        self.rates = Rates.of(config.rate)
        self.wrap = config.wrap
        self.limiter = None
        self.waiting = 0  # jobs that it answers for and that have not started, wherever they are
        self.active = 0  # jobs that run
        self.paused = self.paused_by_hand = config.paused
        self.paused_until = None
        self.pause_timer = None
        self._rate_timer: Timer | None = None
        self._awaits_charge = False  # whether that is set for a head, here or in line for room
        self.generation = 0  # how often it was reset
        self.touched = False
        self.turns = turns
        self.watched = False  # whether somebody waits for it to run nothing, or to be empty
        self.told = (False, False)  # whether instruments know of waiting, and of unended jobs
        self.room_line: OrderedDict[AnyJob, Entrant] | None = None  # who waits for room in it

    @property
    @abstractmethod
    def name(self) -> str:
        """Its full name; a session's begins with ``session:``."""

    @abstractmethod
    def waiting_jobs(self) -> Iterable[AnyJob]:
        """The jobs that wait and that it answers for."""

    @abstractmethod
    def running_jobs(self) -> list[AnyJob]:
        """The jobs that run, in the order of submission."""

    @property
    def has_room(self) -> bool:
        """Whether one more job may wait in it."""
        return self.waiting < self.config.max_waiting

    @property
    def is_idle(self) -> bool:
        """Whether it can be forgotten: nothing in it, nobody at it, and nothing to remember."""
        if self.waiting or self.active or self.room_line or self.pause != self.pause_at_birth:
            return False
        if self.rates.units:
            full = self.rates.refilled_at(self.floor.now)
            if full > self.floor.now:
                self._rate_timer = self.floor.touch_at(full, self, self._rate_timer)
                return not self._rate_timer.is_set
        return True

    @property
    def pause_at_birth(self) -> tuple[bool, float | None]:
        """The pause with which it can be forgotten, since it would come to life with it again."""
        return False, None

    def wait_for_rate(self, until: float) -> None:
        """Look again when the rates let the head start."""
        if self._rate_timer is None or self._rate_timer.when != until:
            self.floor.rate_limited(self, until)
        self.look_again_for_head(until)

    def look_again_for_head(self, when: float) -> None:
        """Take a step at ``when``, unless no head waits for a rate any more."""
        self._rate_timer = self.floor.touch_at(when, self, self._rate_timer)
        self._awaits_charge = True

    def wait_for_no_rate(self) -> None:
        """Cancel the timer that was set for a head, which is gone or waits for something else."""
        if self._awaits_charge:
            self._awaits_charge = False
            assert self._rate_timer is not None
            self._rate_timer.cancel()

    def set_config(self, config: LaneConfig) -> None:
        """Go on with another configuration; running jobs are not touched."""
        if config.rate != self.config.rate:
            self.rates = self.rates.reconfigured(rate_limits(config.rate), self.floor.now)
            self.wait_for_no_rate()
        self.config = config
        self.wrap = config.wrap
        self.concurrency = config.concurrency
        self.bounded = config.max_waiting != math.inf
        if self.limiter is not None and config.limiter is None:
            self.limiter.total_tokens = config.concurrency
        self.floor.touch(self)
