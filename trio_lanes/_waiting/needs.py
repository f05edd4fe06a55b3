"""The graph of waits: what has to come for a wait inside a job to end.

Theory of operation
-------------------
A wait can end if what it waits for can *come*, whatever has to happen before that:

* The end of a running job can come if all that the job waits for itself can, and its slot if it has
  lent that. What other tasks of a job may do is not known: a job with a waiting task is taken to
  end only after that wait.
* The start of a job can come if its session, its lane and the group of that can each get a token
  to it: if enough of those can end who hold the tokens. In a session, jobs before it that their
  own lanes cannot start take a place as running ones do.
* Room can come if enough can start of those who wait there or are in line for it.

All of these follow from one another: from what is asked for through what that needs, as far as it
takes to know. One holder that can still go on is enough for a whole lane, so most searches end
soon. If one comes to its end in vain, then it is a knot, not only a chain, and whatever it has
found that cannot come is in it.

Limits are taken as they are now. Pauses, rates, timeouts and limits of 0 are no part of it: who
waits for nothing but that is not stuck.
"""

from __future__ import annotations

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
"""What may be needed: one of the methods of `Search` below, and what it is asked about."""


def wants_slot(job: AnyJob) -> bool:
    """Whether ``job``, which runs, has to get a slot before it ends."""
    return job._slot in (LENT, WANTED, QUEUED)


def goes_on(job: AnyJob) -> bool:
    """Whether ``job`` waits for nothing that is looked at here."""
    return job._state is not RUNNING or not (job._waits or wants_slot(job))


def place_of(job: AnyJob) -> int:
    """The place of a waiting job in its session, now or when it comes there."""
    return job._place or rank(job._priority, LAST)


class _Goal:
    """Something that comes when enough of its parts have come."""

    __slots__ = ("asked_by", "missing", "parts")

    def __init__(self, missing: float, parts: Iterable[Need] = ()) -> None:
        self.missing = missing  # so many parts; none: it comes
        self.parts: Iterator[Need] = iter(parts)  # that were not looked at yet
        self.asked_by: list[tuple[_Goal, Need]] = []

    def give(self, part: Need) -> None:
        """``part`` comes."""
        self.missing -= 1


@final
class _Budget(_Goal):
    """A token of a group: tokens that come back count only as far as they are not reserved."""

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
    """What was found out so far, from one state of the lanes. It changes nothing in them.

    Args:
      held: running jobs that are taken never to end.
      ignored: a wait that is taken to have ended.
      without: jobs that are taken to go on without the slots that they want.
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
        # Goals with parts that were not looked at yet. A search that ends early leaves some here,
        # and the next one goes on with them if it has to.
        self._path: Final[list[_Goal]] = []

    def can_come(self, needs: list[Need]) -> bool:
        """Whether all of ``needs`` can come."""
        root = _all(tuple(needs))
        path = self._path
        path.append(root)
        while path and root.missing > 0:
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
                part.asked_by.append((goal, need))
            else:
                _give(goal, need)
        return root.missing <= 0

    def stuck_jobs(self) -> list[AnyJob]:
        """The running jobs that can never end, of those that were looked at."""
        return [
            subject
            for (find, subject), goal in self._goals.items()
            if find == self.end_of and goal.missing > 0
        ]

    def _goes_on(self, job: AnyJob) -> bool:
        """`goes_on`, as far as this search ignores nothing of it."""
        if job._state is not RUNNING:
            return True
        waits = job._waits
        if waits and not (len(waits) == 1 and self._ignored in waits.values()):
            return False
        return not self._wants_slot(job)

    def _wants_slot(self, job: AnyJob) -> bool:
        return job._slot in (LENT, WANTED, QUEUED) and job not in self._without

    # ---- what needs what

    def needed_for(self, wait: Wait) -> list[Need]:
        """What has to come for the end of ``wait``."""
        if wait.any_of:
            return [(_any, tuple((_all, tuple(self._needed_of(target))) for target in wait.any_of))]
        if wait.target is None:
            request = wait.request
            assert request is not None
            after = self.start_of(request.job, request.session) if wait.runs else []
            return [(self._room, request), *after]
        return self._needed_of(wait.target)

    def _needed_of(self, target: AnyJob) -> list[Need]:
        if target._state is WAITING:
            return self.start_of(target, target._session_lane)
        # Also for a wait for its start, which is told in the same act: a new job waits for nothing.
        return [(self.end_of, target)]

    def end_of(self, job: AnyJob) -> _Goal:
        """The end of a job that runs."""
        if self._goes_on(job):
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
            for one in job._session_lane.before_again(job):
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
        """A slot of ``lane``: for a job that waits there, or, again, for one that has lent its own."""
        keys: list[Need] = [(self._token, (lane, taker))]
        if lane.group is not None:
            keys.append((self._budget, (lane, taker)))
        return keys

    def _coming(self, limiter: trio.CapacityLimiter) -> int:
        """How many tokens are there, or come for certain."""
        waiting = [job for job in limiter.statistics().borrowers if self._waits(job)]
        return max(0, int(min(limiter.total_tokens, sys.maxsize)) - len(waiting))

    def _waits(self, borrower: object) -> bool:
        return isinstance(borrower, Job) and not self._goes_on(borrower)

    def _token(self, subject: tuple[LaneActor, AnyJob | None]) -> _Goal:
        """A token of the limiter of a lane, which may be shared with other lanes and other code."""
        lane, taker = subject
        limiter = lane.limiter
        borrowers = limiter.statistics().borrowers
        if taker is not None and taker in borrowers:
            return _Goal(0)  # it came in this very tick
        holders: list[Any] = [*borrowers, *_before(lane, taker)]
        missing = len(holders) - limiter.total_tokens + 1
        if missing <= 0 or limiter.total_tokens < 1:
            return _Goal(0)
        jobs = [holder for holder in holders if isinstance(holder, Job)]
        return _Goal(missing - (len(holders) - len(jobs)), self._ends(jobs))

    def _ends(self, jobs: Iterable[AnyJob]) -> list[Need]:
        """The ends of ``jobs``; first of those that go on, since few of these are mostly enough."""
        return [(self.end_of, job) for job in sorted(jobs, key=self._goes_on, reverse=True)]

    def _budget(self, subject: tuple[LaneActor, AnyJob | None]) -> _Goal:
        """A token of the group of a lane, reservations being kept unless one is taken back."""
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
                holders += islice(other.returning, self._coming(other.limiter))
        used = dict.fromkeys(group.used, 0)
        for job in holders:
            used[job._lane.label] += 1
        taken = sum(max(tokens, kept.get(label, 0)) for label, tokens in used.items())
        missing = taken - group.config.concurrency + 1
        if missing <= 0 or sum(kept.values()) >= group.config.concurrency:
            return _Goal(0)
        counting = {label: max(0, tokens - kept.get(label, 0)) for label, tokens in used.items()}
        return _Budget(missing, self._ends(holders), counting)

    def _turn(self, subject: tuple[SessionActor, AnyJob]) -> _Goal:
        """That a session forwards a job of it."""
        session, job = subject
        if session.concurrency < 1:
            return _Goal(0)
        before: list[AnyJob] = []
        if session.waiting:
            place = place_of(job)
            before += [one for one in session.waiting_jobs() if one._place and one._place < place]
        before += session.readmitted_before(job)
        # Those for the lane of the job itself can start if it can, as far as that lane goes.
        starts: list[Need] = [
            (_all, tuple(self.slot_of(one._lane))) for one in before if one._lane is not job._lane
        ]
        if session.rates.units:
            return _all(((self._width, (session, ())), *starts))
        return self._width((session, tuple(starts)))

    def _width(self, subject: tuple[SessionActor, tuple[Need, ...]]) -> _Goal:
        """That of the jobs that a session runs, and of these, too, so many come as are too many."""
        session, starts = subject
        ends = self._ends(session.running_jobs())
        return _Goal(len(ends) + len(starts) - session.concurrency + 1, [*ends, *starts])

    def _room(self, request: RoomRequest) -> _Goal:
        """That a job is let in that waits for room."""
        job, lane, session = request.job, request.job._lane, request.session
        keys: list[Need] = []
        if request.actor is session:
            keys.append((self._fewer, (session, request)))
        may_wait = session is None or session.config.max_waiting >= 1
        if request.actor is lane or not (lane.has_room and may_wait):
            keys += self.slot_of(lane)
            # Without a session that is enough: all who stand in the line of the lane can start then.
            if session is not None or job._options.delay:
                ways: list[Need] = []
                if may_wait:
                    ways.append((self._fewer, (lane, request)))
                if session is not None and not job._options.delay:
                    ways.append((self._turn, (session, job)))  # what starts at once needs no room
                keys.append((_any, tuple(ways)))
        return _all(tuple(keys))

    def _start_from_line(self, request: RoomRequest) -> list[Need]:
        """The start of a job that waits for room: it needs none if it may start at once."""
        keys = self.start_of(request.job, request.session)
        if request.job._options.delay:
            keys.append((self._room, request))
        return keys

    def _fewer(self, subject: tuple[Actor, RoomRequest]) -> _Goal:
        """That so many start, of those in a lane and those before in line for it, as are too many."""
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


def _give(goal: _Goal, need: Need) -> None:
    """Have ``goal`` know that its part ``need`` comes, and all goals that come by that."""
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


def _before(lane: LaneActor, taker: AnyJob | None) -> Iterator[AnyJob]:
    """The jobs that take slots of ``lane`` back, as they do before all jobs that wait for one."""
    return takewhile(lambda job: job is not taker, lane.returning)
