"""What has to come for a wait inside a job to end: a search.

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
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import trio

from .._queue.backlog import LAST, rank
from .._actors.job import AnyJob, Job
from .._actors.lane import LaneActor
from .._actors.session import SessionActor
from .._actors.state import RUNNING, WAITING

if TYPE_CHECKING:
    from .._actors.actor import Actor
    from .room import Entrant
    from .waits import Wait


def goes_on(job: AnyJob) -> bool:
    """Whether ``job`` waits for nothing that is looked at here."""
    return job._state is not RUNNING or not (job._waits or wants_slot(job))


def wants_slot(job: AnyJob) -> bool:
    """Whether ``job``, which runs, has to get a slot before it ends."""
    return not job._has_slot and job._lane.lending.get(job, False)


# ---- the search

Key: TypeAlias = tuple[Callable[[Any], "_Need"], Any]
"""What may be needed: one of the functions below, and what it is asked about."""


class _Need:
    """Something that comes when enough of its parts have come."""

    __slots__ = ("asked_by", "missing", "parts")

    def __init__(self, missing: float, parts: Iterable[Key] = ()) -> None:
        self.missing = missing  # so many parts; none: it comes
        self.parts: Iterator[Key] = iter(parts)  # that were not looked at yet
        self.asked_by: list[tuple[_Need, Key]] = []

    def give(self, part: Key) -> None:
        """``part`` comes."""
        self.missing -= 1


@final
class Search:
    """What was found out so far, from one state of the lanes.

    Args:
      held: running jobs that are taken never to end.
    """

    def __init__(self, held: Iterable[AnyJob] = ()) -> None:
        self._needs: Final[dict[Key, _Need]] = {(end_of, job): _Need(1) for job in held}
        # Needs with parts that were not looked at yet. A search that ends early leaves some here,
        # and the next one goes on with them if it has to.
        self._path: Final[list[_Need]] = []

    def can_come(self, keys: list[Key]) -> bool:
        """Whether all of ``keys`` can come."""
        root = _all(tuple(keys))
        path = self._path
        path.append(root)
        while path and root.missing > 0:
            need = path[-1]
            key = next(need.parts, None) if need.missing > 0 else None
            if key is None:
                path.pop()
                continue
            part = self._needs.get(key)
            if part is None:
                part = self._needs[key] = key[0](key[1])
                path.append(part)
            if part.missing > 0:
                part.asked_by.append((need, key))
            else:
                _give(need, key)
        return root.missing <= 0

    def stuck_jobs(self) -> list[AnyJob]:
        """The running jobs that can never end, of those that were looked at."""
        return [
            subject
            for (kind, subject), need in self._needs.items()
            if kind is end_of and need.missing > 0
        ]


def _give(need: _Need, key: Key) -> None:
    """Have ``need`` know that its part ``key`` comes, and all who may come by that."""
    given = [(need, key)]
    while given:
        need, key = given.pop()
        if need.missing > 0:
            need.give(key)
            if need.missing <= 0:
                given += need.asked_by


def _all(keys: tuple[Key, ...]) -> _Need:
    return _Need(len(keys), keys)


def _any(keys: tuple[Key, ...]) -> _Need:
    return _Need(1, keys)


# ---- what needs what


def needed_for(wait: Wait) -> list[Key]:
    """What has to come for the end of ``wait``."""
    if wait.any_of:
        return [(_any, tuple((_all, tuple(_needed_of(target))) for target in wait.any_of))]
    if wait.target is None:
        entrant = wait.entrant
        assert entrant is not None
        after = start_of(entrant.job, entrant.session) if wait.runs else []
        return [(_room, entrant), *after]
    return _needed_of(wait.target)


def _needed_of(target: AnyJob) -> list[Key]:
    if target._state is WAITING:
        return start_of(target, target._session_lane)
    # Also for a wait for its start, which is told in the same act: a new job waits for nothing.
    return [(end_of, target)]


def end_of(job: AnyJob) -> _Need:
    """The end of a job that runs."""
    if goes_on(job):
        return _Need(0)
    keys = [key for wait in (job._waits or {}).values() for key in needed_for(wait)]
    if wants_slot(job):
        keys += slot_of(job._lane, job)
    if job._readmitting and job._session_lane is not None:
        before = job._session_lane.before_again(job)
        for one in before:
            keys.append((_all, tuple(slot_of(one._lane, one if one._readmitting else None))))
    return _all(tuple(keys))


def start_of(job: AnyJob, session: SessionActor | None) -> list[Key]:
    """The start of a job that waits, or waits for room."""
    keys = slot_of(job._lane)
    if session is not None:
        keys.append((_turn, (session, job)))
    return keys


def slot_of(lane: LaneActor, taker: AnyJob | None = None) -> list[Key]:
    """A slot of ``lane``: for a job that waits there, or, again, for one that has lent its own."""
    keys: list[Key] = [(_token, (lane, taker))]
    if lane.group is not None:
        keys.append((_budget, (lane, taker)))
    return keys


def _before(lane: LaneActor, taker: AnyJob | None) -> Iterator[AnyJob]:
    """Those who take slots of ``lane`` back, as they do before whoever waits for one."""
    return takewhile(lambda job: job is not taker, lane.returning)


def _coming(limiter: trio.CapacityLimiter) -> int:
    """How many tokens are there, or come for certain."""
    waiting = [job for job in limiter.statistics().borrowers if _waits(job)]
    return max(0, int(min(limiter.total_tokens, sys.maxsize)) - len(waiting))


def _waits(borrower: object) -> bool:
    return isinstance(borrower, Job) and not goes_on(borrower)


def _token(subject: tuple[LaneActor, AnyJob | None]) -> _Need:
    """A token of the limiter of a lane, which may be shared with other lanes and other code."""
    lane, taker = subject
    limiter = lane.limiter
    borrowers = limiter.statistics().borrowers
    if taker is not None and taker in borrowers:
        return _Need(0)  # it came in this very tick
    holders: list[Any] = [*borrowers, *_before(lane, taker)]
    missing = len(holders) - limiter.total_tokens + 1
    if missing <= 0 or limiter.total_tokens < 1:
        return _Need(0)
    jobs = [holder for holder in holders if isinstance(holder, Job)]
    return _Need(missing - (len(holders) - len(jobs)), _ends(jobs))


def _ends(jobs: Iterable[AnyJob]) -> list[Key]:
    """The ends of ``jobs``; first of those that go on, since few of these are mostly enough."""
    return [(end_of, job) for job in sorted(jobs, key=goes_on, reverse=True)]


@final
class _Budget(_Need):
    """A token of a group: tokens that come back count only as far as they are not reserved."""

    __slots__ = ("_counting",)

    def __init__(self, missing: float, parts: Iterable[Key], counting: dict[str, int]) -> None:
        super().__init__(missing, parts)
        self._counting = counting  # {label: tokens of its lanes that count}

    def give(self, part: Key) -> None:
        label = part[1]._lane.label
        if self._counting[label]:
            self._counting[label] -= 1
            self.missing -= 1


def _budget(subject: tuple[LaneActor, AnyJob | None]) -> _Need:
    """A token of the group of a lane, reservations being kept unless one is taken back."""
    lane, taker = subject
    group = lane.group
    assert group is not None
    is_back = taker is not None and not taker._readmitting
    kept = dict(() if is_back else group.config.reserve)  # {label: tokens not for this one}
    kept.pop(lane.label, None)
    lanes = group.lanes
    holders = [job for lane in lanes for job in lane.running_jobs() if job._has_slot]
    holders += _before(lane, taker)
    for other in () if is_back else lanes:
        if other is not lane:
            holders += islice(other.returning, _coming(other.limiter))
    used = dict.fromkeys(group.used, 0)
    for job in holders:
        used[job._lane.label] += 1
    taken = sum(max(tokens, kept.get(label, 0)) for label, tokens in used.items())
    missing = taken - group.config.concurrency + 1
    if missing <= 0 or sum(kept.values()) >= group.config.concurrency:
        return _Need(0)
    counting = {label: max(0, tokens - kept.get(label, 0)) for label, tokens in used.items()}
    return _Budget(missing, _ends(holders), counting)


def place_of(job: AnyJob) -> int:
    """The place of a waiting job in its session, now or when it comes there."""
    return job._place or rank(job._priority, LAST)


def _turn(subject: tuple[SessionActor, AnyJob]) -> _Need:
    """That a session forwards a job of it."""
    session, job = subject
    if session.concurrency < 1:
        return _Need(0)
    before: list[AnyJob] = []
    if session.waiting:
        place = place_of(job)
        before += [one for one in session.waiting_jobs() if one._place and one._place < place]
    before += session.readmitted_before(job)
    # Those for the lane of the job itself can start if it can, as far as that lane goes.
    starts: list[Key] = [
        (_all, tuple(slot_of(one._lane))) for one in before if one._lane is not job._lane
    ]
    if session.rates.units:
        return _all(((_width, (session, ())), *starts))
    return _width((session, tuple(starts)))


def _width(subject: tuple[SessionActor, tuple[Key, ...]]) -> _Need:
    """That of the jobs that a session runs, and of these, too, so many come as are too many."""
    session, starts = subject
    ends = _ends(session.running_jobs())
    return _Need(len(ends) + len(starts) - session.concurrency + 1, [*ends, *starts])


def _room(entrant: Entrant) -> _Need:
    """That a job is let in that waits for room."""
    job, lane, session = entrant.job, entrant.job._lane, entrant.session
    keys: list[Key] = []
    if entrant.actor is session:
        keys.append((_fewer, (session, entrant)))
    may_wait = session is None or session.config.max_waiting >= 1
    if entrant.actor is lane or not (lane.has_room and may_wait):
        keys += slot_of(lane)
        # Without a session that is enough: all who stand in the line of the lane can start then.
        if session is not None or job._options.delay:
            ways: list[Key] = []
            if may_wait:
                ways.append((_fewer, (lane, entrant)))
            if session is not None and not job._options.delay:
                ways.append((_turn, (session, job)))  # what starts at once needs no room
            keys.append((_any, tuple(ways)))
    return _all(tuple(keys))


def _start_from_line(entrant: Entrant) -> list[Key]:
    """The start of a job that waits for room: it needs none if it may start at once."""
    keys = start_of(entrant.job, entrant.session)
    if entrant.job._options.delay:
        keys.append((_room, entrant))
    return keys


def _fewer(subject: tuple[Actor, Entrant]) -> _Need:
    """That so many start, of those in a lane and those before in line for it, as are too many."""
    actor, entrant = subject
    most = actor.config.max_waiting
    before = list(takewhile(lambda other: other is not entrant, (actor.room_line or {}).values()))
    if isinstance(actor, SessionActor):
        most = max(most, 1)
        before += actor.entrants()
    starts = chain(
        ((_all, tuple(start_of(job, job._session_lane))) for job in actor.waiting_jobs()),
        ((_all, tuple(_start_from_line(other))) for other in before),
    )
    return _Need(actor.waiting + len(before) - most + 1, starts)
