"""`Job.blocked_by` and `Lanes.would_wait`: the reasons why a job waits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from .._actors.actor import Actor
from .._actors.group import Group
from .._actors.job import AnyJob, Blocker
from .._actors.lane import LaneActor
from .._actors.line import Displacement
from .._actors.session import SessionActor
from .._actors.state import HELD, QUEUED, RUNNING, WAITING
from .deadlock import can_never_regain_slot

_LOWERED: Final = "a limit was lowered, and no slot can come unless it is raised"


def blockers(job: AnyJob, now: float) -> tuple[Blocker, ...]:
    """Return why ``job`` waits now; empty if it has settled, or runs and waits for no job."""
    if job._state is RUNNING:
        return tuple(_of_running(job, now))
    if job._state is not WAITING:
        return ()
    lane: LaneActor = job._lane
    session: SessionActor | None = job._session_lane
    if job.id in lane.delayed:
        return (Blocker("delay", lane.name, until=job.submitted_at + job._options.delay),)
    if session is not None and job._place not in session.forwarded:
        return tuple(_session_itself(job, session, session.before(job), now))
    return tuple(_in_lane(job, lane, now))


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
        held = _session_itself(job, session, session.newcomer_before(job), now)
        if held:
            return tuple(held)
        way = session.displacement_for(job)
    line = lane.line_with(job, way)
    before = line.before(job)
    found = _lane_itself(job, lane, before, now)
    if not before and lane.group is not None:
        found += _rate(lane.group, job, now)
        first = lane.group.head_before(lane, job, line.since(), way.leave, now)
        if first is not None:
            found.append(Blocker("order", lane.group.name, (first,)))
    return tuple(found)


def _of_running(job: AnyJob, now: float) -> list[Blocker]:
    found = []
    for wait in (job._waits or {}).values():
        if wait.target is not None:
            found.append(Blocker("job", wait.target.lane, (wait.target,)))
        elif wait.any_of:
            jobs = _sorted(wait.any_of)
            found.append(Blocker("job", jobs[0].lane, jobs))
        else:
            assert wait.request is not None
            actor: Actor = wait.request.actor
            found.append(Blocker("room", actor.name, _sorted(actor.waiting_jobs())))
    for reason in job._lenders:
        if reason is not None:
            found.append(Blocker("lent", job.lane, reason=reason))
    if job in job._lane.slot_requests:
        # Without a change of limits it would have been found when the other wait began.
        why = _LOWERED if can_never_regain_slot(job) else None
        slots = _slots(job._lane, requested=True)
        found += [attrs.evolve(blocker, reason=why) for blocker in slots]
    elif job._slot is QUEUED and job._arrival:
        found += _in_lane(job, job._lane, now)
    elif job._slot is QUEUED:
        session: SessionActor | None = job._session_lane
        assert session is not None
        found += _pause(session)
        before = session.before_again(job)
        if before:
            found.append(Blocker("order", session.name, tuple(before)))
        else:
            found += _rate(session, job, now)
    return found


def _session_itself(
    job: AnyJob, session: SessionActor, before: list[AnyJob], now: float
) -> list[Blocker]:
    found = _pause(session)
    running = session.running_jobs()
    if len(running) >= session.concurrency:
        found.append(Blocker("session", session.name, tuple(running)))
    if before:
        found.append(Blocker("order", session.name, tuple(before)))
    elif session.rates:
        found += _rate(session, job, now)
    return found


def _in_lane(job: AnyJob, lane: LaneActor, now: float) -> list[Blocker]:
    before = lane.before(job)
    found = _lane_itself(job, lane, before, now)
    if not before and lane.group is not None:
        found += _rate(lane.group, job, now)
        first = lane.group.waits_for_charge(now)
        if first is not None and first is not job:
            found.append(Blocker("order", lane.group.name, (first,)))
    return found


def _lane_itself(job: AnyJob, lane: LaneActor, before: list[AnyJob], now: float) -> list[Blocker]:
    found = _pause(lane)
    if before:
        found.append(Blocker("order", lane.name, tuple(before)))
    found += _slots(lane)
    if not before:
        found += _rate(lane, job, now)
    return found


def _slots(lane: LaneActor, *, requested: bool = False) -> list[Blocker]:
    found = []
    if lane.limiter.available_tokens < 1:
        lanes = [other for other in lane.lanes.values() if other.limiter is lane.limiter]
        found.append(Blocker("concurrency", lane.name, _holders(lanes)))
    group = lane.group
    if group is not None:
        if not group.has_budget:
            found.append(Blocker("group", group.name, _holders(group.lanes)))
        elif group.reserved(lane.label) and not requested:
            found.append(Blocker("reservation", group.name, _holders(group.lanes)))
    return found


def _holders(lanes: list[LaneActor]) -> tuple[AnyJob, ...]:
    return _sorted(job for lane in lanes for job in lane.running_jobs() if job._slot is HELD)


def _sorted(jobs: Iterable[AnyJob]) -> tuple[AnyJob, ...]:
    return tuple(sorted(jobs, key=lambda job: job.id))


def _pause(actor: Actor) -> list[Blocker]:
    if not actor.paused:
        return []
    until = None if actor.paused_for_ever else actor.paused_until
    return [Blocker("pause", actor.name, until=until)]


def _rate(actor: Actor | Group, job: AnyJob, now: float) -> list[Blocker]:
    when = actor.rates.ready_at(job._costs, now)
    return [Blocker("rate", actor.name, until=when)] if when > now else []
