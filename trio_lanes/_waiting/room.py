"""Bounded lanes: submissions that are accepted at once, and submissions that wait for room.

Theory of operation
-------------------
A lane is full when ``max_waiting`` jobs wait in it. A job that would start at once does not wait,
so a full lane accepts it as well. While the session of a request is full, the request stands in the
line of that session; then it has its room there, and stands in the line of its global lane. The
loop serves these lines when no actor is touched, and admits one request at a time, so that it knows
which job would start at once. A full global lane passes over requests that could not start: the
requests of a session that is busy or paused, and requests with a delay.

Requests of waiting tasks and of other threads, which are called back, stand in the same lines.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import count
from typing import Final, final

from .._actors.actor import Actor, Served
from .._actors.group import Group
from .._actors.job import AnyJob
from .._actors.lane import LaneActor
from .._actors.session import SessionActor
from .._actors.wait import RoomRequest


@final
class Room:
    """The lines of all requests for room."""

    def __init__(self, lanes: Mapping[str, LaneActor], to_retime: dict[Served, None]) -> None:
        self._lanes: Final = lanes  # {name: global lane that is alive}
        self._to_retime: Final = to_retime  # actors whose `wake_at` may have changed
        self.length = 0  # requests in all lines together
        self.lines_to_serve: Final[dict[Actor, None]] = {}  # lines that may move
        # {key: {job that would be coalesced by it: its request}}
        self.by_key: Final[dict[Hashable, dict[AnyJob, RoomRequest]]] = {}
        self._orders: Final = count()

    def join(self, request: RoomRequest, now: float) -> None:
        """Put ``request`` into the line of its session or lane."""
        self.length += 1
        if (coalesce := request.job._options.coalesce) is not None:
            self.by_key.setdefault(coalesce.key, {})[request.job] = request
        lane: LaneActor = request.job._lane
        session: SessionActor | None = request.session
        lane.count_room_requests(1)
        self._enqueue(request, session if session is not None and _full(session) else lane)
        self._wake_for_first(lane, now)  # no act has touched the lane

    def leave(self, request: RoomRequest) -> None:
        """Take ``request`` out of its line."""
        self.length -= 1
        if (coalesce := request.job._options.coalesce) is not None:
            del self.by_key[coalesce.key][request.job]
            if not self.by_key[coalesce.key]:
                del self.by_key[coalesce.key]
        request.job._lane.count_room_requests(-1)
        self._dequeue(request)

    def next_entry(self, now: float) -> RoomRequest | None:
        """Take out the request that is admitted now. The loop asks until the answer is None."""
        while self.lines_to_serve:
            actor = next(iter(self.lines_to_serve))
            if isinstance(actor, LaneActor):
                request = _first_to_enter(actor, now)
                if request is not None:  # the lane stays in: its next request may enter as well
                    self.leave(request)
                    return request
                self._wake_for_first(actor, now)
            elif actor.room_line and isinstance(actor, SessionActor) and not _no_room_in(actor):
                request = next(iter(actor.room_line.values()))
                lane: LaneActor = request.job._lane
                self._dequeue(request)
                self._enqueue(request, lane)
                self.lines_to_serve[lane] = None  # the request may be the first there
                continue
            del self.lines_to_serve[actor]
        return None

    def look_at(self, served: Served) -> None:
        """Note the lines that may move because ``served`` was served."""
        if isinstance(served, Group):
            self.lines_to_serve.update(
                (lane, None) for lane in self._lanes.values() if lane.room_line
            )
            return
        assert isinstance(served, Actor)
        if served.room_line:
            self.lines_to_serve[served] = None
        # they may have requests of it
        if isinstance(served, SessionActor) and served.passed_requests:
            for lane in self._lanes.values():
                if lane.room_line:
                    self.lines_to_serve[lane] = None
                    lane.look_at_requests_of(served)

    def _enqueue(self, request: RoomRequest, actor: Actor) -> None:
        request.actor, request.order = actor, next(self._orders)
        actor.take_room_request(request)
        if request.session is not None and request.session is not actor:
            request.session.count_passed_requests(1)

    def _dequeue(self, request: RoomRequest) -> None:
        request.actor.drop_room_request(request)
        if request.session is not None and request.session is not request.actor:
            request.session.count_passed_requests(-1)

    def _wake_for_first(self, lane: LaneActor, now: float) -> None:
        """Wake the lane when its first request may enter, if only the time stops it."""
        if not lane.has_free_slot:
            return
        for request in lane.free_requests():
            job = request.job
            session: SessionActor | None = request.session
            if _lets_start(job, session, now):
                lane.wake_for(job, now)
                self._to_retime[lane] = None
                return
            # This one's session stops it, and the session of the next may not.
            assert session is not None
            when = session.rates.ready_at(job._costs, now)
            if when > now:
                session.wake_by(session.rates.look_at(when, now))
                self._to_retime[session] = None


def first_without_room(
    job: AnyJob, session: SessionActor | None, now: float, *, at_rest: bool
) -> Actor | None:
    """Return the lane that has no room for ``job``, or in which requests wait for room before it.

    Only in lanes ``at_rest``, outside of a batch, is it known whether a job would start at once.
    """
    lane: LaneActor = job._lane
    options = job._options
    if not (options.queue_timeout or options.delay):
        return None  # a job that cannot wait needs no room
    if session is not None and _full(session):
        return session
    if at_rest and _starts_at_once(job, session, now):
        return None
    if session is not None and not session.has_room:
        return session
    # In a batch, requests in its line may be about to enter. At rest, those that still wait in a
    # lane with room lack room in their sessions.
    return lane if not lane.has_room or (lane.room_line and not at_rest) else None


def _full(session: SessionActor) -> bool:
    return session.room_line is not None or _no_room_in(session)  # none passes those in line


def _no_room_in(session: SessionActor) -> bool:
    """Whether no request may pass the session's line: requests that have passed it hold room."""
    # One may pass where no job may wait: it can start at once, and only the lane knows when.
    return session.waiting + session.passed_requests >= max(session.config.max_waiting, 1)


def _first_to_enter(lane: LaneActor, now: float) -> RoomRequest | None:
    has_room = lane.has_room
    if not has_room and not lane.has_free_slot:
        return None
    # Without room, a request can enter only if its job starts at once: it takes a slot, not room.
    requests: Iterable[RoomRequest] = (
        (lane.room_line or {}).values() if has_room else lane.free_requests()
    )
    for request in requests:
        job = request.job
        session: SessionActor | None = request.session
        if _starts_at_once(job, session, now):
            return request
        if has_room and (session is None or session.has_room):
            return request
        if not has_room and _lets_start(job, session, now):  # then the lane itself stops it
            return None
    return None


def _starts_at_once(job: AnyJob, session: SessionActor | None, now: float) -> bool:
    return (
        not job._options.delay
        and job._lane.starts_at_once(job, now)
        and _lets_start(job, session, now)
    )


def _lets_start(job: AnyJob, session: SessionActor | None, now: float) -> bool:
    return session is None or session.lets_start(job, now)
