"""The base class of session lanes and global lanes.

An actor owns a limiter, a mailbox, and a step. The borrowers of the limiter are the jobs that run,
the mailbox takes the jobs that arrive, and the step puts them in order. The actor then answers
questions: a session lane, which job to forward; a global lane, which job may start.
The loop (`trio_lanes._flow.loop`) asks these questions after every change that touches the actor,
and acts on the answers. So an actor has no task of its own, and no other module changes its data:
what others have to change, its methods change. The same holds for groups.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import trio

from .._config.exact import Exact
from .._limits.adaptive import Adaptive
from .._limits.rate import Rates, rate_limits
from .._queue.timers import Timer
from .job import AnyJob
from .mailbox import Mailbox
from .options import LaneConfig
from .wait_log import Account

if TYPE_CHECKING:
    from .wait import RoomRequest


def changed_by_others(name: str) -> RuntimeError:
    """The error for a limiter without a token for the free slot of the lane ``name``."""
    return RuntimeError(
        f"lane {name!r} has a free slot, but its limiter has no token: other code has taken a "
        "token, or has set `total_tokens`. The limiter of a lane is for reading: set the "
        "concurrency of the lane, or share a limiter with it by LaneConfig(limiter=...)"
    )


Turns: TypeAlias = "deque[Any]"
"""The actors of one kind that have been touched, in the order in which the loop serves them."""


class Served:
    """An object that the loop serves: an actor or a group. Its classes have the attributes."""

    if TYPE_CHECKING:
        name: Any
        rate_until: float
        rates: Rates
        timer: Timer | None
        announced_until: float
        touched: bool
        turns: Turns
        wake_at: float
    else:
        __slots__ = ()  # only one base of an actor may have slots of its own

    def touch(self) -> None:
        """Have the loop serve it before the present batch ends."""
        if not self.touched:
            self.touched = True
            self.turns.append(self)

    def touch_first(self) -> None:
        """Have the loop go on with it, before all others of its kind."""
        self.touched = True
        self.turns.appendleft(self)

    def wake_by(self, when: float) -> None:
        """Have it served at ``when``, if it is not to be served before. The loop sets the timer."""
        self.wake_at = min(self.wake_at, when)

    def keep_timer(self, timer: Timer | None) -> None:
        """Keep the timer that was set for ``wake_at``, in place of the one that it had."""
        former, self.timer = self.timer, timer
        if former is not None:
            former.cancel()  # last: without any timer, the task of the timers would end

    def announce_rate(self) -> None:
        """Note that hooks know until when its head waits for a rate limit."""
        self.announced_until = self.rate_until

    def correct(self, more: Mapping[str, Exact], now: float, at: float) -> None:
        """Charge ``more`` by unit to the start that was charged at ``at``."""
        self.rates.correct(more, now, at)
        self.touch()


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

    @property
    def paused_for_ever(self) -> bool:
        """Whether it stays paused when its timed pause is over, until it is resumed."""
        return self.paused_by_config or self.paused_by_hand

    # Each of these changes one of its pauses. The loop then has it `update_paused`.

    def pause_by_config(self) -> None:
        """Be paused, or not, as its configuration says now."""
        self.paused_by_config = self.config.paused

    def pause_by_hand(self) -> None:
        """Be paused until it is resumed."""
        self.paused_by_hand = True

    def pause_until(self, until: float, timer: Timer) -> None:
        """Be paused until ``until``, when ``timer`` ends that, in place of its timed pause."""
        former = self.pause_timer
        self.paused_until, self.pause_timer = until, timer
        if former is not None:
            former.cancel()

    def end_timed_pause(self) -> None:
        """End its timed pause, and cancel the timer."""
        self.paused_until = None
        if self.pause_timer is not None:
            self.pause_timer.cancel()
            self.pause_timer = None

    def resume(self) -> None:
        """End all of its pauses, that of its configuration too."""
        self.paused_by_config = self.paused_by_hand = False
        self.end_timed_pause()

    def update_paused(self) -> bool:
        """Set ``paused`` as its pauses say; return whether that is a change."""
        self.touch()  # also a session that was not paused: it may go
        former = self.paused
        by_call = self.paused_by_hand or self.paused_until is not None
        self.paused = self.paused_by_config or by_call
        return self.paused is not former


class Announced(NamedTuple):
    """What hooks know of a lane: whether it has jobs that wait, and jobs that have not ended."""

    waiting: bool
    unended: bool


NOTHING_ANNOUNCED: Final = Announced(waiting=False, unended=False)


class Actor(Served, Pausable):
    """One lane, of either layer."""

    __slots__ = (
        "account",
        "announced",
        "announced_until",
        "bounded",
        "concurrency",
        "generation",
        "limiter",
        "mailbox",
        "rate_until",
        "rates",
        "room_line",
        "timer",
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
        limit = config.concurrency  # not `first_concurrency`, to spare each session a call
        self.concurrency: float = limit.low if isinstance(limit, Adaptive) else limit
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
        self.announced_until = -math.inf  # the last of these times that hooks know of
        self.watched = False  # whether a task waits until it runs nothing, or is empty
        self.announced = NOTHING_ANNOUNCED
        self.room_line: OrderedDict[AnyJob, RoomRequest] | None = None  # {job: waits for room}
        self.account: Account | None = None  # of the waits of its jobs, if there is to be one

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

    # ---- what others note

    def announce(self) -> tuple[bool, bool]:
        """Note what hooks know from now on; return whether it became empty, and idle, since."""
        had = self.announced
        has = self.announced = Announced(bool(self.waiting), bool(self.waiting or self.active))
        return had.waiting and not has.waiting, had.unended and not has.unended

    def account_from(self, now: float) -> Account:
        """Account for the waits of its jobs from now on."""
        self.account = Account(now)
        return self.account

    def drop_account(self) -> None:
        """No job waits any more."""
        self.account = None

    def watch(self, watched: bool) -> None:
        """Note whether a task waits until it runs nothing, or is empty."""
        self.watched = watched

    def count_reset(self) -> None:
        self.generation += 1

    # ---- requests for room

    def take_room_request(self, request: RoomRequest) -> None:
        """Put ``request`` into its line."""
        if self.room_line is None:
            self.room_line = OrderedDict()
        self.room_line[request.job] = request

    def drop_room_request(self, request: RoomRequest) -> None:
        """Take ``request`` out of its line."""
        assert self.room_line is not None
        del self.room_line[request.job]
        if not self.room_line:
            self.room_line = None

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
        self.concurrency = config.first_concurrency
        self.bounded = config.max_waiting != math.inf
        self.wake_at = math.inf  # the next step knows better
        if self.limiter is not None and config.limiter is None:
            self.limiter.total_tokens = config.first_concurrency
        self.touch()
