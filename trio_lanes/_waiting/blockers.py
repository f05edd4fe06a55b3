"""`Job.blocked_by` and `Lanes.would_wait`: the reasons why a job waits.

They are `Obstacle`s first, which `causes` follows to the roots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from .._actors.actor import Actor
from .._actors.group import Group
from .._actors.job import AnyJob, Blocker, BlockerKind
from .._actors.lane import LaneActor
from .._actors.line import Displacement
from .._actors.session import SessionActor
from .._actors.state import HELD, QUEUED, RUNNING, WAITING
from .deadlock import can_never_regain_slot

_BY_ID: Final = attrgetter("id")
_LOWERED: Final = "a limit was lowered, and no slot can come unless it is raised"


class Obstacle(NamedTuple):
    """What a `Blocker` says, of the object itself and not of its name."""

    kind: BlockerKind
    by: Actor | Group
    jobs: Iterable[AnyJob] = ()
    until: float | None = None
    reason: str | None = None


def blockers(job: AnyJob, now: float) -> tuple[Blocker, ...]:
    """Return why ``job`` waits now; empty if it has settled, or runs and waits for no job."""
    found, line = list(own_obstacles(job)), line_of(job)
    if line is not None:
        found += obstacles_in(line, job, line.before(job), now)
    # without a change of limits it would have been found when the other wait began
    is_back = job in job._lane.slot_requests
    why = _LOWERED if is_back and can_never_regain_slot(job) else None
    return tuple(_blocker(one, why) for one in found)


def newcomers_blockers(
    job: AnyJob, session: SessionActor | None, now: float
) -> tuple[Blocker, ...]:
    """Return why ``job``, which was not submitted, would wait if it were submitted now."""
    lane: LaneActor = job._lane
    delay = job._options.delay
    if delay:
        return (Blocker("delay", lane.name, until=now + delay),)
    way = Displacement()
    if session is not None:
        held = [*obstacles_in(session, job, session.newcomer_before(job), now)]
        if held:
            return tuple(map(_blocker, held))
        way = session.displacement_for(job)
    line = lane.line_with(job, way)
    before = line.before(job)
    found = [*_in_lane(lane, job, before, now)]
    if not before and lane.group is not None:
        first = lane.group.head_before(lane, job, line.since(), way.leave, now)
        if first is not None:
            found.append(Obstacle("order", lane.group, (first,)))
    return tuple(map(_blocker, found))


def own_obstacles(job: AnyJob) -> Iterator[Obstacle]:
    """Yield why ``job`` waits, but for what holds it where it stands in line."""
    lane: LaneActor = job._lane
    if job._state is WAITING and job.id in lane.delayed:
        yield Obstacle("delay", lane, until=job.submitted_at + job._options.delay)
    elif job._state is RUNNING:
        for wait in (job._waits or {}).values():
            if wait.request is not None:
                actor: Actor = wait.request.actor
                yield Obstacle("room", actor, actor.waiting_jobs())
            else:
                jobs = wait.any_of if wait.target is None else (wait.target,)
                yield Obstacle("job", min(jobs, key=_BY_ID)._lane, jobs)
        for reason in job._lenders:
            if reason is not None:
                yield Obstacle("lent", lane, reason=reason)
        if job in lane.slot_requests:
            yield from _slots(lane, requested=True)


def line_of(job: AnyJob) -> SessionActor | LaneActor | None:
    """Return where ``job`` stands in line: in its session or, forwarded, in its lane; or None."""
    lane: LaneActor = job._lane
    session: SessionActor | None = job._session_lane
    if job._state is WAITING and job.id not in lane.delayed:
        return lane if session is None or job._place in session.forwarded else session
    if job._state is RUNNING and job._slot is QUEUED:
        return lane if job._arrival else session
    return None


def obstacles_in(
    line: SessionActor | LaneActor, job: AnyJob, before: list[AnyJob], now: float
) -> Iterator[Obstacle]:
    """Yield what holds ``job`` in a line in which the jobs ``before`` stand before it."""
    if isinstance(line, LaneActor):
        yield from _in_lane(line, job, before, now)
        first = None if before or line.group is None else line.group.waits_for_charge(now)
        if first is not None and first is not job:
            assert line.group is not None
            yield Obstacle("order", line.group, (first,))
        return
    yield from _pause(line)
    if job._state is WAITING and len(line.running) >= line.concurrency:
        yield Obstacle("session", line, line.running_jobs())
    if before:
        yield Obstacle("order", line, before)
    else:
        yield from _rate(line, job, now)


def _in_lane(lane: LaneActor, job: AnyJob, before: list[AnyJob], now: float) -> Iterator[Obstacle]:
    """Yield what holds ``job`` in its lane, but for the heads of other lanes of the group."""
    yield from _pause(lane)
    if before:
        yield Obstacle("order", lane, before)
    yield from _slots(lane)
    if not before:
        yield from _rate(lane, job, now)
        if lane.group is not None:
            yield from _rate(lane.group, job, now)


def _slots(lane: LaneActor, *, requested: bool = False) -> Iterator[Obstacle]:
    if lane.limiter.available_tokens < 1:
        lanes = [other for other in lane.lanes.values() if other.limiter is lane.limiter]
        yield Obstacle("concurrency", lane, _holders(lanes))
    group = lane.group
    if group is not None:
        if not group.has_budget:
            yield Obstacle("group", group, _holders(group.lanes))
        elif group.reserved(lane.label) and not requested:
            yield Obstacle("reservation", group, _holders(group.lanes))


def _holders(lanes: list[LaneActor]) -> list[AnyJob]:
    return [job for lane in lanes for job in lane.running_jobs() if job._slot is HELD]


def _pause(actor: Actor) -> Iterator[Obstacle]:
    if actor.paused:
        yield Obstacle("pause", actor, until=None if actor.paused_for_ever else actor.paused_until)


def _rate(actor: Actor | Group, job: AnyJob, now: float) -> Iterator[Obstacle]:
    when = actor.rates.ready_at(job._costs, now)
    if when > now:
        yield Obstacle("rate", actor, until=when)


def _blocker(one: Obstacle, why: str | None = None) -> Blocker:
    """Return ``one`` for users; ``why`` is the reason of a wait for slots, if there is one."""
    jobs = one.jobs if one.kind == "order" else sorted(one.jobs, key=_BY_ID)
    reason = why if one.kind in ("concurrency", "group") else one.reason
    return Blocker(one.kind, one.by.name, tuple(jobs), one.until, reason)
