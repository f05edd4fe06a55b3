"""Bounded lanes: who may enter at once, and who waits for room, in order.

A lane is full when ``max_waiting`` jobs wait in it. A job that would start at once does not wait,
so it is let into a full lane as well. Whoever waits for room stands in the line of the session
first, while that is full, and then in that of the global lane; there it has its room in the
session already. Lines are looked at when a transition has settled, and one is let in at a time,
so that it is known what would start at once. Whoever is held up by nothing but its own session,
which is busy or paused, is passed over in the line of its global lane; and so is a job with a
delay, by those who would start at once, as it never would. Tasks, which wait, stand in the same
lines as threads, which are told.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Final, final

import attrs
import outcome
import trio
from trio.lowlevel import Abort

from .._actors.actor import Actor, Steps
from .current import job_here
from .._actors.group import Group
from .._actors.job import AnyJob
from .._actors.lane import LaneActor
from .._actors.session import SessionActor
from .waits import RaiseCancel, Wait

if TYPE_CHECKING:
    from .._flow.scheduler import Scheduler


@final
@attrs.define(eq=False)
class Entrant:
    """A submission that waits for room."""

    job: AnyJob
    """What is accepted when there is room; nobody else knows it until then."""
    inside: bool
    """Whether a running job of these lanes submits it, as it may while they close."""
    session: SessionActor | None
    tell: Callable[[outcome.Maybe[None]], None]
    """Tells it that the job was accepted, or why it will not be; never raises."""
    actor: Actor = attrs.field(init=False)
    """In whose line for room it stands."""
    order: int = attrs.field(init=False)
    """Its place in that line."""


@final
class Lines:
    """The lines of all who wait for room."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler: Final = scheduler
        self.length = 0  # of all of them together
        self._unseen: Final[dict[Actor, None]] = {}
        self._orders: Final = count()

    def no_room_for(self, job: AnyJob) -> Actor | None:
        """The lane without room for ``job``, or where others wait for room before it."""
        scheduler, lane = self._scheduler, job._lane
        if not (lane.bounded or scheduler.bounded_sessions):
            return None
        options = job._options
        if not (options.queue_timeout or options.delay):
            return None  # what cannot wait needs no room for that
        session = None if job.session is None else scheduler.session_lane(job.session)
        return _in_the_way(job, lane, session, settled=not scheduler.serving)

    async def wait(self, job: AnyJob, *, runs: bool) -> None:
        """Accept ``job`` when it is its turn; if this is cancelled, it has not been accepted.

        Args:
          runs: whether this task will then wait for the end of the job.

        Raises:
          LaneDeadlockError: if that would never be.
          LanesClosedError: if the lanes close meanwhile, unless one of their jobs submits it.
        """
        task = trio.lowlevel.current_task()

        def tell(what: outcome.Maybe[None]) -> None:
            wait.end()
            trio.lowlevel.reschedule(task, what)

        entrant = self.join(job, tell)
        wait = Wait(task, job_here(self._scheduler.running), entrant=entrant, runs=runs)
        try:
            wait.begin()
        except BaseException:
            self.give_up(entrant)
            raise

        def abort(raise_cancel: RaiseCancel) -> Abort:
            wait.end()
            self.give_up(entrant)
            return Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def join(self, job: AnyJob, tell: Callable[[outcome.Maybe[None]], None]) -> Entrant:
        """Put ``job`` in line; ``tell`` is called when it is accepted or refused."""
        self._scheduler.check_thread()
        session = None if job.session is None else self._scheduler.awake(job.session)
        entrant = Entrant(job, self._scheduler.closing.inside, session, tell)
        lane = job._lane
        if lane.from_template:  # alive, so that those who change something find it
            lane = job._lane = self._scheduler.bring_to_life(lane)
        self.length += 1
        lane.entrants += 1
        self._stand(entrant, session if session is not None and _full(session) else lane)
        _look_out(lane)  # nothing has happened that would have it looked at
        return entrant

    def refuse(self, entrant: Entrant, error: Exception) -> None:
        """Let ``entrant`` wait no more, but tell it ``error``."""
        self._turn_away(entrant)
        entrant.tell(outcome.Error(error))

    def let_in(self) -> bool:
        """Have one accepted who has waited for room; whether there was one."""
        while self._unseen:
            entrant = self._next()
            if entrant is not None:
                entrant.tell(outcome.Value(None))
                self._scheduler.accept(entrant.job)
                return True
        return False

    def give_up(self, entrant: Entrant) -> None:
        """Take ``entrant`` out of line, as it wants to be."""
        with self._scheduler.transition():
            self._turn_away(entrant)

    def _turn_away(self, entrant: Entrant) -> None:
        self._leave(entrant)
        self._scheduler.touch(entrant.job._lane)  # which may have been alive only for this
        if entrant.session is not None:
            self._scheduler.touch(entrant.session)

    def _leave(self, entrant: Entrant) -> None:
        self.length -= 1
        entrant.job._lane.entrants -= 1
        self._step_out(entrant)

    def _stand(self, entrant: Entrant, actor: Actor) -> None:
        entrant.actor = actor
        if actor.room_line is None:
            actor.room_line = OrderedDict()
        actor.room_line[entrant.job] = entrant
        entrant.order = next(self._orders)
        if isinstance(actor, LaneActor) and not entrant.job._options.delay:
            line = actor.room_by_session.setdefault(entrant.session, OrderedDict())
            line[entrant.job] = entrant
            if len(line) == 1:
                actor.room_heads.add(entrant.order, entrant.session)
        if entrant.session is not None and entrant.session is not actor:
            entrant.session.entering += 1

    def _step_out(self, entrant: Entrant) -> None:
        actor = entrant.actor
        assert actor.room_line is not None
        del actor.room_line[entrant.job]
        if not actor.room_line:
            actor.room_line = None
        if isinstance(actor, LaneActor) and not entrant.job._options.delay:
            heads, of_session = actor.room_heads, actor.room_by_session[entrant.session]
            del of_session[entrant.job]
            if entrant.order in heads.items:
                heads.remove(entrant.order)
                if of_session:
                    heads.add(_first(of_session).order, entrant.session)
            if not of_session:
                del actor.room_by_session[entrant.session]
        if entrant.session is not None and entrant.session is not actor:
            entrant.session.entering -= 1

    def look_at(self, actor: Steps, lanes: Iterable[LaneActor]) -> None:
        """Have the lines looked at that may move because ``actor`` has taken a step."""
        if isinstance(actor, Actor) and actor.room_line:
            self._unseen[actor] = None
        if isinstance(actor, Group):
            self._unseen.update((lane, None) for lane in lanes if lane.room_line)
        elif isinstance(actor, SessionActor) and actor.entering:
            for lane in lanes:
                if lane.room_line:
                    self._unseen[lane] = None
                    line, heads = lane.room_by_session.get(actor), lane.room_heads
                    if line and (order := _first(line).order) not in heads.items:
                        heads.add(order, actor)

    def _next(self) -> Entrant | None:
        """Take out one who may enter now; None if one line more has nobody like that."""
        actor = next(iter(self._unseen))
        if isinstance(actor, LaneActor):
            entrant = _first_to_enter(actor)
            if entrant is not None:
                self._leave(entrant)
                return entrant
            _look_out(actor)
        elif actor.room_line and isinstance(actor, SessionActor) and not _no_room_in(actor):
            entrant = next(iter(actor.room_line.values()))
            lane = entrant.job._lane
            self._step_out(entrant)
            self._stand(entrant, lane)
            self._unseen[lane] = None
            return None
        del self._unseen[actor]
        return None


def _in_the_way(
    job: AnyJob, lane: LaneActor, session: SessionActor | None, *, settled: bool
) -> Actor | None:
    """Where a newcomer finds no room, or others who wait for it.

    Unless all is ``settled``, nothing starts at once.
    """
    if session is not None and _full(session):
        return session
    if settled and _starts_at_once(job, session):
        return None
    if session is not None and not session.has_room:
        return session
    return lane if not lane.has_room or (lane.room_line and not settled) else None


def _full(session: SessionActor) -> bool:
    return session.room_line is not None or _no_room_in(session)


def _no_room_in(session: SessionActor) -> bool:
    """Whether nobody more may pass the session's line: those who have, have their room in it."""
    return session.waiting + session.entering >= max(session.config.max_waiting, 1)


def _first_to_enter(lane: LaneActor) -> Entrant | None:
    has_room = lane.has_room
    if not has_room and not lane.may_start_newcomers:
        return None
    entrants: Iterable[Entrant] = (lane.room_line or {}).values() if has_room else _not_held(lane)
    for entrant in entrants:
        job, session = entrant.job, entrant.session
        if _starts_at_once(job, session):
            return entrant
        if has_room and (session is None or session.has_room):
            return entrant
        if not has_room and _lets_start(job, session):  # then its lane does not
            return None
    return None


def _look_out(lane: LaneActor) -> None:
    """Have the first looked at again when it may enter, where nobody but a clock will say so."""
    if lane.may_start_newcomers:
        for entrant in _not_held(lane):
            if _lets_start(entrant.job, entrant.session):
                lane.look_out_for(entrant.job)
                return
            assert entrant.session is not None
            entrant.session.look_out_for(entrant.job)


def _not_held(lane: LaneActor) -> Iterator[Entrant]:
    """Those in the line of ``lane`` whose sessions may let them start, in order.

    One that may not takes a step when it may, and its lane is looked at then.
    """
    heads, lines = lane.room_heads, lane.room_by_session
    while heads.items and _is_held(heads.best()):
        heads.remove(heads.best_rank())  # until that step
    if heads.items:
        first = _first(lines[heads.best()])
        yield first  # mostly it is enough, and spares a look at all sessions
        others = [lines[session].values() for session in heads.items.values()]
        for entrant in merge(*others, key=attrgetter("order")):
            if entrant is not first and not _is_held(entrant.session):
                yield entrant


def _first(line: Mapping[AnyJob, Entrant]) -> Entrant:
    return next(iter(line.values()))


def _is_held(session: SessionActor | None) -> bool:
    return session is not None and session.is_held


def _starts_at_once(job: AnyJob, session: SessionActor | None) -> bool:
    return not job._options.delay and job._lane.starts_at_once(job) and _lets_start(job, session)


def _lets_start(job: AnyJob, session: SessionActor | None) -> bool:
    return session is None or session.lets_start(job)
