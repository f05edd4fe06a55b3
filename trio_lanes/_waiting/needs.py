"""The graph of waits: the events that a wait inside a job needs in order to end.

Theory of operation
-------------------
A wait can end if the event that it waits for can *come*, perhaps after other events:

* The end of a running job can come if each event that the job itself waits for can come, and its
  slot if it has lent that. What other tasks of a job do is not known: a job with a waiting task is
  taken to end only after that wait.
* The start of a job can come if its session, its lane and the lane's group can each get a token for
  it: if enough holders of the tokens can end. An earlier job of the session that its own lane
  cannot start takes a token of the session, as a running job does.
* Room in a lane can come if enough of the jobs that wait there, or wait for room, can start.

The search begins with the event that is asked for, and goes on to the events that it needs, until
the answer is known. One holder that can still end is enough for a whole lane, so most searches end
soon. A search without success has found a deadlock and not only a chain of waits: no event of the
search that is still missing can ever come.

The search uses the present limits. Pauses, rates, timeouts and limits of 0 are no part of the
graph: a job that waits only for these is not stuck. Reservations are: a member of a group for which
they leave nothing never starts a job.

`may_need` goes along the same edges from their other ends, from a job to the jobs that need it, and
far more coarsely: it may say yes where `Search` would not, and never the reverse.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, islice, takewhile
from typing import Any, Final, TypeAlias, final

import trio

from .._actors.actor import Actor
from .._actors.job import AnyJob, Job
from .._actors.lane import LaneActor
from .._actors.session import SessionActor
from .._actors.state import HELD, LENT, QUEUED, RUNNING, WAITING, WANTED
from .._actors.wait import RoomRequest, Wait
from .._queue.backlog import LAST, rank

Need: TypeAlias = tuple[Callable[[Any], "_Goal"], Any]
"""An event: a method of `Search` below that finds what the event needs, and its argument."""


def wants_slot(job: AnyJob) -> bool:
    """Whether ``job``, which runs, has to get a slot before it ends."""
    return job._slot in (LENT, WANTED, QUEUED)


def can_continue(job: AnyJob) -> bool:
    """Whether ``job`` waits for no event of this graph."""
    return job._state is not RUNNING or not (job._waits or wants_slot(job))


def place_of(job: AnyJob) -> int:
    """Return the place of a waiting job in its session, or the place that it would get now."""
    return job._place or rank(job._priority, LAST)


class _Goal:
    """An event under search: it comes when enough of its parts have come."""

    __slots__ = ("asked_by", "missing", "parts")

    def __init__(self, missing: float, parts: Iterable[Need] = ()) -> None:
        self.missing = missing  # how many parts it still needs; with 0 or less it comes
        self.parts: Iterator[Need] = iter(parts)  # the parts that were not searched yet
        self.asked_by: list[tuple[_Goal, Need]] = []

    def give(self, part: Need) -> None:
        """``part`` comes."""
        self.missing -= 1


@final
class _GroupToken(_Goal):
    """A token of a group: a token that comes back counts only if it is not reserved."""

    __slots__ = ("_counting",)

    def __init__(self, missing: float, parts: Iterable[Need], counting: dict[str, int]) -> None:
        super().__init__(missing, parts)
        self._counting = counting  # {label: tokens of its lanes that count}

    def give(self, part: Need) -> None:
        label = part[1]._lane.label
        if self._counting[label]:
            self._counting[label] -= 1
            self.missing -= 1


@final
class Search:
    """A search through the graph, in one state of the lanes. It changes nothing in them.

    Args:
      held: running jobs that the search assumes never to end.
      ignored: a wait that the search assumes to have ended.
      without: jobs that the search assumes to go on without the slots that they want.
    """

    def __init__(
        self,
        held: Iterable[AnyJob] = (),
        *,
        ignored: Wait | None = None,
        without: Collection[AnyJob] = (),
    ) -> None:
        self._goals: Final[dict[Need, _Goal]] = {(self.end_of, job): _Goal(1) for job in held}
        self._ignored: Final = ignored
        self._without: Final = without
        # Goals with parts that were not searched yet. A search that ends early leaves some here,
        # and the next call of `can_come` goes on with them.
        self._path: Final[list[_Goal]] = []

    def can_come(self, needs: list[Need], most: float = math.inf) -> bool | None:
        """Whether all of ``needs`` can come; None if it is not known after ``most`` steps."""
        root = _all(tuple(needs))
        path = self._path
        path.append(root)
        while path and root.missing > 0:
            if most <= 0:
                return None  # the search from the other end may be shorter
            most -= 1
            goal = path[-1]
            need = next(goal.parts, None) if goal.missing > 0 else None
            if need is None:
                path.pop()
                continue
            part = self._goals.get(need)
            if part is None:
                find, subject = need
                part = self._goals[need] = find(subject)
                path.append(part)
            if part.missing > 0:
                part.asked_by.append((goal, need))  # it gives to the goal when it has come
            else:
                _give(goal, need)
        return root.missing <= 0

    def stuck_jobs(self) -> list[AnyJob]:
        """Return the running jobs that can never end, among the jobs of this search."""
        return [
            subject
            for (find, subject), goal in self._goals.items()
            if find == self.end_of and goal.missing > 0
        ]

    def _can_continue(self, job: AnyJob) -> bool:
        """`can_continue`, without the wait and the slots that this search ignores."""
        waits = (job._waits or {}).values()
        is_waiting = any(wait is not self._ignored for wait in waits)
        return job._state is not RUNNING or not (is_waiting or self._wants_slot(job))

    def _wants_slot(self, job: AnyJob) -> bool:
        return job._slot in (LENT, WANTED, QUEUED) and job not in self._without

    # ---- the edges of the graph

    def needed_for(self, wait: Wait) -> list[Need]:
        """Return the events that the end of ``wait`` needs."""
        if wait.any_of:
            return [(_any, tuple((_all, tuple(self._needed_of(target))) for target in wait.any_of))]
        if wait.target is None:
            request = wait.request
            assert request is not None
            if request.is_over:  # admitted or refused: the wait ends with this act
                return []
            after = self.start_of(request.job, request.session) if wait.runs else []
            return [(self._room, request), *after]
        return self._needed_of(wait.target)

    def _needed_of(self, target: AnyJob) -> list[Need]:
        if target._state is WAITING:
            return self.start_of(target, target._session_lane)
        # Also for a wait for its start: that wait ends in the same act as the job starts.
        return [(self.end_of, target)]

    def end_of(self, job: AnyJob) -> _Goal:
        """The end of a job that runs."""
        if self._can_continue(job):
            return _Goal(0)
        keys = [
            key
            for wait in (job._waits or {}).values()
            if wait is not self._ignored
            for key in self.needed_for(wait)
        ]
        if self._wants_slot(job):
            keys += self.slot_of(job._lane, job)
        if job._slot is QUEUED and job._session_lane is not None:
            for one in job._session_lane.ahead_of_readmitted(job):
                taker = one if one._slot is QUEUED else None
                keys.append((_all, tuple(self.slot_of(one._lane, taker))))
        return _all(tuple(keys))

    def start_of(self, job: AnyJob, session: SessionActor | None) -> list[Need]:
        """The start of a job that waits, or waits for room."""
        keys = self.slot_of(job._lane)
        if session is not None:
            keys.append((self._turn, (session, job)))
        return keys

    def slot_of(self, lane: LaneActor, taker: AnyJob | None = None) -> list[Need]:
        """A slot of ``lane``: for a job that waits there, or for ``taker``, which has lent its."""
        keys: list[Need] = [(self._token, (lane, taker))]
        if lane.group is not None:
            keys.append((self._budget, (lane, taker)))
        return keys

    def _coming(self, limiter: trio.CapacityLimiter) -> int:
        """Return how many tokens are free, or are held by borrowers that go on."""
        waiting = [job for job in limiter.statistics().borrowers if self._waits(job)]
        return max(0, int(min(limiter.total_tokens, sys.maxsize)) - len(waiting))

    def _waits(self, borrower: object) -> bool:
        return isinstance(borrower, Job) and not self._can_continue(borrower)

    def _token(self, subject: tuple[LaneActor, AnyJob | None]) -> _Goal:
        """A token of the limiter of a lane, which may be shared with other lanes and other code."""
        lane, taker = subject
        limiter = lane.limiter
        before = [*_before(lane, taker)]
        missing = limiter.borrowed_tokens + len(before) - limiter.total_tokens + 1
        if missing <= 0 or limiter.total_tokens < 1:  # asked first: a wide lane has many borrowers
            return _Goal(0)
        borrowers = limiter.statistics().borrowers
        if taker is not None and taker in borrowers:
            return _Goal(0)  # the token has come, in this pass of the scheduler
        holders: list[Any] = [*borrowers, *before]
        jobs = [holder for holder in holders if isinstance(holder, Job)]
        return _Goal(missing - (len(holders) - len(jobs)), self._ends(jobs))

    def _ends(self, jobs: Iterable[AnyJob]) -> list[Need]:
        """The ends of ``jobs``; of jobs that go on first, since a few of these mostly suffice."""
        return [(self.end_of, job) for job in sorted(jobs, key=self._can_continue, reverse=True)]

    def _budget(self, subject: tuple[LaneActor, AnyJob | None]) -> _Goal:
        """A token of the group of a lane. Reservations count unless ``taker`` takes a slot back."""
        lane, taker = subject
        group = lane.group
        assert group is not None
        is_back = taker is not None and taker._slot is not QUEUED
        kept = dict(() if is_back else group.config.reserve)  # {label: tokens not for this one}
        kept.pop(lane.label, None)
        lanes = group.lanes
        holders = [job for lane in lanes for job in lane.running_jobs() if job._slot is HELD]
        holders += _before(lane, taker)
        for other in () if is_back else lanes:
            if other is not lane:
                holders += islice(other.slot_requests, self._coming(other.limiter))
        used = dict.fromkeys(group.used, 0)
        for job in holders:
            used[job._lane.label] += 1
        taken = sum(max(tokens, kept.get(label, 0)) for label, tokens in used.items())
        missing = taken - group.config.concurrency + 1
        if missing <= 0 or group.config.concurrency < 1:  # a limit of 0 counts as a pause
            return _Goal(0)
        counting = {label: max(0, tokens - kept.get(label, 0)) for label, tokens in used.items()}
        return _GroupToken(missing, self._ends(holders), counting)

    def _turn(self, subject: tuple[SessionActor, AnyJob]) -> _Goal:
        """The forwarding of a job by its session."""
        session, job = subject
        if session.concurrency < 1:
            return _Goal(0)
        # Earlier jobs for the same lane can get its slots if the job itself can.
        before = session.readmitted_before(job)
        if session.waiting:
            place = place_of(job)
            before += [one for one in _of_other_lanes(session, job._lane) if one._place < place]
        starts: list[Need] = [
            (_all, tuple(self.slot_of(one._lane))) for one in before if one._lane is not job._lane
        ]
        if session.rates.units:
            return _all(((self._width, (session, ())), *starts))
        return self._width((session, tuple(starts)))

    def _width(self, subject: tuple[SessionActor, tuple[Need, ...]]) -> _Goal:
        """Enough ends of the jobs that a session runs, or ``starts``, for another job to start."""
        session, starts = subject
        ends = self._ends(session.running_jobs())
        return _Goal(len(ends) + len(starts) - session.concurrency + 1, [*ends, *starts])

    def _room(self, request: RoomRequest) -> _Goal:
        """The admission of a job that waits for room."""
        job = request.job
        lane: LaneActor = job._lane
        session: SessionActor | None = request.session
        keys: list[Need] = []
        if request.actor is session:
            keys.append((self._fewer, (session, request)))
        may_wait = session is None or session.config.max_waiting >= 1
        if request.actor is lane or not (lane.has_room and may_wait):
            keys += self.slot_of(lane)
            # Without a session a slot is enough: then all jobs in the line of the lane can start.
            if session is not None or job._options.delay:
                ways: list[Need] = []
                if may_wait:
                    ways.append((self._fewer, (lane, request)))
                if session is not None and not job._options.delay:
                    ways.append((self._turn, (session, job)))  # a job that starts needs no room
                keys.append((_any, tuple(ways)))
        return _all(tuple(keys))

    def _start_from_line(self, request: RoomRequest) -> list[Need]:
        """The start of a job that waits for room: it needs no room if it may start at once."""
        keys = self.start_of(request.job, request.session)
        if request.job._options.delay:
            keys.append((self._room, request))
        return keys

    def _fewer(self, subject: tuple[Actor, RoomRequest]) -> _Goal:
        """Enough starts, of jobs in a lane and of earlier requests, for ``request`` to fit in."""
        actor, request = subject
        most = actor.config.max_waiting
        before = list(
            takewhile(lambda other: other is not request, (actor.room_line or {}).values())
        )
        if isinstance(actor, SessionActor):
            most = max(most, 1)
            before += actor.room_requests(request.job._lane.lanes.values())
        starts = chain(
            ((_all, tuple(self.start_of(job, job._session_lane))) for job in actor.waiting_jobs()),
            ((_all, tuple(self._start_from_line(other))) for other in before),
        )
        return _Goal(actor.waiting + len(before) - most + 1, starts)


def may_need(wait: Wait, seeking: Collection[object], most: float) -> bool:
    """Whether ``wait``, for jobs, may need the job inside which it is; True also if it is not known
    after ``most`` steps.

    Args:
      seeking: the tasks inside jobs that wait for other events than the end of one job.
    """
    assert wait.job is not None
    behind = {wait.job: None}  # that job, and the jobs that wait for its end, directly or not
    line = [wait.job]
    for job in line:
        if _is_sought(job, seeking):
            return True
        for waiter in (job._waiters or {}).values():
            most -= 1
            if most < 0:
                return True
            other = None if waiter.wait is None else waiter.wait.job
            if other is not None and other not in behind:
                behind[other] = None
                line.append(other)
    targets = wait.any_of if wait.target is None else (wait.target,)
    return all(target in behind for target in targets)


def _is_sought(job: AnyJob, seeking: Collection[object]) -> bool:
    """Whether a wait may need what ``job``, which runs, holds beside its end: its place in its
    session, its slot, or its token of a group."""
    lane: LaneActor = job._lane
    session: SessionActor | None = job._session_lane
    if seeking and session is not None and (session.waiting or session.passed_requests):
        return True
    if job._slot not in (HELD, WANTED):
        return False
    if lane.token_request is not None or (lane.group is not None and lane.group.is_tight):
        return True  # jobs of other lanes may need it
    if lane.limiter.borrowed_tokens < lane.limiter.total_tokens:
        return False  # then no job of the lane lacks just a slot, also none that wants its back
    return bool(lane.without_slot or (seeking and (lane.waiting or lane.room_requests)))


def _give(goal: _Goal, need: Need) -> None:
    """Count the part ``need`` of ``goal`` as come, and then all goals that come by it."""
    given = [(goal, need)]
    while given:
        goal, need = given.pop()
        if goal.missing > 0:
            goal.give(need)
            if goal.missing <= 0:
                given += goal.asked_by


def _all(needs: tuple[Need, ...]) -> _Goal:
    return _Goal(len(needs), needs)


def _any(needs: tuple[Need, ...]) -> _Goal:
    return _Goal(1, needs)


def _of_other_lanes(session: SessionActor, lane: LaneActor) -> Iterable[AnyJob]:
    """Return the jobs in the line of ``session`` that are bound for other lanes than ``lane``.

    A session may have very many waiting jobs for one lane, and be searched for each of them. So the
    search goes through the other lanes if fewer jobs wait there.
    """
    others = [other.bound for other in lane.lanes.values() if other is not lane and other.bound]
    if sum(map(len, others)) < session.waiting:
        found = (job for bound in others for job in bound.values())
        return (job for job in found if job._session_lane is session)
    return (job for job in session.waiting_jobs() if job._lane is not lane and job._place)


def _before(lane: LaneActor, taker: AnyJob | None) -> Iterator[AnyJob]:
    """Iterate over the jobs that take slots of ``lane`` back before ``taker`` and all others."""
    return takewhile(lambda job: job is not taker, lane.slot_requests)
