"""`Job.root_causes`: from a job along the reasons of its wait to those that wait for nothing.

Theory of operation
-------------------
A job that waits has reasons, as `blocked_by` lists them. A reason is a *root* if no job can end it
(a pause, a rate, a delay, a limit of 0), or if a job that ends it is at work. All others lead to
jobs that wait themselves. All reasons of a job hold it, so each is followed. Of the jobs that could
end one reason, one is enough (one that gives its slot back): those that go on come first, and the
first that leads to a root which is no deadlock was followed. A way that comes back to a job on it
is a deadlock if all ways do: none began as one, but a limit was lowered since.

Of the jobs before it in its line a job needs no more than their number: what holds the head of the
line holds them all. In a session the best job that waits is the one to follow.

The search is bounded (`_MOST_JOBS` and the others), linear in the slots of a lane besides, and says
where it was cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, pairwise, takewhile
from typing import Any, Final, TypeAlias, final

import attrs

from .._actors.actor import Actor
from .._actors.group import Group
from .._actors.job import AnyJob
from .._actors.lane import LaneActor
from .._actors.session import SessionActor
from .._actors.state import HELD, QUEUED, RUNNING, WAITING
from .._actors.wait import RoomRequest
from .._config.reasons import Cause, before_it, cause_at, in_words
from .needs import can_continue

_MOST_CAUSES: Final = 8
_MOST_JOBS: Final = 200
_LONGEST_WAY: Final = 32
_MOST_PLACES: Final = 500
_FEW: Final = 8  # jobs of a reason, of which one has to go on

_AWAITED: Final = "that it waits for"
_HOLDER: Final = "with a slot of"

_Way: TypeAlias = tuple[tuple[AnyJob, str], ...]
"""The jobs on the way to a root, and what each is to the one before."""


def root_causes(job: AnyJob, now: float) -> tuple[Cause, ...]:
    """Return the roots of the wait of ``job`` now; empty if it does not wait."""
    search, way = _Roots(now), ((job, ""),)
    # a job that runs and has no reason does not wait
    found = search.of(job, way) if job._state is WAITING else search.of_running(job, way)
    return tuple(islice(dict.fromkeys(found), _MOST_CAUSES))


@final
class _Roots:
    """One search. It changes nothing."""

    def __init__(self, now: float) -> None:
        self._now: Final = now
        self._left = _MOST_JOBS

    def of(self, job: AnyJob, way: _Way) -> Iterator[Cause]:
        """Yield the roots of the wait of ``job``, the last of ``way``."""
        self._left -= 1
        if self._left < 0 or len(way) > _LONGEST_WAY:
            yield _cause(way, "unknown", job.lane, "...")
        elif job._state is RUNNING:
            yield from [*self.of_running(job, way)] or [self._body(job, way)]
        elif job._state is not WAITING:
            return  # its end is being announced
        elif job.id in job._lane.delayed:
            until = job.submitted_at + job._options.delay - self._now
            root = f"delay of {in_words(job._options.delay)}"
            yield _cause(way, "delay", job.lane, root, seconds=until)
        elif job._session_lane is not None and job._place not in job._session_lane.forwarded:
            yield from self._in_session(job, job._session_lane, way)
        else:
            yield from self._in_lane(job, job._lane, way)

    def _any(self, jobs: Iterable[AnyJob], relation: str, way: _Way) -> Iterator[Cause]:
        """Yield the roots of the first of ``jobs`` that is in no deadlock: one is enough."""
        order = sorted(jobs, key=lambda job: not can_continue(job))
        seen = [job for job, _ in way]
        stuck: list[Cause] = []
        for job in order[:_FEW]:
            if job in seen:
                circle = seen[seen.index(job) :]
                root = f"deadlock of {', '.join(str(one.id) for one in circle)}"
                ids = tuple(one.id for one in circle)
                found = [_cause(way, "deadlock", job.lane, root, jobs=ids)]
            else:
                found = [*self.of(job, (*way, (job, relation)))]
            if any(cause.kind != "deadlock" for cause in found):
                stuck = found
                break
            stuck = stuck or found
        yield from stuck

    # ---- a job that runs

    def of_running(self, job: AnyJob, way: _Way) -> Iterator[Cause]:
        """Yield the roots of the waits of ``job``, the last of ``way``, which may wait for none."""
        for wait in (job._waits or {}).values():
            if wait.request is not None:
                yield from self._room(wait.request, way)
            else:
                targets = wait.any_of if wait.target is None else (wait.target,)
                yield from self._any(targets, _AWAITED, way)
        for reason in job._lenders:
            if reason is not None:
                root = f'"{reason}", for which it has lent its slot'
                yield _cause(way, "lent", job.lane, root, advice=f"end the wait for {reason}")
        lane: LaneActor = job._lane
        session: SessionActor | None = job._session_lane
        if job in lane.slot_requests:
            yield from self._slots(lane, [*lane.slot_requests].index(job), way)
        elif job._slot is QUEUED and job._arrival:
            yield from self._in_lane(job, lane, way)
        elif job._slot is QUEUED:
            assert session is not None
            yield from self._pause(session, way, [(session, job, [job])])
            before = session.before_again(job)
            if before:
                yield from self._any(before[:1], "of its session", way)
            else:
                yield from self._rate(session, job, [job], "", way)

    def _body(self, job: AnyJob, way: _Way) -> Cause:
        assert job.started_at is not None
        root = f"its body, for {in_words(self._now - job.started_at)}"
        since, advice = job._lane.overdue.get(job), None
        if since is not None:
            root += f", {in_words(self._now - since)} after it was asked to stop"
            advice = _reset(job)
        elif self._hung([job]):
            advice = _end(job)
        return _cause(way, "body", job.lane, root, advice=advice)

    def _hung(self, holders: list[AnyJob]) -> bool:
        """Return whether none of ``holders`` has started or made progress for long."""
        return bool(holders) and all(
            self._now - max(job.started_at or 0, job._progress_at)
            >= job._lane.config.standstill_after
            for job in holders
        )

    def _room(self, request: RoomRequest, way: _Way) -> Iterator[Cause]:
        name, jobs = request.actor.name, [*islice(request.actor.waiting_jobs(), _FEW)]
        if jobs:
            yield from self._any(jobs, f'in "{name}", which has no room', way)
        else:  # none may wait there
            yield _cause(way, "room", name, f'room in "{name}"')

    # ---- in its session

    def _in_session(self, job: AnyJob, session: SessionActor, way: _Way) -> Iterator[Cause]:
        before = session.before(job) if session.paused and session.rates.units else []
        yield from self._pause(session, way, [(session, job, [*before[:_MOST_PLACES], job])])
        if len(session.running) >= session.concurrency:
            if session.running:
                yield from self._any(session.running_jobs(), "of its session", way)
            else:
                yield self._none(session, way)
            return  # the jobs before it wait for the same
        session.step()
        waiting = session.forwarded or {session.backlog.best_rank(): session.backlog.best()}
        # forwarded jobs are the best of those that wait
        first = [*session.readmitted_before(job), waiting[min(waiting)]][0]
        if first is not job:
            yield from self._any([first], "of its session", way)
        else:
            yield from self._rate(session, job, [job], "", way)

    # ---- in the line of its lane

    def _in_lane(self, job: AnyJob, lane: LaneActor, way: _Way) -> Iterator[Cause]:
        lane.step()
        line = lane.line.in_order()
        before = list(takewhile(lambda other: other is not job, islice(line, _MOST_PLACES)))
        place = len(before)
        jobs, head, more = [*before, job], (before or [job])[0], before_it(place, _MOST_PLACES)
        if place == _MOST_PLACES:
            jobs = []
        group = lane.group
        # else jobs of other lanes come between
        alone = group is not None and (
            place == 0 or not any(other.line for other in group.lanes if other is not lane)
        )
        of_group = [] if group is None else [(group, head, jobs if alone else [])]
        yield from self._pause(lane, way, [(lane, head, jobs), *of_group])
        yield from self._slots(lane, place + len(lane.slot_requests), way)
        yield from self._rate(lane, head, jobs, more, way)
        if group is None:
            return
        first = group.waits_for_charge(self._now)
        if first is not None and first._lane is not lane:
            yield from self._any([first], f'before it in the group "{group.name}"', way)
        else:
            yield from self._rate(group, head, jobs if alone else [], more, way)

    def _slots(self, lane: LaneActor, before: int, way: _Way) -> Iterator[Cause]:
        limiter, group = lane.limiter, lane.group
        is_back = way[-1][0] in lane.slot_requests  # then it ignores reservations
        if limiter.available_tokens < 1:
            if not limiter.total_tokens:
                yield self._none(lane, way)
            else:
                sharing = [one for one in lane.lanes.values() if one.limiter is limiter]
                used, most = limiter.borrowed_tokens, limiter.total_tokens
                words = f'slots of "{lane.name}": {used} of {most}'
                yield from self._held("concurrency", lane.name, words, sharing, before, way)
        if group is not None and group.leaves_none(lane.label) and not is_back:
            root = f'slots of the group "{group.name}": all are reserved for other lanes'
            yield _cause(way, "reservation", group.name, root)
        elif group is not None and not group.has_budget:
            used, most = sum(group.used.values()), group.config.concurrency
            words = f'slots of the group "{group.name}": '
            if most:
                words += f"{used} of {most}"
                yield from self._held("group", group.name, words, group.lanes, before, way)
            else:
                yield _cause(way, "group", group.name, f"{words}it has none")
        elif group is None or is_back:
            return
        elif group.reserved(lane.label):
            root = f'slots of the group "{group.name}": those left are reserved for other lanes'
            yield _cause(way, "reservation", group.name, root + before_it(before, _MOST_PLACES))

    def _held(
        self, kind: str, name: str, words: str, lanes: list[LaneActor], before: int, way: _Way
    ) -> Iterator[Cause]:
        """Yield the roots of a wait for slots or tokens that the jobs of ``lanes`` hold."""
        holders = [job for lane in lanes for job in lane.running_jobs() if job._slot is HELD]
        holders.sort(key=lambda job: job.started_at or 0)
        others = kind == "concurrency" and len(holders) < lanes[0].limiter.borrowed_tokens
        if holders and not others and not any(map(can_continue, holders)):
            yield from self._any(holders, f'{_HOLDER} "{holders[0].lane}"', way)
            return
        root = f"{words} in use"
        for holder in holders[:1]:
            assert holder.started_at is not None
            root += f", longest by {holder.id} for {in_words(self._now - holder.started_at)}"
        if others and not holders:
            root += " by other code"
        overdue = [job for lane in lanes for job in islice(lane.overdue, 1) if job in holders]
        advice = _end(holders[0]) if self._hung(holders) else None
        if overdue:
            advice = _reset(overdue[0])
        ids = tuple(job.id for job in holders[:_FEW])
        yield _cause(
            way, kind, name, root + before_it(before, _MOST_PLACES), jobs=ids, advice=advice
        )

    # ---- roots

    def _none(self, actor: Actor, way: _Way) -> Cause:
        return _cause(way, "concurrency", actor.name, f'slots of "{actor.name}": it has none')

    def _pause(
        self, actor: Actor, way: _Way, then: Iterable[tuple[Actor | Group, AnyJob, list[AnyJob]]]
    ) -> Iterator[Cause]:
        """Yield the pause of ``actor``, with the time of the rates ``then``, unless these are roots
        themselves: each with the head, and the jobs up to the last of the way, if known."""
        if not actor.paused:
            return
        when = None if actor.paused_for_ever else actor.paused_until
        ends = [when]
        for served, head, jobs in then:
            is_root = served.rates.ready_at(head._costs, self._now) > self._now
            if served.rates.units and when is not None and not is_root:
                costs = [job._costs for job in jobs]
                ends.append(served.rates.forecast(costs, when)[0] if jobs else None)
        known = [end for end in ends if end is not None]
        seconds = max(known) - self._now if len(known) == len(ends) else None
        yield _cause(way, "pause", actor.name, f'pause of "{actor.name}"', seconds=seconds)

    def _rate(
        self, served: Actor | Group, head: AnyJob, jobs: list[AnyJob], more: str, way: _Way
    ) -> Iterator[Cause]:
        """Yield the rate of ``served``, if it holds ``head``; the jobs up to the last of the way
        are ``jobs``, if they are known."""
        if served.rates.ready_at(head._costs, self._now) > self._now:
            costs = [job._costs for job in jobs or [head]]
            when, limit = served.rates.forecast(costs, self._now)
            what = "the group " if isinstance(served, Group) else ""
            root = f'rate of {what}"{served.name}": {limit.in_words}{more}'
            seconds = when - self._now if jobs else None
            yield _cause(way, "rate", served.name, root, seconds=seconds)


def _cause(way: _Way, kind: str, lane: str, root: str, **more: Any) -> Cause:
    """Return the root ``kind`` at the end of ``way``; ``more`` is for `cause_at`."""
    cause = cause_at([(job.id, relation) for job, relation in way], kind, lane, root, **more)
    for (job, relation), (_, to_next) in pairwise(way):
        if relation.startswith(_HOLDER) and to_next == _AWAITED:
            lend = f"have {job.id} lend its slot while it waits (yield_slot)"
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
