"""`Job.root_causes`: what holds a job, in words, for the walk to the roots of its wait.

In line a job has the reasons of the head of its lane, and in a session it waits for the best job
that waits there. Of the jobs of a reason those that can go on come first.

The search is bounded (`_MOST_JOBS` and the others), linear in the slots of a lane besides, and says
where it was cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, pairwise, takewhile
from typing import Any, Final, final

import attrs

from .._actors.actor import Actor
from .._actors.group import Group
from .._actors.job import AnyJob
from .._actors.lane import LaneActor
from .._actors.session import SessionActor
from .._actors.state import RUNNING
from .._config.reasons import ENDLESS, Cause, before_it, in_words
from .._config.roots import AWAITED, HOLDER, RELATIONS, ROOTS, Lead, Reason, Walk, root_of
from .blockers import Obstacle, line_of, obstacles_in, own_obstacles
from .needs import can_continue

_MOST_CAUSES: Final = 8
_MOST_JOBS: Final = 200
_LONGEST_WAY: Final = 32
_MOST_PLACES: Final = 500
_FEW: Final = 8  # jobs of a reason, of which one has to go on


def root_causes(job: AnyJob, now: float) -> tuple[Cause, ...]:
    """Return the roots of the wait of ``job`` now; empty if it does not wait."""
    walk = Walk(job, _MOST_JOBS, _LONGEST_WAY)
    for asked in walk:
        held = _HeldJob(asked, now)
        runs = asked._state is RUNNING and asked is not job
        walk.answer(map(held.reason, held.obstacles), held.body() if runs else None)
    found = map(_with_lending, walk.found)
    return tuple(islice(dict.fromkeys(found), _MOST_CAUSES))


@final
class _HeldJob:
    """What holds a job. It changes nothing."""

    def __init__(self, job: AnyJob, now: float) -> None:
        self._job: Final = job
        self._now: Final = now
        self._head = job  # of the line of its lane, if it stands there
        self._place = 0  # how many jobs are before it there
        # {whose rates may hold it: the jobs that they charge up to this one, if these are known}
        self._charges: dict[Actor | Group, list[AnyJob]] = {}
        self.obstacles = list(own_obstacles(job))
        line = line_of(job)
        if isinstance(line, LaneActor):
            self.obstacles += self._in_lane(line)
        elif line is not None:
            self.obstacles += self._in_session(line)

    def _in_lane(self, lane: LaneActor) -> Iterator[Obstacle]:
        lane.step()
        line = islice(lane.line.in_order(), _MOST_PLACES)
        jobs = [*takewhile(lambda other: other is not self._job, line), self._job]
        self._head, self._place = jobs[0], len(jobs) - 1
        self._charges[lane] = jobs if self._place < _MOST_PLACES else []
        ahead, group = None, lane.group
        if group is not None:
            others = any(other.line for other in group.lanes if other is not lane)
            # if not alone, jobs of other lanes may be charged in between
            alone = len(jobs) == 1 or not others
            self._charges[group] = self._charges[lane] if alone else []
            ahead = group.waits_for_charge(self._now)
        for one in obstacles_in(lane, self._head, [], self._now):
            # If the head of another lane is charged before it, "order" leads there.
            if one.by is not group or one.kind != "rate" or ahead in (None, self._head):
                yield one

    def _in_session(self, session: SessionActor) -> Iterator[Obstacle]:
        job = self._job
        before = session.before(job) if session.paused and session.rates.units else []
        self._charges[session] = [*before[:_MOST_PLACES], job]
        if job._state is RUNNING:
            first = session.before(job)[:1]
        else:
            session.step()
            waiting = session.forwarded or {session.backlog.best_rank(): session.backlog.best()}
            # forwarded jobs are the best of those that wait
            first = [*session.readmitted_before(job), waiting[min(waiting)]][:1]
        for one in obstacles_in(session, job, [] if first == [job] else first, self._now):
            yield one
            if one.kind == "session":
                return  # the jobs before it wait for the same

    def reason(self, one: Obstacle) -> Reason[AnyJob]:
        """Return ``one`` as a root, or as what leads on to one."""
        kind, name = one.kind, one.by.name
        if kind in RELATIONS:
            # for room any of those that wait may start, and they may be very many
            jobs = _in_order(islice(one.jobs, _FEW if kind == "room" else None))
            if jobs:
                is_group = isinstance(one.by, Group)
                relation = 'before it in the group "{lane}"' if is_group else RELATIONS[kind]
                return Lead(jobs, relation.format(lane=name))
            return self._root("room", name) if kind == "room" else self._none("concurrency", name)
        if kind == "pause":
            return self._pause(one)
        if kind == "rate":
            return self._rate(one)
        if kind == "delay":
            assert one.until is not None
            delay = self._job._options.delay
            if delay >= ENDLESS:
                advice = "release what holds it: an inbox, if it is its next turn"
                return self._root(kind, name, "it is held", advice=advice)
            root = f"delay of {in_words(delay)}"
            return self._root(kind, name, root, seconds=one.until - self._now)
        if kind == "lent":
            root = f'"{one.reason}", for which it has lent its slot'
            return self._root(kind, name, root, advice=f"end the wait for {one.reason}")
        return self._slots(one)

    def _root(self, kind: str, name: str, root: str | None = None, **more: Any) -> Cause:
        return root_of(self._job, kind, name, root, **more)

    def _none(self, kind: str, name: str) -> Cause:
        return self._root(kind, name, f"{ROOTS[kind].format(lane=name)}: it has none")

    def body(self) -> Cause:
        """Return the root of a job that runs, if nothing holds it."""
        job = self._job
        assert job.started_at is not None
        root = f"its body, for {in_words(self._now - job.started_at)}"
        since, advice = job._lane.overdue.get(job), None
        if since is not None:
            root += f", {in_words(self._now - since)} after it was asked to stop"
            advice = _reset(job)
        elif self._hung([job]):
            advice = _end(job)
        return self._root("body", job.lane, root, advice=advice)

    def _hung(self, holders: list[AnyJob]) -> bool:
        """Return whether none of ``holders`` has started or made progress for long."""
        return bool(holders) and all(
            self._now - max(job.started_at or 0, job._progress_at)
            >= job._lane.config.standstill_after
            for job in holders
        )

    def _pause(self, one: Obstacle) -> Cause:
        """Return a pause, with the time of the rates after it unless these hold the job now."""
        until = one.until
        for served, jobs in self._charges.items():
            is_root = served.rates.ready_at(self._head._costs, self._now) > self._now
            if until is not None and one.until is not None and served.rates.units and not is_root:
                costs = [job._costs for job in jobs]
                until = max(until, served.rates.forecast(costs, one.until)[0]) if jobs else None
        seconds = None if until is None else until - self._now
        return self._root("pause", one.by.name, seconds=seconds)

    def _rate(self, one: Obstacle) -> Cause:
        jobs = self._charges[one.by]
        costs = [job._costs for job in jobs or [self._head]]
        when, limit = one.by.rates.forecast(costs, self._now)
        what = "the group " if isinstance(one.by, Group) else ""
        root = f'rate of {what}"{one.by.name}": {limit.in_words}'
        root += before_it(self._place, _MOST_PLACES)
        return self._root("rate", one.by.name, root, seconds=when - self._now if jobs else None)

    def _slots(self, one: Obstacle) -> Reason[AnyJob]:
        kind, name, job = one.kind, one.by.name, self._job
        lane: LaneActor = job._lane
        again = [*lane.slot_requests]
        place = again.index(job) if job in again else self._place + len(again)
        if isinstance(one.by, Group) and one.by.leaves_none(lane.label) and job not in again:
            root = f'slots of the group "{name}": all are reserved for other lanes'
            return self._root("reservation", name, root)
        if kind == "reservation":
            root = ROOTS[kind].format(lane=name) + before_it(place, _MOST_PLACES)
            return self._root(kind, name, root)
        if isinstance(one.by, Group):
            return self._held(one, sum(one.by.used.values()), one.by.config.concurrency, place)
        return self._held(one, lane.limiter.borrowed_tokens, lane.limiter.total_tokens, place)

    def _held(self, one: Obstacle, used: int, most: float, place: int) -> Reason[AnyJob]:
        """Return ``one`` as a root, unless all that have the slots or tokens wait."""
        kind, name = one.kind, one.by.name
        if not most:
            return self._none(kind, name)
        holders = sorted(one.jobs, key=lambda job: job.started_at or 0)
        others = kind == "concurrency" and len(holders) < used
        if holders and not others and not any(map(can_continue, holders)):
            return Lead(_in_order(holders), f'{HOLDER} "{holders[0].lane}"')
        root = f"{ROOTS[kind].format(lane=name)}: {used} of {most} in use"
        for holder in holders[:1]:
            assert holder.started_at is not None
            root += f", longest by {holder.id} for {in_words(self._now - holder.started_at)}"
        if others and not holders:
            root += " by other code"
        lanes = dict.fromkeys(job._lane for job in one.jobs)
        overdue = [job for lane in lanes for job in islice(lane.overdue, 1) if job in holders]
        ends = _end(holders[0]) if self._hung(holders) else None
        advice = _reset(overdue[0]) if overdue else ends
        ids = tuple(job.id for job in holders[:_FEW])
        root += before_it(place, _MOST_PLACES)
        return self._root(kind, name, root, jobs=ids, advice=advice)


def _in_order(jobs: Iterable[AnyJob]) -> list[AnyJob]:
    """Return those of ``jobs`` to follow, and first those that can go on."""
    return sorted(jobs, key=lambda job: not can_continue(job))[:_FEW]


def _with_lending(cause: Cause) -> Cause:
    """Return ``cause``, with the advice to lend a slot if a holder of one waits for a job."""
    way = ((cause.job, ""), *cause.chain)
    for (job, relation), (_, to_next) in pairwise(way):
        if relation.startswith(HOLDER) and to_next == AWAITED:
            lend = f"have {job} lend its slot while it waits (yield_slot)"
            advice = lend if cause.advice is None else f"{lend}; or {cause.advice}"
            return attrs.evolve(cause, advice=advice)
    return cause


def _end(job: AnyJob) -> str:
    """Return how to free what ``job``, which gives no sign of life, holds."""
    return f'cancel {job.id}, or reset "{_to_reset(job)}"'


def _reset(job: AnyJob) -> str:
    """Return how to free what ``job``, whose body is overdue, holds."""
    return f'reset "{_to_reset(job)}": the body of {job.id} goes on after it was asked to stop'


def _to_reset(job: AnyJob) -> str:
    return job.lane if job._session_lane is None else job._session_lane.name
