"""Finding waits that can never end, when they begin.

A wait inside a job can end if what it waits for can *come*, whatever has to happen before that:

* The end of a running job can come if all that the job waits for itself can, and its slot if it has
  lent that. What other tasks of a job may do is not known: a job with a waiting task is taken to
  end only after that wait.
* The start of a job can come if its session, its lane and the group of that can each get a token
  to it: if enough of those can end who hold the tokens. In a session, jobs before it that their
  own lanes cannot start take a place as running ones do.
* Room can come if enough can start of those who wait there or are in line for it.

All of these follow from one another, so this is a search: from the wait that begins through what
it needs, as far as it takes to know. One holder that can still go on is enough for a whole lane,
so most searches end soon. If one comes to its end in vain, then it is a knot, not only a chain, and
whatever it has found that cannot come is in it.

Limits are taken as they are now. Pauses, rates, timeouts and limits of 0 are no part of it: who
waits for nothing but that is not stuck.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import trio

from ._backlog import LAST, rank
from ._errors import LaneDeadlockError
from ._job import AnyJob, Job
from ._lane import LaneActor
from ._session import SessionActor
from ._state import RUNNING, WAITING

if TYPE_CHECKING:
    from ._actor import Actor
    from ._room import Entrant
    from ._waits import Wait

_CURE: Final = (
    "leave `session` out of the inner job, give it another lane, or lend the outer job's slot "
    "meanwhile (yield_slot)"
)


def check(wait: Wait) -> None:
    """Raise if ``wait``, which its job knows of already, can never end.

    Raises:
      LaneDeadlockError: it lists the knot and the cure.
    """
    targets = wait.any_of if wait.target is None else (wait.target,)
    if any(target._state is RUNNING and _goes_on(target) for target in targets):
        return  # as most do
    search = Search()
    if not search.can_come(_needed(wait)):
        assert wait.job is not None
        raise LaneDeadlockError(_Knot(search.stuck_jobs()).describe(wait.job))


def _goes_on(job: AnyJob) -> bool:
    """Whether ``job`` waits for nothing that is looked at here."""
    return job._state is not RUNNING or (not job._waits and job._has_slot)


# ---- the search

_Key: TypeAlias = tuple[Callable[[Any], "_Need"], Any]
"""What may be needed: one of the functions below, and what it is asked about."""


class _Need:
    """Something that comes when enough of its parts have come."""

    __slots__ = ("asked_by", "missing", "parts")

    def __init__(self, missing: float, parts: Iterable[_Key] = ()) -> None:
        self.missing = missing  # so many parts; none: it comes
        self.parts: Iterator[_Key] = iter(parts)  # that were not looked at yet
        self.asked_by: list[tuple[_Need, _Key]] = []

    def give(self, part: _Key) -> None:
        """``part`` comes."""
        self.missing -= 1


@final
class Search:
    """What was found out so far, from one state of the lanes."""

    def __init__(self) -> None:
        self._needs: Final[dict[_Key, _Need]] = {}

    def can_come(self, keys: list[_Key]) -> bool:
        """Whether all of ``keys`` can come."""
        root = _all(tuple(keys))
        path = [root]
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
            if kind is _end and need.missing > 0
        ]


def _give(need: _Need, key: _Key) -> None:
    """Have ``need`` know that its part ``key`` comes, and all who may come by that."""
    given = [(need, key)]
    while given:
        need, key = given.pop()
        if need.missing > 0:
            need.give(key)
            if need.missing <= 0:
                given += need.asked_by


def _all(keys: tuple[_Key, ...]) -> _Need:
    return _Need(len(keys), keys)


def _any(keys: tuple[_Key, ...]) -> _Need:
    return _Need(1, keys)


# ---- what needs what


def _needed(wait: Wait) -> list[_Key]:
    """What has to come for the end of ``wait``."""
    if wait.any_of:
        return [(_any, tuple((_all, tuple(_needed_of(target))) for target in wait.any_of))]
    if wait.target is None:
        entrant = wait.entrant
        assert entrant is not None
        after = _start(entrant.job, entrant.session) if wait.runs else []
        return [(_room, entrant), *after]
    return _needed_of(wait.target, start_is_enough=wait.until_started)


def _needed_of(target: AnyJob, *, start_is_enough: bool = False) -> list[_Key]:
    if target._state is WAITING:
        return _start(target, target._session_lane)
    if start_is_enough or _goes_on(target):
        return []
    return [(_end, target)]


def _end(job: AnyJob) -> _Need:
    """The end of a job that runs."""
    keys = [key for wait in (job._waits or {}).values() for key in _needed(wait)]
    if not job._has_slot:
        keys += _slot(job._lane, returning=not job._readmitting)
    return _all(tuple(keys))


def _start(job: AnyJob, session: SessionActor | None) -> list[_Key]:
    """The start of a job that waits, or waits for room."""
    keys = _slot(job._lane)
    if session is not None:
        keys.append((_turn, (session, job)))
    return keys


def _slot(lane: LaneActor, *, returning: bool = False) -> list[_Key]:
    """A slot of ``lane``: for a job that waits there, or, again, for one that has lent its own."""
    keys: list[_Key] = [(_token, lane.limiter)]
    if lane.group is not None:
        keys.append((_budget, (lane, returning)))
    return keys


def _token(limiter: trio.CapacityLimiter) -> _Need:
    """A token of ``limiter``, which may be shared with other lanes and with other code."""
    borrowers = limiter.statistics().borrowers
    missing = len(borrowers) - limiter.total_tokens + 1
    if missing <= 0 or limiter.total_tokens < 1:
        return _Need(0)
    waiting = [job for job in borrowers if isinstance(job, Job) and not _goes_on(job)]
    return _Need(missing - (len(borrowers) - len(waiting)), [(_end, job) for job in waiting])


@final
class _Budget(_Need):
    """A token of a group: tokens that come back count only as far as they are not reserved."""

    __slots__ = ("_counting",)

    def __init__(self, missing: float, parts: Iterable[_Key], counting: dict[str, int]) -> None:
        super().__init__(missing, parts)
        self._counting = counting  # {label: tokens of its lanes that count}

    def give(self, part: _Key) -> None:
        self.count(part[1]._lane.label)

    def count(self, label: str) -> None:
        """A token of a lane of that label comes back."""
        if self._counting[label]:
            self._counting[label] -= 1
            self.missing -= 1


def _budget(subject: tuple[LaneActor, bool]) -> _Need:
    """A token of the group of a lane, reservations being kept unless it takes one back."""
    lane, returning = subject
    group = lane.group
    assert group is not None
    kept = dict(() if returning else group.config.reserve)  # {label: tokens that are not for it}
    kept.pop(lane.label, None)
    used = {label: max(tokens, kept.get(label, 0)) for label, tokens in group.used.items()}
    missing = sum(used.values()) - group.config.concurrency + 1
    if missing <= 0 or sum(kept.values()) >= group.config.concurrency:
        return _Need(0)
    holders = [job for lane in group.lanes for job in lane.running_jobs() if job._has_slot]
    counting = {label: tokens - kept.get(label, 0) for label, tokens in used.items()}
    need = _Budget(missing, [(_end, job) for job in holders if not _goes_on(job)], counting)
    for job in holders:
        if _goes_on(job):
            need.count(job._lane.label)
    return need


def _turn(subject: tuple[SessionActor, AnyJob]) -> _Need:
    """That a session forwards a job of it."""
    session, job = subject
    if session.concurrency < 1:
        return _Need(0)
    running = [other for other in session.running_jobs() if not _goes_on(other)]
    keys: list[_Key] = [(_end, other) for other in running]
    if session.waiting:
        place = job._place or rank(job._priority, LAST)  # it may not have come yet
        # Those for the lane of the job itself can start if it can, as far as that lane goes.
        keys += [
            (_all, tuple(_slot(other._lane)))
            for other in session.waiting_jobs()
            if other._place and other._place < place and other._lane is not job._lane
        ]
    return _Need(len(keys) - session.concurrency + 1, keys)


def _room(entrant: Entrant) -> _Need:
    """That a job is let in that waits for room."""
    job, lane, session = entrant.job, entrant.job._lane, entrant.session
    keys: list[_Key] = []
    if entrant.actor is session:
        keys.append((_fewer, (session, entrant)))
    if entrant.actor is lane or not lane.has_room:
        keys += _slot(lane)
        # Without a session that is enough: all who stand in the line of the lane can start then.
        if session is not None:
            ways: list[_Key] = []
            if session.config.max_waiting >= 1:
                ways.append((_fewer, (lane, entrant)))
            if not session.rates:
                ways.append((_turn, (session, job)))  # what starts at once needs no room
            keys.append((_any, tuple(ways)))
    return _all(tuple(keys))


def _fewer(subject: tuple[Actor, Entrant]) -> _Need:
    """That so many start, of those in a lane and those before in line for it, as are too many."""
    actor, entrant = subject
    most = actor.config.max_waiting
    before = list(takewhile(lambda other: other is not entrant, (actor.room_line or {}).values()))
    if isinstance(actor, SessionActor):
        most = max(most, 1)
        before += actor.entrants()
    starts = chain(
        ((_all, tuple(_start(job, job._session_lane))) for job in actor.waiting_jobs()),
        ((_all, tuple(_start(other.job, other.session))) for other in before),
    )
    return _Need(actor.waiting + len(before) - most + 1, starts)


# ---- what to say


@final
class _Knot:
    """Jobs that can never end."""

    def __init__(self, stuck: Iterable[AnyJob]) -> None:
        self._stuck: Final = tuple(stuck)

    def describe(self, first: AnyJob) -> str:
        """What ``first`` waits for, directly or not, and the cure."""
        lines = []
        told: set[AnyJob] = set()
        line = deque([first])
        while line:
            job = line.popleft()
            if job in told:
                continue
            told.add(job)
            goals = []
            for wait in (job._waits or {}).values():
                goal, holders = self._needed(wait)
                goals.append(goal)
                line += holders
            if not job._has_slot:
                goals.append(f"a slot of lane {job.lane!r} again")
                line += self._in_the_way(job._lane, None)
            lines.append(f"  {_called(job)} {_holdings(job)}, and waits for {' and '.join(goals)}")
        return "\n".join(["this wait would never end:", *lines, f"cure: {_CURE}"])

    def _needed(self, wait: Wait) -> tuple[str, list[AnyJob]]:
        """What ``wait`` waits for, and the stuck jobs that keep it from coming."""
        if wait.any_of:
            needed = [self._needed_of(target) for target in wait.any_of]
            return " or ".join(goal for goal, _ in needed), [
                holder for _, holders in needed for holder in holders
            ]
        if wait.target is None:
            entrant = wait.entrant
            assert entrant is not None
            starts = {(entrant.job._lane, entrant.session): None}
            starts |= {(job._lane, job._session_lane): None for job in entrant.actor.waiting_jobs()}
            holders = [job for start in starts for job in self._in_the_way(*start)]
            return f"room in lane {entrant.actor.name!r}", holders
        return self._needed_of(wait.target)

    def _needed_of(self, target: AnyJob) -> tuple[str, list[AnyJob]]:
        if target._state is WAITING:
            where = f"lane {target.lane!r}"
            if target.session is not None:
                where = f"session {target.session!r} and {where}"
            holders = self._in_the_way(target._lane, target._session_lane)
            return f"{_called(target)}, which waits for {where}", holders
        return _called(target), [target]

    def _in_the_way(self, lane: LaneActor, session: SessionActor | None) -> list[AnyJob]:
        """The stuck jobs that hold what a job needs that goes through these."""
        return [
            job
            for job in self._stuck
            if (session is not None and job._session_lane is session)
            or (job._has_slot and job._lane.limiter is lane.limiter)
            or (job._has_slot and lane.group is not None and job._lane.group is lane.group)
        ]


def _called(job: AnyJob) -> str:
    return f"job {job.id} {job.name!r}"


def _holdings(job: AnyJob) -> str:
    held = []
    if job.session is not None:
        held.append(f"session {job.session!r}")
    if job._has_slot:
        held.append(f"a slot of lane {job.lane!r}")
        if job._lane.group is not None:
            held.append(f"a token of group {job._lane.group.name!r}")
    return "holds " + (" and ".join(held) or "nothing")
