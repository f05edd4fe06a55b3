"""The views of one lane: its state, and the verbs of `Lanes` bound to it."""

from __future__ import annotations

import math
from abc import abstractmethod
from itertools import islice
from typing import Any

import trio
from trio.lowlevel import enable_ki_protection

from ._actors.actor import Actor
from ._actors.job import AnyJob
from ._actors.lane import LaneActor
from ._actors.options import LaneConfig
from ._actors.session import SessionActor
from ._config.check import natural, positive_count
from ._config.errors import UnknownLaneError
from ._config.names import SESSION_PREFIX
from ._flow.loop import Scheduler
from ._lifecycle import control as _control
from ._lifecycle.configure import set_concurrency
from ._limits.adaptive import LimitTried
from ._observe.statistics import (
    LaneStatistics,
    SessionStatistics,
    describe,
    lane_statistics,
    session_statistics,
)
from ._submission import Submitter


class OneLane(Submitter):
    """The verbs of `Lanes` that act on one lane, for that lane."""

    _name: str

    @property
    def name(self) -> str:
        """Its full name; the name of a session's lane begins with ``session:``."""
        return self._name

    @property
    @abstractmethod
    def _actor(self) -> Actor:
        """The lane itself, alive or not."""

    @property
    def config(self) -> LaneConfig:
        """Its configuration; that of a global lane with its present concurrency, unless its limiter
        is shared."""
        return self._actor.config

    @property
    def paused(self) -> bool:
        """Whether it starts nothing until it is resumed."""
        return self._actor.paused

    @property
    def waiting(self) -> int:
        """How many of its jobs have not started: of a global lane, in both layers."""
        return self._actor.waiting

    @property
    def active(self) -> int:
        """How many of its jobs run."""
        return self._actor.active

    @property
    def generation(self) -> int:
        """How often it was reset: a session's lane, since it came to life."""
        return self._actor.generation

    def jobs(self) -> list[AnyJob]:
        """Return the jobs that wait or run there, in the order of submission, in linear time."""
        return _control.jobs_in(self._scheduler, self.name)

    def waiters(self, n: int) -> list[AnyJob]:
        """Return the first ``n`` of its jobs that have not started; no later job is read.

        Of a global lane, those that have waited longest, in both layers, and after them those that
        are not due yet. Of a session's lane, those that it has forwarded, and then the next ones.

        Raises:
          TypeError, ValueError: if ``n`` is no whole number from 0 up.
        """
        return list(islice(self._actor.waiting_jobs(), natural("n", n)))

    @enable_ki_protection
    def clear(self, *, owner: object = _control.ANY_OWNER, reason: str | None = None) -> int:
        """`Lanes.clear` for this lane."""
        return _control.clear(self._scheduler, self.name, owner, reason)

    @enable_ki_protection
    def reset(self) -> int:
        """`Lanes.reset` for this lane."""
        return _control.reset(self._scheduler, self.name)

    @enable_ki_protection
    def pause(self) -> None:
        """`Lanes.pause` for this lane. A session's lane stays alive until it is resumed."""
        _control.pause(self._scheduler, self.name)

    @enable_ki_protection
    def pause_for(self, seconds: float) -> None:
        """`Lanes.pause_for` for this lane."""
        _control.pause_for(self._scheduler, self.name, seconds)

    @enable_ki_protection
    def resume(self) -> None:
        """`Lanes.resume` for this lane."""
        _control.resume(self._scheduler, self.name)

    async def wait_active(self, *, timeout: float = math.inf) -> bool:
        """`Lanes.wait_active` for this lane."""
        return await _control.wait_active(self._scheduler, self.name, timeout)

    async def wait_idle(self) -> None:
        """`Lanes.wait_idle` for this lane."""
        await _control.wait_until(self._scheduler, self.name, idle=True)

    async def wait_empty(self) -> None:
        """`Lanes.wait_empty` for this lane."""
        await _control.wait_until(self._scheduler, self.name)

    async def wait_room(self, n: int) -> None:
        """`Lanes.wait_room` for this lane."""
        await _control.wait_until(self._scheduler, self.name, fewer_than=positive_count("n", n))


class Lane(OneLane):
    """A global lane, ``lanes.lane("main")``, with the verbs of `Lanes` for this lane."""

    _of_hook: LaneActor | None  # the actor that a hook was called for; it may be gone by then

    @classmethod
    def _create(cls, scheduler: Scheduler, name: str, of_hook: LaneActor | None = None) -> Lane:
        lane = cls.__new__(cls)
        lane._scheduler = scheduler
        lane._name = name
        lane._of_hook = of_hook
        lane._bound = {"lane": name}
        return lane

    @property
    def _actor(self) -> LaneActor:
        """The present actor: a template's lane comes and goes, and a lane may be removed.

        Raises:
          UnknownLaneError: if there is no such lane any more.
        """
        actor = self._found
        if actor is None:
            raise UnknownLaneError(self._name, self._scheduler.registry.plan.lanes)
        return actor

    @property
    def _found(self) -> LaneActor | None:
        alive = self._scheduler.lanes.get(self._name)
        return alive or self._of_hook or self._scheduler.registry.find_or_make_lane(self._name)

    def __repr__(self) -> str:
        actor = self._found
        if actor is None:
            return f"<trio_lanes.Lane {self._name!r}, removed>"
        return describe("Lane", actor)

    @property
    def label(self) -> str:
        """Its name, or the name of its template, for the label of a metric."""
        return self._actor.label

    @property
    def limiter(self) -> trio.CapacityLimiter:
        """Its slots, for reading: the borrowers are the jobs that run."""
        return self._actor.limiter

    @property
    def concurrency(self) -> int | float:
        """How many jobs it runs at once; may be set at any time.

        Raising it starts waiting jobs at once; lowering it stops no running job. For a template's
        lane it lasts until that lane goes, or its template is configured.

        An `Adaptive` concurrency is what it has learned so far; a number that is set replaces it.

        Raises:
          TypeError, ValueError: if the value is neither a whole number from 0 up nor `math.inf`.
        """
        return self._actor.limiter.total_tokens

    @concurrency.setter
    @enable_ki_protection
    def concurrency(self, value: int | float) -> None:
        set_concurrency(self._scheduler, self._actor, value)

    @property
    def limits_tried(self) -> tuple[LimitTried, ...]:
        """The last 30 limits that its `Adaptive` concurrency has tried, the present one last.

        Empty without one, and while it has the first.
        """
        tuner = self._actor.tuner
        return () if tuner is None else tuple(tuner.tried)

    def head(self, n: int) -> list[AnyJob]:
        """Return the first ``n`` jobs of its line, the next to start first.

        Its line has the jobs without a session, the jobs that sessions have forwarded, and running
        jobs that are readmitted. Later jobs of the line are not read.

        Raises:
          TypeError, ValueError: if ``n`` is no whole number from 0 up.
        """
        actor = self._actor
        actor.step()
        return list(islice(actor.line.in_order(), natural("n", n)))

    def running(self, n: int) -> list[AnyJob]:
        """Return the first ``n`` of its running jobs, in the order of submission.

        No waiting job is read.

        Raises:
          TypeError, ValueError: if ``n`` is no whole number from 0 up.
        """
        return self._actor.running_jobs()[: natural("n", n)]

    def overdue(self, n: int) -> list[AnyJob]:
        """Return the first ``n`` running jobs that were to stop ``overdue_after`` seconds ago, by
        their timeout or a cancellation: those that were to stop first come first.

        Raises:
          TypeError, ValueError: if ``n`` is no whole number from 0 up.
        """
        return list(islice(self._actor.overdue, natural("n", n)))

    def statistics(self) -> LaneStatistics:
        """Return its numbers at this moment."""
        return lane_statistics(self._actor, self._scheduler.current_time())


class SessionLane(OneLane):
    """The lane of one session: ``lanes.session("alice")``. It need not be alive.

    This is a view: making or reading it does not bring the lane to life.
    """

    _key: str

    @classmethod
    def _create(cls, scheduler: Scheduler, key: str) -> SessionLane:
        session = cls.__new__(cls)
        session._scheduler = scheduler
        session._key = key
        session._name = SESSION_PREFIX + key
        session._bound = {"session": key}
        return session

    def __repr__(self) -> str:
        actor = self._scheduler.sessions.get(self._key)
        if actor is None:
            return f"<trio_lanes.SessionLane {self.name!r}, not alive>"
        return describe("SessionLane", actor)

    @property
    def key(self) -> str:
        """The session's key."""
        return self._key

    @property
    def _actor(self) -> SessionActor:
        return self._scheduler.registry.session_lane(self._key)

    @property
    def limiter(self) -> trio.CapacityLimiter:
        """Its slots, for reading: the borrowers are the jobs that run.

        It is made when it is first read, and is kept up to date as long as it is referenced.
        """
        return self._scheduler.registry.session_limiter(self._key)

    @property
    def concurrency(self) -> int | float:
        """How many of its jobs may run at once; `Lanes.configure` changes it."""
        return self.config.first_concurrency

    def statistics(self) -> SessionStatistics:
        """Return its numbers at this moment."""
        return session_statistics(self._actor)


def view_of(scheduler: Scheduler, actor: Any) -> Lane | SessionLane:
    """Return the view of ``actor`` that hooks are called with."""
    if isinstance(actor, LaneActor):
        return Lane._create(scheduler, actor.name, actor)
    return SessionLane._create(scheduler, actor.key)
