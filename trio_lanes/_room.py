"""Bounded lanes: who may enter at once, and who waits for room, in order.

A lane is full when ``max_waiting`` jobs wait in it. A job that would start at once does not wait,
so it is let into a full lane as well. Whoever waits for room stands in the line of the session
first, if that is what is full, and then in that of the global lane.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import final

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
    """Whether a running job submits it, and so may do that while the lanes close."""
    task: Task
    actor: Actor
    """In whose line for room it stands."""

    def stand_in_line(self, actor: Actor) -> None:
        """Go to the end of the line for room in ``actor``."""
        self.actor = actor
        if actor.room_line is None:
            actor.room_line = OrderedDict()
        actor.room_line[self.task] = self

    def leave_line(self) -> None:
        """Stand in no line any more."""
        line = self.actor.room_line
        assert line is not None
        del line[self.task]
        if not line:
            self.actor.room_line = None

    async def wait(self) -> None:
        """Wait until the job has been accepted; if this is cancelled, it has not been."""

        def abort(raise_cancel: RaiseCancel) -> Abort:
            self.leave_line()
            self.actor.floor.touch(self.actor)  # a session may have been alive only for this
            return Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


def without_room(lane: LaneActor, session: SessionActor | None) -> Actor | None:
    """The lane in which one more job cannot wait, and which it cannot pass without waiting."""
    for actor in (session, lane):
        if actor is not None and not actor.has_room and not _starts_at_once(lane, session):
            return actor
    return None


def _starts_at_once(lane: LaneActor, session: SessionActor | None) -> bool:
    if session is not None and (
        session.paused
        or session.touched
        or session.waiting
        or session.active >= session.concurrency
    ):
        return False
    return not (
        lane.paused or lane.touched or lane.backlog.items or lane.active >= lane.concurrency
    )
