"""Bounded lanes: who may enter at once, and who waits for room, in order.

A lane is full when ``max_waiting`` jobs wait in it. A job that would start at once does not wait,
so it is let into a full lane as well. Whoever waits for room stands in the line of the session
first, while that is full, and then in that of the global lane; there it has its room in the
session already. Lines are looked at when a transition has settled, and one is let in at a time,
so that it is known what would start at once. Whoever is held up by nothing but its own session,
which is busy or paused, is passed over in the line of its global lane.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, final

import attrs
import trio
from trio.lowlevel import Abort, Task

from ._actor import Actor
from ._job import AnyJob, RaiseCancel
from ._lane import LaneActor
from ._session import SessionActor


@final
@attrs.define(eq=False)
class Entrant:
    """A submission that waits for room."""

    job: AnyJob
    """What is accepted when there is room; nobody else knows it until then."""
    by_job: bool
    """Whether a running job of these lanes submits it, and so may do that while they close."""
    session: SessionActor | None
    task: Task = attrs.field(factory=trio.lowlevel.current_task, init=False)
    actor: Actor = attrs.field(init=False)
    """In whose line for room it stands."""

    async def wait(self, give_up: Callable[[Entrant], None]) -> None:
        """Wait until the job has been accepted; if this is cancelled, it has not been."""

        def abort(raise_cancel: RaiseCancel) -> Abort:
            give_up(self)
            return Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


@final
class Lines:
    """The lines of all who wait for room. It is true while one is to be looked at."""

    def __init__(self) -> None:
        self.length = 0  # of all of them together
        self._unseen: Final[dict[Actor, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._unseen)

    def join(self, entrant: Entrant) -> None:
        """Wait for room, behind those who do already."""
        lane, session = entrant.job._lane, entrant.session
        self.length += 1
        lane.entrants += 1
        self._stand(entrant, session if session is not None and _full(session) else lane)

    def leave(self, entrant: Entrant) -> None:
        """Wait for room no more."""
        self.length -= 1
        entrant.job._lane.entrants -= 1
        self._step_out(entrant)

    def _stand(self, entrant: Entrant, actor: Actor) -> None:
        entrant.actor = actor
        if actor.room_line is None:
            actor.room_line = OrderedDict()
        actor.room_line[entrant.task] = entrant
        if entrant.session is not None and entrant.session is not actor:
            entrant.session.entering += 1

    def _step_out(self, entrant: Entrant) -> None:
        actor = entrant.actor
        assert actor.room_line is not None
        del actor.room_line[entrant.task]
        if not actor.room_line:
            actor.room_line = None
        if entrant.session is not None and entrant.session is not actor:
            entrant.session.entering -= 1

    def look_at(self, actor: Actor, lanes: Iterable[LaneActor]) -> None:
        """Have the lines looked at that may move because ``actor`` has taken a step."""
        if actor.room_line:
            self._unseen[actor] = None
        if isinstance(actor, SessionActor) and actor.entering:
            self._unseen.update((lane, None) for lane in lanes if lane.room_line)

    def next(self) -> Entrant | None:
        """Take out one who may enter now; None if one line more has nobody like that."""
        actor = next(iter(self._unseen))
        if isinstance(actor, LaneActor):
            entrant = _first_to_enter(actor)
            if entrant is not None:
                self.leave(entrant)
                return entrant
        elif actor.room_line and isinstance(actor, SessionActor) and not _no_room_in(actor):
            entrant = next(iter(actor.room_line.values()))
            lane = entrant.job._lane
            self._step_out(entrant)
            self._stand(entrant, lane)
            self._unseen[lane] = None
            return None
        del self._unseen[actor]
        return None


def in_the_way(lane: LaneActor, session: SessionActor | None, *, settled: bool) -> Actor | None:
    """Where a newcomer finds no room, or others who wait for it.

    Unless all is ``settled``, nothing starts at once.
    """
    if session is not None and _full(session):
        return session
    if settled and _starts_at_once(lane, session):
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
    for entrant in (lane.room_line or {}).values():
        if not lane.has_room and not _has_slot(lane):
            return None
        session = entrant.session
        if _starts_at_once(lane, session):
            return entrant
        if lane.has_room and (session is None or session.has_room):
            return entrant
    return None


def _starts_at_once(lane: LaneActor, session: SessionActor | None) -> bool:
    return _has_slot(lane) and (
        session is None
        or not (session.paused or session.waiting or session.active >= session.concurrency)
    )


def _has_slot(lane: LaneActor) -> bool:
    return not (lane.paused or lane.backlog.items or lane.active >= lane.concurrency)
