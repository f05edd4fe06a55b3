"""Inspection of a store: the status of jobs, statistics, and the check of consistency."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

import attrs

from ... import RateLimit
from .._contract.protocol import LISTED, PAGE, REQUESTS_LISTED, STEP_BYTES
from .._contract.records import (
    CheckReport,
    DurableLaneStatistics,
    DurableStatistics,
    DurableStatus,
    Ended,
    InstanceInfo,
    JobTexts,
    LineRequest,
    LockStatistics,
    QueuedJob,
    QuotaLevel,
    QuotaStatistics,
    Selection,
)
from .._contract.state import DEAD, ENDED, FAILED, PARKED, RUNNING, WAITING
from .claims import bytes_of, is_paused
from .history import attempts
from .job_record import ON_LIST, JobRecord
from .lane_limits import label_of, limit_of
from .queues import Queues
from .rates import Meter, quota_meters
from .request import Request
from .tables import Item, Tables

_ENDED = {state.value for state in ENDED}
_ByName: TypeAlias = defaultdict[str, list[Request]]


def status_of(job: JobRecord) -> DurableStatus:
    """Return the public status of a job."""
    error = None
    if job.state in (DEAD, FAILED) and job.outcome is not None:
        told = json.loads(job.outcome)
        error = f"{told['type']}: {told['message']}"
    return DurableStatus(
        id=job.id,
        name=job.name,
        session=job.session,
        lane=job.lane,
        priority=job.priority,
        key=job.key,
        state=job.state,
        why=job.why,
        until=job.due if job.state is PARKED else None,
        attempt=job.attempts + (job.state is RUNNING),
        crashes=job.crashes,
        instance=job.instance if job.state is RUNNING else None,
        cancelling=job.state is RUNNING and job.cancel is not None,
        error=error,
        submitted_at=job.submitted_at,
        history=attempts(job.history),
    )


def with_texts(queues: Queues, id: int) -> DurableStatus | None:
    """Return the public status of a job, with what it carries; None if it is unknown."""
    job, tables = queues.known(id), queues.tables
    if job is None:
        return None
    events = tables.items(job.event_list, job.emitted - LISTED, LISTED)
    messages = tables.items(job.message_list, job.sent - LISTED, LISTED)
    texts = JobTexts(
        payload=job.payload or None,
        checkpoint=job.checkpoint,
        outcome=job.outcome,
        events=tuple((item.number, item.data) for item in events),
        messages=tuple((item.number, item.taken, item.data) for item in messages),
    )
    return attrs.evolve(status_of(job), texts=texts)


def page_of(records: Iterable[Item]) -> list[tuple[int, str, str]]:
    """Return the first records of a log that have at most ``STEP_BYTES`` of text, or a single one.

    Each is (number, incarnation that added it, text).
    """
    page: list[tuple[int, str, str]] = []
    size = 0
    for number, text, author, _ in records:
        size += len(text.encode())
        if page and size > STEP_BYTES:
            break
        assert author is not None
        page.append((number, author, text))
    return page


def queue(queues: Queues, session: str, limit: int) -> list[QueuedJob]:
    """Return the oldest jobs of a session that have not ended, with their payloads."""
    unended = Selection(states=frozenset({WAITING, PARKED, RUNNING}), session=session)
    found = queues.tables.select(unended, 0, min(limit, PAGE), queues.now)
    jobs: list[QueuedJob] = []
    size = 0
    for job in found:
        size += bytes_of(job)
        if jobs and size > STEP_BYTES:
            break
        jobs.append(
            QueuedJob(
                id=job.id,
                name=job.name,
                key=job.key,
                state=job.state,
                payload=job.payload,
                begun=bool(job.attempts or job.crashes or job.checkpoint is not None),
                age=max(0.0, queues.now - job.submitted_at),
            )
        )
    return jobs


def ended_of(job: JobRecord) -> Ended | None:
    """Return how a job ended; None if it has not ended and is not dead."""
    if job.state in ENDED or job.state is DEAD:
        return Ended(job.state, job.outcome or "null")
    return None


def instances(tables: Tables) -> list[InstanceInfo]:
    """Return the instances, each with the number of its running jobs."""
    return [attrs.evolve(info, running=len(tables.running(info.id))) for info in tables.instances()]


def statistics(tables: Tables, now: float) -> DurableStatistics:
    """Return the numbers of jobs and sessions, by lane and in all."""
    handled = {name for info in tables.instances() for name in info.names}
    requests = tables.requests_of(None)
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    known = tables.lanes()
    for (lane, state, name), count in tables.counts().items():
        if state in _ENDED or label_of(known, lane) is None:
            continue
        of_lane = sums[lane]
        of_lane[state] += count
        if state in (WAITING.value, PARKED.value) and name not in handled:
            of_lane["unhandled"] += count
    sessions = tables.sessions_of_lanes()
    lanes: dict[str, DurableLaneStatistics] = {}
    for name in sorted({*known, *sums}):
        limit = limit_of(known, name)
        if limit is None:  # a template
            continue
        if name not in sums and known[name].pause_only and not is_paused(limit, now):
            continue  # a lane of a template whose pause is over
        numbers = sums[name]
        lanes[name] = DurableLaneStatistics(
            waiting=numbers[WAITING.value],
            parked=numbers[PARKED.value],
            running=numbers[RUNNING.value],
            dead=numbers[DEAD.value],
            unhandled=numbers["unhandled"],
            sessions=sessions.get(name, 0),
            concurrency=limit.concurrency,
            max_waiting=limit.max_waiting,
            paused=is_paused(limit, now),
        )
    return DurableStatistics(
        waiting=sum(lane.waiting for lane in lanes.values()),
        parked=sum(lane.parked for lane in lanes.values()),
        running=sum(lane.running for lane in lanes.values()),
        dead=sum(lane.dead for lane in lanes.values()),
        unhandled=sum(lane.unhandled for lane in lanes.values()),
        sessions=tables.sessions(),
        lanes=lanes,
        store=tables.identity(),
        paused=paused_of(tables.pauses(), now),
        locks=locks_of(requests),
        quotas=quotas_of(_levels(tables, now), requests),
    )


def paused_of(pauses: Mapping[str, float], now: float) -> dict[str, float | None]:
    """Return the first paused sessions; None: until it is resumed."""
    paused = sorted((session, until) for session, until in pauses.items() if until > now)
    return {session: None if until == math.inf else until for session, until in paused[:LISTED]}


def locks_of(requests: Iterable[Request]) -> tuple[LockStatistics, ...]:
    """Return the locks of requests, which are in order: the most wanted first."""
    held, waits = _by_name(one for one in requests if not one.is_for_quota)
    most_wanted = sorted({*held, *waits}, key=lambda key: (-len(waits[key]), key))[:LISTED]
    return tuple(
        LockStatistics(key, len(held[key]), len(waits[key]), _shown(held[key]), _shown(waits[key]))
        for key in most_wanted
    )


def quotas_of(
    levels: Mapping[str, tuple[QuotaLevel, ...]], requests: Iterable[Request]
) -> tuple[QuotaStatistics, ...]:
    """Return the quotas by their levels, and the requests that wait for them."""
    _, waits = _by_name(one for one in requests if one.is_for_quota)
    return tuple(
        QuotaStatistics(name, level, len(waits[name]), _shown(waits[name]))
        for name, level in levels.items()
    )


def _by_name(requests: Iterable[Request]) -> tuple[_ByName, _ByName]:
    """Return the requests that were served, and those that wait."""
    held, waits = _ByName(list), _ByName(list)
    for request in requests:
        (waits if request.served is None else held)[request.name].append(request)
    return held, waits


def _shown(requests: Sequence[Request]) -> tuple[LineRequest, ...]:
    first = requests[:REQUESTS_LISTED]
    return tuple(LineRequest(one.instance, one.job, one.since) for one in first)


def _levels(tables: Tables, now: float) -> dict[str, tuple[QuotaLevel, ...]]:
    return {
        name: tuple(
            _level(tables, meter, limit, now)
            for meter, limit in zip(quota_meters(f"quota {name}", limits), limits, strict=True)
        )
        for name, limits in sorted(tables.quotas().items())[:LISTED]
    }


def _level(tables: Tables, meter: Meter, limit: RateLimit, now: float) -> QuotaLevel:
    marks = tables.marks(meter.key)
    used = math.ceil(meter.of.used(marks, now))
    return QuotaLevel(limit, used, meter.of.refilled_at(marks) if used else None)


def check(queues: Queues, *, repair: bool) -> CheckReport:
    """Compare every job with the invariants of `engine`; repair the differences, if asked."""
    tables = queues.tables
    problems = list(tables.inspect())
    repaired = 0
    known = {info.id for info in tables.instances()}
    lanes = tables.lanes()
    lost: defaultdict[str | None, list[JobRecord]] = defaultdict(list)  # runs of no instance
    wrong: list[tuple[str, JobRecord, bool]] = []  # (problem, job, whether it should be ready)
    for session, in_session in groupby(tables.all_live(), key=lambda job: job.session):
        queue = _with_heads(session, in_session)
        for job, is_head in queue:
            problem = _wrong_with(job, is_head)
            if problem is not None:
                wrong.append((problem, job, is_head and job.state is WAITING))
            if job.state is RUNNING and job.instance not in known:
                problems.append(f"job {job.id} runs on an instance that is not in the store")
                if is_head:
                    lost[job.instance].append(job)
            if label_of(lanes, job.lane) is None:
                problems.append(f"job {job.id} is for lane {job.lane!r}, which is not in the store")
    for problem, job, on_list in wrong:
        problems.append(f"job {job.id} {problem}")
        if repair:
            repaired += 1
            tables.update(job, ready=None, shelf=ON_LIST)
            if on_list:
                queues.list_ready(job)
    if repair:
        for runs in lost.values():
            repaired += len(runs)
            queues.crash(runs)
        repaired += tables.recount()
    return CheckReport(tuple(problems), repaired)


def _with_heads(
    session: str | None, queue: Iterable[JobRecord]
) -> Iterable[tuple[JobRecord, bool]]:
    """Yield each job of a queue, and whether it is the head, or has no session."""
    behind = False
    for job in queue:
        yield job, session is None or (job.place is not None and not behind)
        behind = behind or job.place is not None


def _wrong_with(job: JobRecord, is_head: bool) -> str | None:
    if job.state is WAITING and is_head and job.ready is None:
        return "is a waiting head, and is on no ready list"
    if job.ready is not None and job.state is not WAITING:
        return f"is on a ready list, though it is {job.state.value}"
    if job.ready is not None and not is_head:
        return "is on a ready list, though other jobs of its session are before it"
    if job.state is RUNNING and not is_head:
        return "runs, though other jobs of its session are before it"
    return None
