"""`blockers`: why a job does not go on, by the rules of a claim.

It checks what `Claims` checks, in one lane: is the job the head of its session, is the lane or
session paused, which job is next on the ready lists, is there a slot, do the rates allow a start.
So it costs as much as one lane's part of a claim, however many jobs wait.

The room of an instance is no reason, since the store does not know it between two steps. Nor is a
suspect that another lane has, for which an instance may claim nothing for a while.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ... import resolve_session_lane
from .._contract.protocol import JOBS_LISTED
from .._contract.records import DurableBlocker
from .._contract.state import DEAD, PARKED, RUNNING, WAITING
from . import lines
from .budget import Budget
from .claims import FairTurns, LaneTurn, is_paused
from .job_record import HOLDS_SLOT, LENT_SLOT, SESSION_PAUSED, JobRecord
from .queues import Queues
from .request import Request
from .tables import INSTANCES, PAUSES


def blockers(queues: Queues, id: int) -> tuple[DurableBlocker, ...] | None:
    """Return why a job does not go on; None if it is unknown."""
    job = queues.known(id)
    if job is None:
        return None
    if job.state is RUNNING:
        return tuple(_of_run(queues, job))
    if job.state is WAITING or job.state is PARKED:
        return tuple(_of_waiting(queues, job))
    return ()


def _of_run(queues: Queues, job: JobRecord) -> Iterator[DurableBlocker]:
    if job.lent == LENT_SLOT:
        yield DurableBlocker("lent", job.lane)
    elif job.lent != HOLDS_SLOT:
        budget = Budget(queues.tables, queues.now)
        for kind, name in budget.return_refused_by(job):
            yield DurableBlocker(kind, name, budget.holder(kind, job.lane))
    assert job.instance is not None
    for request in queues.tables.requests_of(job.instance):
        if request.job == job.id and request.served is None:
            yield _in_line(queues, request)


def _in_line(queues: Queues, request: Request) -> DurableBlocker:
    before = queues.tables.first_request(request.line, served=not request.is_for_quota)
    job = None if before is None else before.job
    if not request.is_for_quota:
        return DurableBlocker("lock", request.name, job)
    if before is None or before.id != request.id:
        return DurableBlocker("quota", request.name, job)
    at = lines.ready_at(queues, request)
    return DurableBlocker("quota", request.name, until=at if at > queues.now else None)


def _of_waiting(queues: Queues, job: JobRecord) -> Iterator[DurableBlocker]:
    if job.due is not None and job.due > queues.now:  # else the next step queues it
        yield DurableBlocker("delay" if job.why == "delay" else "retry", job.lane, until=job.due)
        return
    if job.session is not None:
        lane = resolve_session_lane(job.session)
        until = queues.tables.of(PAUSES).get(job.session)
        if until is not None and until > queues.now:
            yield DurableBlocker("pause", lane, until=_known(until))
        head = queues.tables.head(job.session)
        if head is not None and head.id != job.id:
            if head.state is RUNNING:
                yield DurableBlocker("session", lane, head.id)
            else:
                yield DurableBlocker("dead" if head.state is DEAD else "order", lane, head.id)
            return
    yield from _in_lane(queues, job)


def _in_lane(queues: Queues, job: JobRecord) -> Iterator[DurableBlocker]:
    tables, now, lane = queues.tables, queues.now, job.lane
    budget = Budget(tables, now)
    limit = budget.limit(lane)
    if limit is None:  # only in a store that `inspection.check` finds wrong
        return
    if is_paused(limit, now):
        yield DurableBlocker("pause", lane, until=_known(limit.paused_until))
    live = [
        info
        for info in tables.of(INSTANCES).values()
        if info.lease_until > now and job.name in info.names
    ]
    if not live:
        yield DurableBlocker("handler", lane)
    most = queues.max_runs_with(job)
    if live and all(tables.runs().count_and_suspects(info.id)[0] >= most for info in live):
        yield DurableBlocker("suspect", lane)
    is_next = True
    if job.ready is not None and job.shelf != SESSION_PAUSED:
        names = {name for info in live for name in info.names}
        turn = LaneTurn(queues, tables.counts(), lane, names, FairTurns(tables), budget, 1)
        first = turn.first()
        if first is not None and first.id != job.id:
            is_next = False
            ages = limit.aging < math.inf
            if ages:
                before = turn.consume_before(job, JOBS_LISTED)
            else:
                before = tables.ready_before(job, JOBS_LISTED)
            # of a fair lane: owners
            yield DurableBlocker("order", lane, first.id, before=max(1, before))
    for kind, name in budget.refused_by(lane):
        yield DurableBlocker(kind, name, budget.holder(kind, lane))
    if is_next:
        for name, time in budget.rates_until(job):
            yield DurableBlocker("rate", name, until=time)


def _known(until: float | None) -> float | None:
    return None if until == math.inf else until
