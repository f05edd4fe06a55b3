"""Inspection: limits and rules, the status of jobs, statistics, and the check of consistency."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

import attrs

from ..._config.names import template_of
from .._contract.act import PortionedAct, Question
from .._contract.protocol import JOBS_LISTED, NAMES_LISTED, REQUESTS_LISTED, STEP_BYTES
from .._contract.records import (
    CheckReport,
    DurableAttempt,
    DurableBlocker,
    DurableLaneStatistics,
    DurableStatistics,
    DurableStatus,
    GroupLimit,
    HeldSnapshot,
    InstanceInfo,
    JobTexts,
    LaneLimit,
    LineRequest,
    LockStatistics,
    QueuedJob,
    QuotaLevel,
    QuotaStatistics,
    Selection,
    StoreRules,
)
from .._contract.state import DEAD, FAILED, PARKED, RUNNING, WAITING
from .._rules.blockers import blockers
from .._rules.claims import bytes_of, is_paused
from .._rules.history import attempts, waits_of
from .._rules.job_record import ON_LIST, JobRecord
from .._rules.lane_limits import configured, label_of, limit_of
from .._rules.lines import quotas
from .._rules.queues import Queues
from .._rules.request import Request
from .._rules.tables import GROUPS, HOLDS, INSTANCES, LIMITS, PAUSES, QUOTAS, silent_for

_SUMS = ("waiting", "parked", "running", "dead", "unhandled", "due")
_ByName: TypeAlias = defaultdict[str, list[Request]]


class AllLanes(Question[Mapping[str, LaneLimit]]):
    """The limits of lanes and templates, by name."""

    def answer(self, queues: Queues) -> Mapping[str, LaneLimit]:
        return configured(queues.tables.of(LIMITS))


class AllGroups(Question[Mapping[str, GroupLimit]]):
    """The groups and their limits, by name."""

    def answer(self, queues: Queues) -> Mapping[str, GroupLimit]:
        return queues.tables.of(GROUPS)


class AllRules(Question[StoreRules]):
    """The rules that hold for all instances."""

    def answer(self, queues: Queues) -> StoreRules:
        return queues.rules


class AllInstances(Question[list[InstanceInfo]]):
    """The instances that claim from the store, each with the number of its running jobs."""

    def answer(self, queues: Queues) -> list[InstanceInfo]:
        found = []
        for info in queues.tables.of(INSTANCES).values():
            runs = queues.tables.running(info.id)
            lanes = Counter(job.lane for job in runs[:JOBS_LISTED])
            alive, silent = queues.is_alive(info.id), silent_for(info, queues.now)
            more = attrs.evolve(info, running=len(runs), lanes=dict(lanes), alive=alive)
            found.append(attrs.evolve(more, silent=silent))
        return found


class HeldSnapshots(Question[list[HeldSnapshot]]):
    """What keeps the database from forgetting rows that were changed since, if it can tell."""

    def answer(self, queues: Queues) -> list[HeldSnapshot]:
        return queues.tables.held_snapshots()


class QueueOf(Question[list[QueuedJob]], long=True):
    """The oldest waiting, parked and running jobs of a session, in order of their ids.

    They are at most ``JOBS_LISTED``, with at most ``STEP_BYTES`` of payloads, or are a single job.
    """

    session: str
    limit: int

    def answer(self, queues: Queues) -> list[QueuedJob]:
        unended = Selection(states=frozenset({WAITING, PARKED, RUNNING}), session=self.session)
        found = queues.tables.select(unended, 0, min(self.limit, JOBS_LISTED), queues.now)
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


class StatusOf(Question[DurableStatus | None]):
    """The state of a job, with what it carries if ``texts``; None if it is unknown."""

    id: int
    texts: bool = False

    @property
    def long(self) -> bool:
        return self.texts

    def answer(self, queues: Queues) -> DurableStatus | None:
        job = queues.known(self.id)
        if job is None:
            return None
        status = status_from(job, queues.now, _holds_of(queues, job))
        return attrs.evolve(status, texts=_texts_of(queues, job)) if self.texts else status


class RunningIn(Question[DurableStatus | None]):
    """The job that runs in a session; None if none runs."""

    session: str

    def answer(self, queues: Queues) -> DurableStatus | None:
        job = queues.running_in(self.session)
        return None if job is None else status_from(job, queues.now, _holds_of(queues, job))


class Keyed(Question[DurableStatus | None]):
    """The job that has a key, which may have ended; None if none has it."""

    key: str

    def answer(self, queues: Queues) -> DurableStatus | None:
        job = queues.tables.keyed(self.key)
        return None if job is None else status_from(job, queues.now, _holds_of(queues, job))


class BlockersOf(Question[tuple[DurableBlocker, ...] | None]):
    """Why a job does not go on; None if it is unknown.

    The answer is empty if the job has ended, or runs and has its slot, and waits for no lock and no
    quota; or if the next step that has room for it claims it. A store reads no more than the head
    of the session, the fronts of the lane's ready lists, the limits and runs of the lanes of its
    group, and the requests of the instance that runs it.
    """

    id: int

    def answer(self, queues: Queues) -> tuple[DurableBlocker, ...] | None:
        return blockers(queues, self.id)


class JobsOf(Question[list[DurableStatus]], long=True):
    """The first ``limit`` jobs of a selection with ids above ``after``, in order of their ids."""

    of: Selection
    after: int
    limit: int
    """At most ``JOBS_LISTED``; fewer jobs mean that there are no more."""

    def answer(self, queues: Queues) -> list[DurableStatus]:
        limit = min(self.limit, JOBS_LISTED)
        found = queues.tables.select(self.of, self.after, limit, queues.now)
        return [status_from(job, queues.now, _holds_of(queues, job)) for job in found]


class AllStatistics(Question[DurableStatistics], long=True):
    """The numbers of jobs and sessions, by lane and in all; and who has and who waits for locks and
    quotas, with the levels of these; and the paused sessions."""

    quota: str | None = None
    """The one quota whose levels are asked for, not those of the first."""

    def answer(self, queues: Queues) -> DurableStatistics:
        tables, now = queues.tables, queues.now
        ahead = tables.ahead_of_wall()
        counts = [(*key, n) for key, n in tables.counts().all().items()]
        due = Counter(tables.parked_until(now, JOBS_LISTED))
        due.update(one.job.lane for one in tables.schedules_due(now - ahead, NAMES_LISTED))
        fires = [one.next for one in tables.schedules_due(math.inf, 1)]
        first = tables.next_due()
        levels, known = quotas(tables, now, self.quota), tables.of(QUOTAS)
        templates = {name: template_of(name, known) for name in levels if name not in known}
        return statistics_of(
            now,
            tables.of(LIMITS),
            counts,
            tables.ends(),
            {name for info in tables.of(INSTANCES).values() for name in info.names},
            tables.sessions_of_lanes(),
            tables.of(PAUSES),
            tables.requests_of(None),
            levels,
            sessions=tables.sessions(),
            store=tables.identity(),
            due=due,
            next_due=next_due_of(None if first is None else first - ahead, *fires),
            templates={name: template for name, template in templates.items() if template},
        )


class Check(Question[CheckReport], long=True):
    """All jobs, compared with the rules; nothing is repaired."""

    def answer(self, queues: Queues) -> CheckReport:
        return _checked(queues, repair=False)


class Repair(PortionedAct, long=True):
    """Repair what a `Check` finds. The answer is how many problems were repaired."""

    def portion(self, queues: Queues, limit: int, after: int | None) -> tuple[int, int | None]:
        return _checked(queues, repair=True).repaired, None


def _holds_of(queues: Queues, job: JobRecord) -> Sequence[tuple[float, str]]:
    return queues.tables.of(HOLDS).get(job.lane, ())


def status_from(
    job: JobRecord,
    now: float,
    holds: Sequence[tuple[float, str]],
    runs: tuple[DurableAttempt, ...] | None = None,
) -> DurableStatus:
    """Return the public status of a job.

    Args:
      holds: of its lane.
      runs: its last runs; None: its record has them.
    """
    error, due, why = None, job.due, job.why
    until = now if job.state in (WAITING, PARKED) else None
    runs = attempts(job.history) if runs is None else runs
    if job.state is WAITING and job.ready is None and due is None:
        due, why = now, "session"  # as `Queues.list_next_head` will write it
    if job.state in (DEAD, FAILED) and job.outcome is not None:
        failure = json.loads(job.outcome)
        error = f"{failure['type']}: {failure['message']}"
    return DurableStatus(
        id=job.id,
        name=job.name,
        session=job.session,
        lane=job.lane,
        priority=job.priority,
        key=job.key,
        state=job.state,
        why=job.why if job.state is PARKED else None,
        until=job.due if job.state is PARKED else None,
        attempt=job.attempts + (job.state is RUNNING),
        crashes=job.crashes,
        instance=job.instance if job.state is RUNNING else None,
        cancelling=job.state is RUNNING and job.cancel is not None,
        error=error,
        submitted_at=job.submitted_at,
        history=runs,
        waits=waits_of(job.submitted_at, runs, due, why, until, holds),
        timeout=job.timeout,
        seen_at=now,
        expires_at=job.expires,
        owner=job.owner,
    )


def _texts_of(queues: Queues, job: JobRecord) -> JobTexts:
    tables = queues.tables
    events = tables.items(job.event_list, job.emitted - NAMES_LISTED, NAMES_LISTED)
    messages = tables.items(job.message_list, job.sent - NAMES_LISTED, NAMES_LISTED)
    return JobTexts(
        payload=job.payload or None,
        checkpoint=job.checkpoint,
        outcome=job.outcome,
        events=tuple((item.number, item.data) for item in events),
        messages=tuple((item.number, item.taken, item.data) for item in messages),
    )


def _present(
    lanes: Mapping[str, LaneLimit], used: Collection[str], now: float
) -> Iterator[tuple[str, LaneLimit]]:
    """Yield the lanes that are configured, have jobs, or are paused, with their limits."""
    for name in sorted({*lanes, *used}):
        limit = limit_of(lanes, name)
        if limit is None:  # a template
            continue
        if name in used or not lanes[name].pause_only or is_paused(limit, now):
            yield name, limit


def statistics_of(
    now: float,
    lanes: Mapping[str, LaneLimit],
    counts: Iterable[tuple[str, str, str, int]],
    ends: Iterable[tuple[str, str, int]],
    handled: Collection[str],
    sessions_of_lanes: Mapping[str, int],
    pauses: Mapping[str, float],
    requests: Sequence[Request],
    levels: Mapping[str, tuple[QuotaLevel, ...]],
    *,
    sessions: int,
    store: str,
    due: Mapping[str, int],
    next_due: float | None,
    templates: Mapping[str, str],
) -> DurableStatistics:
    """Return statistics of what a store has read.

    Args:
      lanes: the limits of lanes and templates, and the pauses of lanes of templates.
      counts: (lane, state, handler's name, how many jobs).
      ends: (lane or template, state, how many times a job of it has ended so).
      handled: the names of handlers of which an instance lives.
      requests: all, in order.
      due: by lane, how much of what is parked or scheduled is due.
      templates: by quota, the template that has its limits.
    """
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for lane, number in due.items():
        sums[lane]["due"] += number
    for lane, state, name, count in counts:
        sums[lane][state] += count
        if state in (WAITING.value, PARKED.value) and name not in handled:
            sums[lane]["unhandled"] += count
    ended: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for label, state, number in sorted(ends):
        ended[label][state] = number
    by_lane = {
        name: DurableLaneStatistics(
            **{field: sums[name][field] for field in _SUMS},
            sessions=sessions_of_lanes.get(name, 0),
            concurrency=limit.concurrency,
            max_waiting=limit.max_waiting,
            paused=is_paused(limit, now),
        )
        for name, limit in _present(lanes, sums, now)
    }
    return DurableStatistics(
        **{field: sum(getattr(lane, field) for lane in by_lane.values()) for field in _SUMS},
        sessions=sessions,
        lanes=by_lane,
        store=store,
        paused=_paused_of(pauses, now),
        locks=_locks_of(requests),
        quotas=_quotas_of(levels, requests, templates),
        ended=dict(ended),
        next_due=next_due,
    )


def next_due_of(*times: float | None) -> float | None:
    """Return the first of some times; None: there is none."""
    return min((time for time in times if time is not None), default=None)


def _paused_of(pauses: Mapping[str, float], now: float) -> dict[str, float | None]:
    """Return the first paused sessions; None: until it is resumed."""
    paused = sorted((session, until) for session, until in pauses.items() if until > now)
    return {
        session: None if until == math.inf else until for session, until in paused[:NAMES_LISTED]
    }


def _locks_of(requests: Iterable[Request]) -> tuple[LockStatistics, ...]:
    """Return the locks of requests, which are in order: the most wanted first."""
    held, waits = _by_name(one for one in requests if not one.is_for_quota)
    most_wanted = sorted({*held, *waits}, key=lambda key: (-len(waits[key]), key))[:NAMES_LISTED]
    return tuple(
        LockStatistics(key, len(held[key]), len(waits[key]), _shown(held[key]), _shown(waits[key]))
        for key in most_wanted
    )


def _quotas_of(
    levels: Mapping[str, tuple[QuotaLevel, ...]],
    requests: Iterable[Request],
    templates: Mapping[str, str],
) -> tuple[QuotaStatistics, ...]:
    """Return the quotas by their levels, and the requests that wait for them."""
    _, waits = _by_name(one for one in requests if one.is_for_quota)
    return tuple(
        QuotaStatistics(
            *(name, level, len(waits[name]), _shown(waits[name])),
            template=templates.get(name),
        )
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


def _checked(queues: Queues, *, repair: bool) -> CheckReport:
    """Compare every job with the invariants of the engine; repair the differences, if asked."""
    tables = queues.tables
    problems = list(tables.inspect())
    repaired = 0
    jobs = tables.all_live()  # first: tables may hear of other instances meanwhile
    known = {info.id for info in tables.of(INSTANCES).values()}
    lanes = tables.of(LIMITS)
    lost: defaultdict[str | None, list[JobRecord]] = defaultdict(list)  # runs of no instance
    wrong: list[tuple[str, JobRecord, bool]] = []  # (problem, job, whether it should be ready)
    for session, in_session in groupby(jobs, key=lambda job: job.session):
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
            tables.update(job, ready=None, shelf=ON_LIST, party=None, ring="")
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
