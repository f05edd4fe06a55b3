"""`ChainTables`: each lookup of `Tables`, from the image or as one read of a `Storage`.

A read sees what is committed, and the batch that is being made is not. So each lookup puts the
changes of the batch over what it has read: a job that the batch has changed counts by its record.

Numbers (ids, places, fences) begin in each batch above the store's time in microseconds, as in
`_sql.tables`: they do not come again if a storage goes back to older data.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Any, Final, TypeVar

from .._contract.records import HeldSnapshot, Selection
from .._contract.state import ENDED, PARKED, RUNNING, WAITING, DurableState
from .._rules.claims import PRIORITIES
from .._rules.counts import COUNTED, Counts, Key
from .._rules.job_record import BEHIND_OWNER, ON_LIST, SESSION_PAUSED, JobRecord, place_on_list
from .._rules.queues import FORGET_EVERY
from .._rules.running import Running
from .._rules.tables import PAUSES
from .._sql.batching import LIST_FRONT, QUEUE_FRONT
from .._sql.cache import NEVER, PAYLOADS, QUEUES_KEPT, ListKey, place_of, ready_of
from .._sql.list_front import ListFront
from .._sql.tables import OUT_OF_ORDER, number_at
from . import keys, rows
from .image import Maps, counted_as
from .keys import Sets
from .small_maps import NO_LIMIT, SmallMaps, write_whole
from .storage import All, Get, Span, Texts, Writes

T = TypeVar("T")

PAGE: Final = 500
"""How many jobs are read at once where many are asked for."""

_encode: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, separators=(",", ":")
).encode


class ChainTables(SmallMaps):
    """An implementation of `Tables` over a storage, without its transactions."""

    def __init__(self) -> None:
        self._number = 0
        self._looked_at = -math.inf  # when ended jobs were forgotten last
        self._read_characters = 0
        self.reads_homes = False
        """Whether claims ask for the homes of the jobs on ready lists."""
        super().__init__()

    def _begin_batch(self) -> None:
        super()._begin_batch()
        self._new_keys: dict[str, JobRecord] = {}
        self._no_keys: set[str] = set()  # of which nobody has a job, as far as this batch guesses
        # {(ordered set, beginning): the last text that this batch has read}
        self._read_to: dict[tuple[str, str], str] = {}

    @property
    def writes(self) -> int:
        """The number of changes so far: a caller compares it with an earlier value."""
        return self._writes

    # ---- records

    def _records(self, found: Iterable[tuple[int, str | None]]) -> list[JobRecord]:
        """Return the records of (id, row), without those that have no row."""
        jobs: list[JobRecord | tuple[int, list[Any]]] = []
        wanted: list[str] = []
        for id, text in found:
            known = self._known.get(id)
            if known is not None:
                jobs.append(known)
            elif text is not None:
                row = rows.row_of(text)
                self._read_characters += len(text)
                wanted += [rows.key_of(id, column) for _, column in rows.long_in(row)]
                jobs.append((id, row))
        if wanted:
            (texts,) = self._ask([Get(Maps.TEXTS, wanted)])
            long = dict(zip(wanted, texts, strict=True))
            self._read_characters += sum(map(len, texts))
            for one in jobs:
                if isinstance(one, tuple):
                    for place, column in rows.long_in(one[1]):
                        one[1][place] = long[rows.key_of(one[0], column)]
        return [self._is(*one) if isinstance(one, tuple) else one for one in jobs]

    def _merged(
        self,
        kind: str,
        start: str,
        end: str,
        found: Texts,
        limit: int,
        *,
        backwards: bool = False,
        may_be: Callable[[JobRecord], bool] | None = None,
    ) -> list[tuple[str, JobRecord]]:
        """Put the changes of this batch over what was read of an ordered set.

        Args:
          may_be: whether a job that has changed may be among the asked, which costs less to know.
        """
        records = self._records((keys.id_in(text), row) for text, row in found)
        by_id = {job.id: job for job in records}
        ids = [keys.id_in(text) for text, _ in found]
        merged = [
            (text, by_id[id])
            for (text, _), id in zip(found, ids, strict=True)
            if id in by_id and id not in self._before and id not in self._deleted
        ]
        if len(found) == limit:  # what is behind the last is read later
            if backwards:
                start = found[-1][0][:-1]
            else:
                end = found[-1][0] + "\0"
        changed = [
            (text, job)
            for job, *_ in self._before.values()
            if (may_be is None or may_be(job)) and job.id not in self._deleted
            for of, text in keys.texts_of(job)
            if of == kind and start < text < end
        ]
        return sorted(merged + changed, reverse=backwards) if changed else merged

    def _scan(
        self,
        kind: str,
        beginning: str,
        *,
        after: str = "",
        until: str = keys.BEHIND_ALL,
        limit: int = NO_LIMIT,
        backwards: bool = False,
    ) -> Iterator[tuple[str, JobRecord]]:
        """Yield (text, job) of an ordered set, in order; read as many at once as are asked for."""
        start, end = beginning + after, beginning + until
        page = min(limit, PAGE)
        while True:
            asked = Span(kind, start, end, page, backwards, Maps.JOBS)
            (found,) = self._ask([asked])
            yield from self._merged(kind, start, end, found, page, backwards=backwards)
            if len(found) < page:
                return
            if backwards:
                end = found[-1][0]
            else:
                start = found[-1][0]
            page = min(4 * page, PAGE)  # this batch may have changed all that was read

    def _first_of(self, kind: str, beginning: str, limit: int, **of: Any) -> list[JobRecord]:
        found = self._scan(kind, beginning, limit=limit, **of)
        return [job for _, job in islice(found, limit)]

    # ---- jobs

    def insert(self, job: JobRecord) -> None:
        self._writes += 1
        self._known.put(job.id, job)
        self._before[job.id] = job, None, ()
        if job.key is not None:
            self._new_keys[job.key] = job
        self._cache.appeared(job)

    def before_change(self, job: JobRecord) -> None:
        if job.id not in self._before:
            self._before[job.id] = job, rows.values(job), keys.texts_of(job)

    def update(self, job: JobRecord, **changes: Any) -> None:
        self.before_change(job)
        self._writes += 1
        before = job.state
        for column, value in changes.items():
            setattr(job, column, value)
        self._cache.changed(job, before, changes)

    def delete(self, job: JobRecord) -> None:
        self.before_change(job)
        self._writes += 1
        self._deleted.add(job.id)
        self._known.drop(job.id)
        if job.key is not None and self._new_keys.get(job.key) is job:
            del self._new_keys[job.key]
        for name, has in ((job.event_list, job.emitted), (job.message_list, job.sent)):
            if has:
                of = self._items_of(name)
                of.cleared = True
                of.added.clear()
        self._cache.disappeared(job)

    def get(self, id: int) -> JobRecord | None:
        if id in self._deleted:
            return None
        known = self._known.get(id)
        if known is not None:
            return known
        ((text,),) = self._ask([Get(Maps.JOBS, [str(id)])])
        return next(iter(self._records([(id, text)])), None)

    def keyed(self, key: str) -> JobRecord | None:
        new = self._new_keys.get(key)
        if new is not None or key in self._no_keys:
            return new
        ((id,),) = self._ask([Get(Maps.KEYS, [key])])
        job = None if id is None else self.get(int(id))
        return job if job is not None and job.key == key else None

    def coalesced(self, key: str, *, begun: bool) -> JobRecord | None:
        return next(
            iter(self._first_of(Sets.COALESCED, keys.coalesced_by(key, begun=begun), 1)), None
        )

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def last_number(self) -> int:
        return self._number

    # ---- queues and ready lists

    def head(self, session: str) -> JobRecord | None:
        front = self._cache.queues.get(session)
        if front is None:
            front = self._cache.queues[session] = ListFront(place_of, QUEUE_FRONT)
        while (head := front.head()) is None and not front.complete:
            beginning = keys.part(session)
            self._extend(
                front, Sets.QUEUES, beginning, QUEUE_FRONT, lambda job: job.session == session
            )
        return head

    def _extend(
        self,
        front: ListFront,
        kind: str,
        beginning: str,
        limit: int,
        may_be: Callable[[JobRecord], bool],
    ) -> None:
        """Read a front on, behind its last entry, and behind what this batch has read of it."""
        end, first = beginning + keys.BEHIND_ALL, beginning + _behind(front)
        key, jobs, is_all = (kind, beginning), list[JobRecord](), False
        while not jobs and not is_all:  # all that was read may have left in this batch
            start = max(first, self._read_to.get(key, ""))
            (found,) = self._ask([Span(kind, start, end, limit, rows=Maps.JOBS)])
            merged = self._merged(kind, first, end, found, limit, may_be=may_be)
            jobs, is_all = [job for _, job in merged], len(found) < limit
            if found:
                self._read_to[key] = found[-1][0]
            limit = min(4 * limit, PAGE)
        front.extend(jobs, complete=is_all)

    def ready(
        self, lane: str, priority: int, name: str, after: int | None, limit: int, ring: str = ""
    ) -> list[JobRecord]:
        key = lane, priority, name, ring
        known = self._cache.lists.get(key)
        if known is None:
            known = self._cache.lists[key] = ListFront(ready_of, LIST_FRONT)
        # fewer than are asked for will do: the caller asks again
        while (found := known.first(after, limit) or known.first(after, 1)) is None:
            most = max(limit, LIST_FRONT)
            self._extend(
                known, Sets.READY, keys.list_of(*key), most, lambda job: job.ready is not None
            )
        if self.reads_homes:
            self._read_homes(found)
        return found

    def _read_homes(self, jobs: Sequence[JobRecord]) -> None:
        """Read the homes of sessions in one trip; see `affinity`."""
        tickets = [f"home {job.session}" for job in jobs if job.session is not None]
        wanted = [ticket for ticket in tickets if ticket not in self._answers]
        if wanted:
            self._read_answers(wanted)

    def look_ahead(self, lanes: Collection[str], names: Collection[str]) -> None:
        lists, waiting = self._cache.lists, self.counts().waiting
        unknown: list[ListKey] = [
            (lane, priority, name, "")
            for lane in lanes
            for name in waiting[lane].intersection(names)
            for priority in PRIORITIES
            if (lane, priority, name, "") not in lists
        ]
        if not unknown:
            return
        most = max(4, LIST_FRONT // len(lanes))
        spans = []
        for key in unknown:
            beginning = keys.list_of(*key)
            spans.append(
                Span(Sets.READY, beginning, beginning + keys.BEHIND_ALL, most, rows=Maps.JOBS)
            )
        for key, span, found in zip(unknown, spans, self._ask(spans), strict=True):
            front = lists[key] = ListFront(ready_of, LIST_FRONT)
            merged = self._merged(span.kind, span.after, span.until, found, most)
            front.extend([job for _, job in merged], complete=len(found) < most)

    def suspected(self) -> Collection[str]:
        if self._cache.suspected is None:
            jobs = self._first_of(Sets.SUSPECTS, "", NO_LIMIT)
            self._cache.suspected = {job.lane for job in jobs}
        return self._cache.suspected

    def heads_of(self, lane: str, priority: int, party: str) -> list[JobRecord]:
        return self._first_of(Sets.PARTIES, keys.party_of(lane, priority, party, ON_LIST), NO_LIMIT)

    def first_behind(self, lane: str, priority: int, name: str, party: str) -> JobRecord | None:
        of = keys.party_of(lane, priority, party, BEHIND_OWNER) + keys.part(name)
        return next(iter(self._first_of(Sets.PARTIES, of, 1)), None)

    def listed(self, lane: str) -> list[JobRecord]:
        jobs = self._first_of(Sets.LANES, keys.part(lane), NO_LIMIT)
        found = [
            job
            for job in jobs
            if job.ready is not None and job.ready >= 0 and job.shelf != SESSION_PAUSED
        ]
        return sorted(found, key=lambda job: (job.shelf, place_on_list(job)))

    # ---- times

    def due(self, now: float, limit: int, session: str | None = None) -> list[JobRecord]:
        if self._parked_until() > now:
            return []
        until = keys.time(now) + keys.BEHIND_ALL
        if session is not None:
            return self._first_of(Sets.DELAYED, keys.part(session), limit, until=until)
        self._cache.parked_until = None
        over = self._first_of(Sets.EXPIRES, "", limit, until=until)
        due = over + self._first_of(Sets.DUE, "", limit - len(over), until=until)
        if len(due) < limit:  # before the caller changes these: the next time is behind them
            self._cache.parked_until = self._first_time(until)
        return due

    def _first_time(self, after: str = "") -> float:
        """Return the first time, behind one, at which a job is due or expires."""
        first = NEVER
        for kind in (Sets.DUE, Sets.EXPIRES):
            for text, _ in islice(self._scan(kind, "", after=after, limit=1), 1):
                first = min(first, keys.time_in(text))
        return first

    def _parked_until(self) -> float:
        if self._cache.parked_until is None:
            self._cache.parked_until = self._first_time()
        return self._cache.parked_until

    def forget_due(self, now: float, limit: int) -> int:
        kept_until = self._cache.kept_until
        if self._looked_at + FORGET_EVERY > now or (kept_until is not None and kept_until > now):
            return 0
        until = keys.time(now) + keys.BEHIND_ALL
        jobs = self._first_of(Sets.OVER, "", limit, until=until)
        for job in jobs:
            self.delete(job)
        if len(jobs) < limit:
            self._looked_at = now
            self._cache.kept_until = self._first_over(until)
        return len(jobs)

    def _first_over(self, after: str = "") -> float:
        """Return the first time, behind one, at which an ended job is forgotten."""
        first = islice(self._scan(Sets.OVER, "", after=after, limit=1), 1)
        return next((keys.time_in(text) for text, _ in first), NEVER)

    def next_due(self) -> float | None:
        until = min([self._parked_until(), *self.of(PAUSES).values()])
        return until if until < NEVER else None

    def parked_until(self, time: float, limit: int) -> Mapping[str, int]:
        jobs = self._first_of(Sets.DUE, "", limit, until=keys.time(time) + keys.BEHIND_ALL)
        return Counter(job.lane for job in jobs)

    def next_over(self) -> float | None:
        if self._cache.kept_until is None:
            self._cache.kept_until = self._first_over()
        until = self._cache.kept_until
        return None if until == NEVER else until

    # ---- runs

    def runs(self) -> Running:
        runs = self._cache.runs
        if runs is None:
            runs = self._put_running(self._first_of(Sets.STATES, keys.state_of(RUNNING), NO_LIMIT))
        return runs

    def running(self, instance: str) -> list[JobRecord]:
        return [job for job in self.runs().all() if job.instance == instance]

    def fences_of(self, instance: str) -> dict[int, int]:
        return {job.fence: job.id for job in self.running(instance)}

    def first_holder(self, lane: str) -> JobRecord | None:
        holding = (job for job in self.runs().all() if job.lane == lane and not job.lent)
        return min(holding, key=attrgetter("fence"), default=None)

    def ready_before(self, job: JobRecord, limit: int) -> int:
        before = 0
        for priority in (p for p in PRIORITIES if p >= job.priority):
            for _, other in self._scan(Sets.READY, keys.priority_of(job.lane, priority)):
                ahead = priority > job.priority or place_on_list(other) < place_on_list(job)
                before += ahead
                if before == limit:
                    return before
        return before

    # ---- selections

    def clearable(
        self, lane: str | None, session: str | None, before: int, limit: int
    ) -> list[JobRecord]:
        if session is None:
            assert lane is not None
            until = keys.number(before)
            return self._first_of(Sets.LANES, keys.part(lane), limit, until=until, backwards=True)
        queue = self._scan(Sets.QUEUES, keys.part(session), limit=limit, backwards=True)
        delayed = self._scan(Sets.DELAYED, keys.part(session), limit=limit)
        clearable = (
            job
            for found in (queue, delayed)
            for _, job in found
            if job.state in (WAITING, PARKED) and job.id < before
        )
        return list(islice(clearable, limit))

    def select(self, of: Selection, after: int, limit: int, now: float) -> list[JobRecord]:
        if not of.states:
            return []
        if of.since is not None:
            after = max(after, number_at(of.since - OUT_OF_ORDER) - 1)
        until = 2**53 if of.until is None else number_at(of.until + OUT_OF_ORDER) + 1
        if of.id is not None:
            one = self.get(of.id)
            found: Iterable[JobRecord] = [one] if one is not None and one.id > after else []
        else:
            first, last = keys.number(after) + keys.BEHIND_ALL, keys.number(until)
            if of.lane is not None and of.states <= {WAITING, PARKED}:
                sources = [(Sets.LANES, keys.part(of.lane))]
            else:
                sources = [(Sets.STATES, keys.state_of(state)) for state in of.states]
            scans = [
                (job for _, job in self._scan(*source, after=first, until=last))
                for source in sources
            ]
            found = merge(*scans, key=attrgetter("id"))
        jobs = (
            job
            for job in found
            if job.state in of.states
            and (job.state not in ENDED or (job.due is not None and job.due > now))
            and of.lane in (None, job.lane)
            and of.session in (None, job.session)
            and of.name in (None, job.name)
            and of.error in (None, job.error)
            and (of.since is None or of.since <= job.submitted_at)
            and (of.until is None or of.until > job.submitted_at)
        )
        return list(jobs if limit < 0 else islice(jobs, limit))

    def all_live(self) -> Iterable[JobRecord]:
        return sorted(self._collect(), key=lambda job: (job.session or "", job.place or 0, job.id))

    def _collect(self, then: Callable[[], None] = lambda: None) -> list[JobRecord]:
        """Return all jobs that have not ended, as of the batch of the image when it returns.

        Others may commit between two reads: what their deltas say of jobs is taken in.

        Args:
          then: is called before it returns, and may read.
        """
        found = self._collected = {}
        try:
            for state in COUNTED:
                for _, job in self._scan(Sets.STATES, keys.state_of(state)):
                    found.setdefault(job.id, job)
            then()
        finally:
            self._collected = None
        return [job for job in found.values() if job.state in COUNTED]

    # ---- sums

    def counts(self) -> Counts:
        self._cache.count()
        assert self._cache.counts is not None
        return self._cache.counts

    def count_end(self, label: str, state: DurableState) -> None:
        key, uncounted = (label, f"+{state.value}", ""), self._cache.uncounted
        uncounted[key] = uncounted.get(key, 0) + 1

    def ends(self) -> Iterable[tuple[str, str, int]]:
        self._cache.count()
        sums: Counter[tuple[str, str]] = Counter()
        for (label, state, _), number in [*self._all_numbers(), *self._cache.uncounted.items()]:
            if state[0] == "+":
                sums[label, state[1:]] += number
        return [(*end, number) for end, number in sums.items()]

    def sessions(self) -> int:
        return len({session for session, _ in self._queued()})

    def sessions_of_lanes(self) -> Mapping[str, int]:
        return Counter(lane for _, lane in set(self._queued()))

    def _queued(self) -> Iterator[tuple[str, str]]:
        for _, job in self._scan(Sets.QUEUES, ""):
            assert job.session is not None
            yield job.session, job.lane

    # ---- consistency

    def forget_unused(self, now: float) -> None:
        super().forget_unused(now)
        self.counts().forget_zeros()

    def held_snapshots(self) -> list[HeldSnapshot]:
        return []

    def inspect(self) -> list[str]:
        true, stored = self._true_and_stored()
        return ["the stored counts of jobs are wrong"] if true != stored else []

    def recount(self) -> bool:
        true, stored = self._true_and_stored()
        if true == stored:
            return False
        for key in true.keys() | stored.keys():
            self._cache.uncounted[key] = true.get(key, 0) - stored.get(key, 0)
        self._cache.counts = Counts(true.items())
        self._writes += 1
        return True

    def _true_and_stored(self) -> tuple[dict[Key, int], dict[Key, int]]:
        """Return the numbers of jobs that have not ended, counted and stored, of one batch."""
        stored: dict[Key, int] = {}

        def read_stored() -> None:
            self._cache.count()
            (whole,) = self._ask([All(Maps.WHOLE)])
            for name, number in whole.items():
                kind, _, key = name.partition(" ")
                if kind == Maps.COUNTS:
                    stored[tuple(json.loads(key))] = int(number)
            for counted, by in self._cache.uncounted.items():
                stored[counted] = stored.get(counted, 0) + by

        jobs = self._collect(read_stored)
        true = Counter((job.lane, job.state.value, job.name) for job in jobs)
        return true, {key: n for key, n in stored.items() if n and key[1][0] != "+"}

    # ---- what a batch writes

    def _written(self, *, told: bool) -> tuple[Writes, str]:
        """Return what this batch writes, and its delta; empty if that is not to be told."""
        writes, delta = Writes(), list[Any]()
        self._write_jobs(writes, delta)
        self._write_small(writes, delta)
        self._write_numbers(writes, delta)
        return writes, _encode(delta) if told else ""

    def _write_jobs(self, writes: Writes, delta: list[Any]) -> None:
        put, drop, add, remove = writes.put, writes.drop, writes.add, writes.remove
        jobs: dict[str, str] = {}
        given_up: list[str] = []
        taken: dict[str, str] = {}
        for id, (job, before, old) in self._before.items():
            key = str(id)
            old_texts = {} if before is None else rows.aside_of(before)
            new: list[tuple[str, str]] = []
            new_texts: dict[str, str] = {}
            if id not in self._deleted:
                new = keys.texts_of(job)
                jobs[key], new_texts = rows.text_of(job)
                delta.append((Maps.JOBS, key, jobs[key], job.lane))
                if before is None and job.key is not None:
                    taken[job.key] = key
            elif before is not None:
                drop.setdefault(Maps.JOBS, []).append(key)
                delta.append((Maps.JOBS, key, None, job.lane))
            was = None if before is None else before[rows.KEY_PLACE]
            if was is not None and (id in self._deleted or job.key != was):
                given_up.append(was)
            for kind, text in old:
                if (kind, text) not in new:
                    remove.setdefault(kind, []).append(text)
            for kind, text in new:
                if (kind, text) not in old:
                    add.setdefault(kind, []).append(text)
            for name in old_texts.keys() - new_texts.keys():
                drop.setdefault(Maps.TEXTS, []).append(name)
            for name, text in new_texts.items():
                if old_texts.get(name) != text:
                    put.setdefault(Maps.TEXTS, {})[name] = text
        if jobs:
            put[Maps.JOBS] = jobs
        if taken:
            put[Maps.KEYS] = taken
        given_up = [key for key in given_up if key not in taken]
        if given_up:
            drop[Maps.KEYS] = given_up

    def _write_numbers(self, writes: Writes, delta: list[Any]) -> None:
        self._cache.count()
        for key, by in self._cache.uncounted.items():
            if by:
                name = counted_as(key)
                number = self._numbers.get(name, 0) + by
                write_whole(writes, delta, Maps.COUNTS, name, str(number) if number else None)

    def _end_batch(self) -> None:
        for key, by in self._cache.uncounted.items():
            name = counted_as(key)
            self._numbers[name] = self._numbers.get(name, 0) + by
        self._cache.uncounted.clear()
        super()._end_batch()
        if len(self._cache.queues) > QUEUES_KEPT or self._read_characters > PAYLOADS:
            self._cache.forget_fronts()
            self._read_characters = 0


def _behind(front: ListFront) -> str:
    """Return from where on a list is read on."""
    last = front.last()
    return "" if last is None else keys.number(last) + keys.BEHIND_ALL
