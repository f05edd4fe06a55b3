"""`MemoryTables`: the tables of a store in memory, which define the lookups of `Tables`.

Each lookup is a search through all jobs. That is slow, and so simple that tests compare other
tables with these.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, final

from ..._limits.meters import Mark, Marks, put
from .._contract.records import HeldSnapshot, Selection
from .._contract.state import ENDED, PARKED, RUNNING, WAITING, DurableState
from .._options.schedule import DurableSchedule
from .._rules.answers import RemembersAnswers
from .._rules.counts import COUNTED, Counts
from .._rules.job_record import BEHIND_OWNER, ON_LIST, SESSION_PAUSED, JobRecord, place_on_list
from .._rules.request import Request
from .._rules.running import Running
from .._rules.settings import Settings
from .._rules.tables import PAUSES, SETTING_KINDS, ListItem


@final
class MemoryTables(RemembersAnswers, Settings):
    """An implementation of `Tables` over a dict."""

    def __init__(self) -> None:
        super().__init__()
        self._jobs: Final[dict[int, JobRecord]] = {}  # in order of their ids
        self._lists: Final[dict[str, dict[int, ListItem]]] = {}
        self._requests: Final[dict[int, Request]] = {}  # in order of their ids
        self._schedules: Final[dict[int, DurableSchedule]] = {}  # in order of their ids
        self._settings = {kind.name: {} for kind in SETTING_KINDS}
        self._marks: Final[defaultdict[str, deque[Mark]]] = defaultdict(deque)
        # {meter with marks: when it is replenished}
        self._refilled_at: Final[dict[str, float]] = {}
        self._ends: Final = Counter[tuple[str, str]]()
        self._number = 0
        self._identity: Final = uuid.uuid4().hex
        self.ahead = 0.0  # seconds by which the store's time is ahead of Trio's clock

    def _in(self, *states: DurableState) -> list[JobRecord]:
        found: list[JobRecord] = []
        for job in self._jobs.values():  # a comprehension would be a call of its own
            if job.state in states:
                found.append(job)
        return found

    def insert(self, job: JobRecord) -> None:
        self._jobs[job.id] = job

    def before_change(self, job: JobRecord) -> None:
        pass

    def update(self, job: JobRecord, **changes: Any) -> None:
        for field, value in changes.items():
            setattr(job, field, value)

    def delete(self, job: JobRecord) -> None:
        del self._jobs[job.id]
        self._lists.pop(job.event_list, None)
        self._lists.pop(job.message_list, None)

    def get(self, id: int) -> JobRecord | None:
        return self._jobs.get(id)

    def keyed(self, key: str) -> JobRecord | None:
        return next((job for job in self._jobs.values() if job.key == key), None)

    def coalesced(self, key: str, *, begun: bool) -> JobRecord | None:
        of = (job for job in self._jobs.values() if job.coalesce == key)
        return next((job for job in of if (job.fence > 0) is begun), None)

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def last_number(self) -> int:
        return self._number

    def head(self, session: str) -> JobRecord | None:
        queue = [
            job for job in self._jobs.values() if job.session == session and job.place is not None
        ]
        return min(queue, key=lambda job: job.place or 0, default=None)

    def ready(
        self, lane: str, priority: int, name: str, after: int | None, limit: int, ring: str = ""
    ) -> list[JobRecord]:
        jobs = [
            job
            for job in self._jobs.values()
            if job.ready is not None
            and (job.lane, job.priority, job.name, job.shelf) == (lane, priority, name, ON_LIST)
            and job.ring == ring
            and (after is None or job.ready > after)
        ]
        return sorted(jobs, key=place_on_list)[:limit]

    def look_ahead(self, lanes: Collection[str], names: Collection[str]) -> None:
        pass

    def suspected(self) -> Collection[str]:
        return {job.lane for job in self._in(WAITING) if job.crashed_with}

    def heads_of(self, lane: str, priority: int, party: str) -> list[JobRecord]:
        of = lane, priority, party, ON_LIST
        jobs = self._jobs.values()
        return [job for job in jobs if (job.lane, job.priority, job.party, job.shelf) == of]

    def first_behind(self, lane: str, priority: int, name: str, party: str) -> JobRecord | None:
        of = priority, name, party
        behind = [job for job in self.listed(lane) if job.shelf == BEHIND_OWNER]
        return next((one for one in behind if (one.priority, one.name, one.party) == of), None)

    def listed(self, lane: str) -> list[JobRecord]:
        jobs = [
            job
            for job in self._jobs.values()
            if job.lane == lane
            and job.ready is not None
            and job.ready >= 0
            and job.shelf != SESSION_PAUSED
        ]
        return sorted(jobs, key=lambda job: (job.shelf, place_on_list(job)))

    def due(self, now: float, limit: int, session: str | None = None) -> list[JobRecord]:
        over: list[JobRecord] = []
        for job in self._jobs.values() if session is None else ():
            if job.expires is not None and job.expires <= now:
                over.append(job)
        due = [
            job
            for job in self._in(PARKED)
            if _due(job) <= now
            and (session is None or (job.session == session and job.place is None))
        ]
        over.sort(key=lambda job: (job.expires or 0.0, job.id))
        return [*over, *sorted(due, key=lambda job: (_due(job), job.id))][:limit]

    def forget_due(self, now: float, limit: int) -> int:
        due = [job for job in self._in(*ENDED) if _due(job) <= now]
        for job in due[:limit]:
            self.delete(job)
        return len(due[:limit])

    def next_due(self) -> float | None:
        pauses = (until for until in self.of(PAUSES).values() if until < float("inf"))
        expiring = (job.expires for job in self._jobs.values() if job.expires is not None)
        return min((*map(_due, self._in(PARKED)), *expiring, *pauses), default=None)

    def parked_until(self, time: float, limit: int) -> Mapping[str, int]:
        due = sorted((_due(job), job.lane) for job in self._in(PARKED) if _due(job) <= time)
        return Counter(lane for _, lane in due[:limit])

    def next_over(self) -> float | None:
        return min(map(_due, self._in(*ENDED)), default=None)

    def running(self, instance: str) -> list[JobRecord]:
        return [job for job in self._in(RUNNING) if job.instance == instance]

    def fences_of(self, instance: str) -> dict[int, int]:
        return {job.fence: job.id for job in self.running(instance)}

    def runs(self) -> Running:
        runs = Running()
        for job in self._in(RUNNING):
            runs.put(job)
        return runs

    def first_holder(self, lane: str) -> JobRecord | None:
        holding = (job for job in self._in(RUNNING) if job.lane == lane and not job.lent)
        return min(holding, key=lambda job: job.fence, default=None)

    def ready_before(self, job: JobRecord, limit: int) -> int:
        mine = -job.priority, place_on_list(job)
        before = sum(
            other.lane == job.lane
            and other.ready is not None
            and other.shelf == ON_LIST
            and (-other.priority, other.ready) < mine
            for other in self._jobs.values()
        )
        return min(before, limit)

    def clearable(
        self, lane: str | None, session: str | None, before: int, limit: int
    ) -> list[JobRecord]:
        clearable = self._in(WAITING, PARKED)
        jobs = [job for job in clearable if _of(job, lane, session) and job.id < before]
        if session is not None:
            jobs.sort(key=lambda job: job.place or 0)
        return jobs[-limit:]

    def select(self, of: Selection, after: int, limit: int, now: float) -> list[JobRecord]:
        jobs = [
            job
            for job in self._in(*of.states)
            if job.id > after
            and (job.state not in ENDED or _due(job) > now)
            and _of(job, of.lane, of.session)
            and of.id in (None, job.id)
            and of.name in (None, job.name)
            and of.error in (None, job.error)
            and (of.since is None or of.since <= job.submitted_at)
            and (of.until is None or of.until > job.submitted_at)
        ]
        return jobs if limit < 0 else jobs[:limit]

    def append(self, name: str, item: ListItem, keep: int | None = None) -> None:
        items = self._lists.setdefault(name, {})
        items[item.number] = item
        if keep is not None:
            items.pop(item.number - keep, None)

    def items(self, name: str, after: int, limit: int) -> Iterable[ListItem]:
        items = self._lists.get(name, {}).values()
        return [item for item in items if item.number > after][:limit]

    def last_item(self, name: str) -> int:
        return max(self._lists.get(name, (0,)))

    def drop_items(self, name: str, *, taken: bool) -> None:
        before = self._lists.pop(name, {})
        kept = {} if taken else {n: item for n, item in before.items() if item.taken}
        if kept:
            self._lists[name] = kept

    def all_live(self) -> Iterable[JobRecord]:
        alive = self._in(*COUNTED)
        return sorted(alive, key=lambda job: (job.session or "", job.place or 0, job.id))

    def request(self, id: int) -> Request | None:
        return self._requests.get(id)

    def put_request(self, request: Request) -> None:
        self._requests[request.id] = request

    def drop_request(self, id: int) -> None:
        del self._requests[id]

    def first_request(self, line: str, served: bool) -> Request | None:
        of = (one for one in self._requests.values() if one.line == line)
        return next((one for one in of if (one.served is not None) is served), None)

    def requests_of(self, instance: str | None) -> list[Request]:
        return [one for one in self._requests.values() if instance in (None, one.instance)]

    def schedule(self, name: str) -> DurableSchedule | None:
        return next((one for one in self._schedules.values() if one.name == name), None)

    def schedules(self, after: int, limit: int) -> list[DurableSchedule]:
        return [one for one in self._schedules.values() if one.id > after][:limit]

    def schedules_due(self, time: float, limit: int) -> list[DurableSchedule]:
        timed = [(one.next, one.id) for one in self._schedules.values() if one.next is not None]
        return [self._schedules[id] for due, id in sorted(timed) if due <= time][:limit]

    def put_schedule(self, schedule: DurableSchedule) -> None:
        self._schedules[schedule.id] = schedule

    def drop_schedule(self, id: int) -> None:
        del self._schedules[id]

    def counts(self) -> Counts:
        counts: Counter[tuple[str, str, str]] = Counter()
        for job in self._in(*COUNTED):
            counts[job.lane, job.state.value, job.name] += 1
        return Counts(counts.items())

    def count_end(self, label: str, state: DurableState) -> None:
        self._ends[label, state.value] += 1

    def ends(self) -> Iterable[tuple[str, str, int]]:
        return [(*end, number) for end, number in self._ends.items()]

    def sessions(self) -> int:
        return len({job.session for job in self._jobs.values() if job.place is not None})

    def sessions_of_lanes(self) -> Mapping[str, int]:
        queued = {(job.lane, job.session) for job in self._jobs.values() if job.place is not None}
        return Counter(lane for lane, _ in queued)

    def identity(self) -> str:
        return self._identity

    def ahead_of_wall(self) -> float:
        return 0.0  # its Unix time is its own, so that a test has the same days each time

    def marks(self, meter: str) -> Marks:
        return self._marks[meter]

    def meters(self) -> Collection[str]:
        return list(self._refilled_at)

    def put_marks(self, meter: str, added: Marks, keep: int, until: float) -> None:
        put(self._marks[meter], added, keep)
        self._refilled_at[meter] = until

    def forget_marks(self, meter: str) -> None:
        self._marks.pop(meter, None)
        self._refilled_at.pop(meter, None)

    def forget_unused(self, now: float) -> None:
        for meter in [meter for meter, until in self._refilled_at.items() if until <= now]:
            self.forget_marks(meter)

    def held_snapshots(self) -> list[HeldSnapshot]:
        return []

    def inspect(self) -> list[str]:
        return []

    def recount(self) -> bool:
        return False  # there are no stored counts


def _due(job: JobRecord) -> float:
    assert job.due is not None
    return job.due


def _of(job: JobRecord, lane: str | None, session: str | None) -> bool:
    return (lane is None or job.lane == lane) and (session is None or job.session == session)
