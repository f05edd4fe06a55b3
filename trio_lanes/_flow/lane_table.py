"""Which lanes there are, configured or coming and going, and what handles change in them later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

import trio

from .._lifecycle import control as _control

from .._waiting import deadlock as _deadlock
from .._actors.actor import Actor
from .._actors.group import Group
from .._instrument import Hooks
from .._actors.job import AnyJob
from .._actors.lane import LaneActor
from .._limits.meters import exact
from .._actors.plan import Plan
from .._limits.rate import costs_of
from .._actors.session import SessionActor, Spares
from .._actors.state import WAITING
from .._actors.template import Template
from .transitions import Transitions

if TYPE_CHECKING:
    from .scheduler import Scheduler


class LaneTable(Transitions):
    """The lanes of one `open_lanes`, of both layers, and their groups."""

    __slots__ = (
        "bounded_sessions",
        "groups",
        "plan",
        "sessions",
        "spares",
        "templates",
    )

    def __init__(self, nursery: trio.Nursery, hooks: Hooks) -> None:
        super().__init__(nursery, hooks)
        self.plan = Plan()
        self.sessions: Final[dict[str, SessionActor]] = {}  # {key: actor}
        self.templates: Final[dict[str, Template]] = {}  # of global lanes, by name
        self.groups: Final[dict[str, Group]] = {}
        self.bounded_sessions = False  # whether any session has a bound
        self.spares: Final = Spares()

    @property
    def _floor(self) -> Scheduler:
        """Itself, as actors know it."""
        return cast("Scheduler", self)

    def find_lane(self, name: str) -> LaneActor | None:
        """The global lane of that name; if it comes from a template, it need not be alive yet."""
        lane = self.lanes.get(name)
        if lane is None:
            label = self.plan.label_of(name)
            if label is not None:
                lane = LaneActor(self._floor, name, label, self.plan.lanes[label])
                lane.inherit_pause(self.templates[label])
                self.join_group(lane)
        return lane

    def bring_to_life(self, lane: LaneActor) -> LaneActor:
        """Return the global lane of that name that is alive: ``lane``, unless there is another."""
        alive = self.lanes.get(lane.name)
        if alive is None:
            self.check_thread()
            alive = self.lanes[lane.name] = lane
            _control.end_inherited_pause(self._floor, lane)
        return alive

    def join_group(self, lane: LaneActor) -> None:
        """Put ``lane`` into the group that the plan says, if any."""
        group = self.plan.group_of(lane.label)
        lane.group = None if group is None else self.groups[group]
        lane.find_out_whether_plain()

    def awake(self, key: str) -> SessionActor:
        """The lane of the session ``key``, alive."""
        self.check_thread()
        session = self.sessions[key] = self.session_lane(key)
        return session

    def retire(self, actor: Actor) -> None:
        """Forget a session's or a template's lane in which nothing waits or runs."""
        if isinstance(actor, SessionActor):
            if self.sessions.get(actor.key) is actor:
                del self.sessions[actor.key]
        elif self.lanes.get(actor.name) is actor:
            del self.lanes[actor.name]

    def session_lane(self, key: str) -> SessionActor:
        """The lane of the session ``key``; it need not be alive."""
        session = self.sessions.get(key)
        if session is None:
            session = SessionActor(self._floor, self.spares, key, self.plan.of_session(key))
        return session

    def lanes_of(self, job: AnyJob) -> tuple[LaneActor, SessionActor | None]:
        """The lanes of ``job``, which may have ended: they need not be alive, or are others now."""
        session = None if job.session is None else self.session_lane(job.session)
        return self.find_lane(job.lane) or job._lane, session

    def let_remember(self, lane: LaneActor, session: SessionActor | None) -> None:
        """Have these lanes alive if there are rates of theirs, which are about to be charged."""
        if lane.from_template and lane.rates.units:
            self.bring_to_life(lane)
        if session is not None and session.rates.units:
            self.sessions.setdefault(session.key, session)

    def actors(self) -> list[Actor]:
        """Every lane that is alive, of both layers."""
        return [*self.lanes.values(), *self.sessions.values()]

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return sum(lane.waiting for lane in self.lanes.values())

    @property
    def active(self) -> int:
        """How many jobs run."""
        return sum(lane.active for lane in self.lanes.values())

    def charge(self, job: AnyJob, units: Mapping[str, float]) -> None:
        """`Job.charge`."""
        charged = job._charged
        if charged is None:
            raise RuntimeError(f"{job!r} has not started, or has been charged before")
        lane, session = self.lanes_of(job)
        lane.check_cost(costs_of(units), session, job._charged_group)
        with self.transition():
            job._charged = None
            self.let_remember(lane, session)
            more = {unit: exact(used) - exact(charged.get(unit, 0)) for unit, used in units.items()}
            # The group is the one that was charged; the lane may be in another by now.
            for actor in (lane, session, job._charged_group):
                if actor is not None:
                    actor.rates.correct(more, self.now, job._charged_at)
                    self.touch(actor)

    def set_priority(self, job: AnyJob, priority: int) -> None:
        """Give ``job``, which waits, another priority: it goes behind its new equals."""
        scheduler = self._floor
        with self.transition():
            place, session = scheduler.next_arrival(), job._session_lane
            if job.id in job._lane.delayed:
                job._priority = priority
            elif session is not None:
                session.move(job, priority, place)
                self.touch(session)
            else:
                job._lane.remove(job)
                job._priority, job._arrival = priority, place
                job._lane.mailbox.send(job)
                self.touch(job._lane)
        if scheduler.waits and job._state is WAITING:
            _deadlock.moved(scheduler, job)
