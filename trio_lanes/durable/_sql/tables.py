"""`SqlTables`: each lookup of `Tables`, from the cache or as one statement of the common dialect.

No statement may read the jobs behind a head: their number is the one that grows. `cache` says which
values are cached and when they are dropped; `rows` reads and writes jobs; `small_tables` has the
other tables.

Numbers (ids, places, fences) are counted in memory inside of a transaction, and written at its end.
Each transaction begins with a number above the store's time in microseconds, and a store gives out
fewer than a million in a second. So numbers do not come again if a store goes back in time, since a
backup was restored or the last moments were lost; and the id of a job says when it was submitted.
They stay below 2**53, which JSON and JavaScript keep exact, until the year 2255.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from .._contract.records import Selection
from .._contract.state import DEAD_LETTERS, ENDED, WAITING, DurableState
from .._rules.claims import PRIORITIES
from .._rules.counts import COUNTED, Counts, Key
from .._rules.job_record import JobRecord, place_on_list
from .._rules.running import Running
from .._rules.tables import PAUSES
from .cache import NEVER, PAYLOADS, QUEUES_KEPT, Cache, ListKey, place_of, ready_of
from .list_front import ListFront
from .rows import SELECT, Cursor, Rows
from .small_tables import SmallTables
from .statements import Many

OUT_OF_ORDER: Final = 60.0
"""Seconds by which an id may be ahead of the time of its submission.

A process reads the time, and may then wait for the transaction of another.
"""

READ_AHEAD: Final = 4
"""How many jobs of each ready list are read at least for a claim that looks at many lanes."""
LEAST_PLACE: Final = -(2**63)
LIVE: Final = f"state IN ({', '.join(sorted(repr(state.value) for state in COUNTED))})"
SPECIAL: Final = "state = 'running' AND (lent = 2 OR cancel IS NOT NULL OR crashed_with > 0)"
"""The runs of which `Running` needs the records."""
COUNTS: Final = f"SELECT lane, state, name, n FROM {{}} WHERE n <> 0 AND {LIVE}"
DUE: Final = (
    "SELECT min(due) FROM"
    " (SELECT min(due) AS due FROM main.jobs WHERE state = 'parked' AND due IS NOT NULL"
    " UNION ALL SELECT min(expires) FROM main.jobs WHERE expires IS NOT NULL) AS times"
)
_DUE_LATER: Final = (
    "SELECT min(due) FROM"
    " (SELECT min(due) AS due FROM main.jobs WHERE state = 'parked' AND due > :now"
    " UNION ALL SELECT min(expires) FROM main.jobs WHERE expires > :now) AS times"
)
SUSPECTED: Final = (
    "SELECT DISTINCT lane FROM main.jobs WHERE state = 'waiting' AND crashed_with > 0"
)
ADD_COUNTS: Final = Many(
    "INSERT INTO main.counts AS c SELECT v.lane, v.state, v.name, v.n FROM v WHERE true"
    " ON CONFLICT ([lane], state, [name]) DO UPDATE SET n = c.n + excluded.n",
    "lane text, state text, name text, n bigint",
)


def number_at(time: float) -> int:
    """Return the least number that a store gives out at a time, within the range of numbers."""
    return int(max(0.0, min(time, 9e12)) * 1_000_000)


def last_of(front: ListFront) -> int:
    """Return the place of the last known job of a list, or one before all places."""
    last = front.last()
    return LEAST_PLACE if last is None else last


class SqlTables(SmallTables):
    """An implementation of `Tables` over one connection to a database, with a cache."""

    _queue_front: ClassVar[int]  # how many jobs of a session's queue are read at once
    _list_front: ClassVar[int]  # how many jobs of a ready list are read at once, at most
    _joined_ids: ClassVar[str]  # a function of SQL that joins the ids of a group by commas
    _numbers: ClassVar[str] = "main.counts"  # a table of SQL: the numbers of jobs

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self._rows: Final = rows
        self._cache = Cache()
        self._version: int | None = None  # the version of the tables that is cached; or None
        self._number = 0
        self._clock = 0.0

    @abstractmethod
    def _stream(self, statement: str) -> Iterable[Any]:
        """Execute a statement; yield its rows, which may be more than fit into memory."""

    def _forget(self) -> None:
        """Drop all that is known of the tables."""
        self._version = None
        self._rows.forget()
        self._cache = Cache()
        self._forget_small()

    def _flush(self) -> None:
        """Write all changes: at the end of a transaction."""
        self._rows.flush()
        self._flush_small()
        self._flush_counts()

    def _flush_counts(self) -> None:
        self._cache.count()
        uncounted = [(*sums, n) for sums, n in self._cache.uncounted.items() if n]
        if uncounted:
            self._execute_many(ADD_COUNTS, uncounted)
        self._cache.uncounted.clear()

    def _end(self) -> None:
        """End a transaction that was committed."""
        self._rows.end()
        if len(self._cache.queues) > QUEUES_KEPT or self._rows.payloads > PAYLOADS:
            self._cache.forget_fronts()
            self._rows.payloads = 0

    @property
    def writes(self) -> int:
        """The number of changes so far: a caller compares it with an earlier value."""
        return self._small_writes + self._rows.writes

    # ---- jobs

    def insert(self, job: JobRecord) -> None:
        self._rows.insert(job)
        self._cache.appeared(job)

    def before_change(self, job: JobRecord) -> None:
        pass

    def update(self, job: JobRecord, **changes: Any) -> None:
        before = job.state
        for column, value in changes.items():
            setattr(job, column, value)
        self._rows.change(job, changes)
        self._cache.changed(job, before, changes)

    def delete(self, job: JobRecord) -> None:
        if job.emitted or job.sent:  # what waits to be written would outlive it
            self.drop_items(job.event_list, taken=True)
            self.drop_items(job.message_list, taken=True)
        self._rows.delete(job)
        self._cache.disappeared(job)

    def get(self, id: int) -> JobRecord | None:
        return self._rows.get(id)

    def keyed(self, key: str) -> JobRecord | None:
        return self._rows.keyed(key)

    def coalesced(self, key: str, *, begun: bool) -> JobRecord | None:
        if self._rows.is_unwritten(coalesce=key):
            self._rows.flush()
        where = f"[coalesce] = :key AND fence {'>' if begun else '='} 0 ORDER BY id LIMIT 1"
        return next(iter(self._rows.select(where, {"key": key})), None)

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def last_number(self) -> int:
        return self._number

    # ---- queues and ready lists

    def head(self, session: str) -> JobRecord | None:
        size = self._queue_front
        front = self._cache.queues.get(session)
        if front is None:
            front = self._cache.queues[session] = ListFront(place_of, size)
        while (head := front.head()) is None and not front.complete:
            if session in self._rows.touched:
                self._rows.flush()
            jobs = self._rows.select(
                "[session] = :session AND place > :after AND place IS NOT NULL"
                " ORDER BY place LIMIT :limit",
                {"session": session, "after": last_of(front), "limit": size},
            )
            front.extend(jobs, complete=len(jobs) < size)
        return head

    def ready(
        self, lane: str, priority: int, name: str, after: int | None, limit: int, ring: str = ""
    ) -> list[JobRecord]:
        key = lane, priority, name, ring
        known = self._cache.lists.get(key)
        if known is None:
            known = self._cache.lists[key] = ListFront(ready_of, self._list_front)
        # fewer than are asked for will do: the caller asks again
        while (found := known.first(after, limit) or known.first(after, 1)) is None:
            self._read_lists([key], last_of(known), max(limit, self._list_front))
        return found

    def look_ahead(self, lanes: Collection[str], names: Collection[str]) -> None:
        lists, counts = self._cache.lists, self.counts()
        unknown = [
            (lane, priority, name, "")
            for lane in lanes
            for name in counts.waiting[lane].intersection(names)
            for priority in PRIORITIES
            if (lane, priority, name, "") not in lists
        ]
        for key in unknown:
            lists[key] = ListFront(ready_of, self._list_front)
        if unknown:
            unknown = self._not_all_unwritten(unknown, counts)
        if unknown:
            most = max(READ_AHEAD, self._list_front // len(lanes))
            self._read_lists(unknown, LEAST_PLACE, most)

    def _not_all_unwritten(self, keys: Sequence[ListKey], counts: Counts) -> list[ListKey]:
        """Fill those lists whose jobs all have unwritten changes; return the others."""
        unwritten: dict[tuple[str, str], list[JobRecord]] = {}
        for job in sorted(self._rows.unwritten(), key=lambda job: job.ready or 0):
            if job.state is WAITING:
                unwritten.setdefault((job.lane, job.name), []).append(job)
        others = []
        for key in keys:
            lane, priority, name, ring = key
            jobs = unwritten.get((lane, name), [])
            if len(jobs) < counts.waiting_for(lane, name):
                others.append(key)
                continue
            jobs = [job for job in jobs if (job.priority, job.ring) == (priority, ring)]
            listed = [job for job in jobs if ready_of(job) is not None]
            self._cache.lists[key].extend(listed, complete=True)
        return others

    def _read_lists(self, keys: Sequence[ListKey], after: int, limit: int) -> None:
        """Read the next jobs of some ready lists, of each up to ``limit``."""
        self._rows.flush()
        found: dict[ListKey, list[JobRecord]] = {key: [] for key in keys}
        for job in self._ready_behind(keys, after, limit):
            found[job.lane, job.priority, job.name, job.ring].append(job)
        for key, jobs in found.items():
            jobs.sort(key=place_on_list)
            self._cache.lists[key].extend(jobs, complete=self._is_all(jobs, limit))

    def _is_all(self, jobs: Sequence[JobRecord], limit: int) -> bool:
        """Whether jobs that were read from a ready list are all of it."""
        return len(jobs) < limit

    @abstractmethod
    def _ready_behind(self, keys: Sequence[ListKey], after: int, limit: int) -> Iterable[JobRecord]:
        """Return the next jobs of some ready lists, of each up to ``limit``, in any order."""

    def suspected(self) -> Collection[str]:
        if self._cache.suspected is None:
            self._rows.flush()
            self._cache.suspected = {lane for (lane,) in self._execute(SUSPECTED)}
        return self._cache.suspected

    def heads_of(self, lane: str, priority: int, party: str) -> list[JobRecord]:
        return self._of_party(lane, priority, party, "shelf = 0")

    def first_behind(self, lane: str, priority: int, name: str, party: str) -> JobRecord | None:
        first = "shelf = 1 AND [name] = :name ORDER BY ready LIMIT 1"
        return next(iter(self._of_party(lane, priority, party, first, name=name)), None)

    def _of_party(
        self, lane: str, priority: int, party: str, where: str, **values: str
    ) -> list[JobRecord]:
        self._rows.flush()
        return self._rows.select(
            "[lane] = :lane AND priority = :priority AND [party] = :party AND party IS NOT NULL"
            f" AND {where}",
            {"lane": lane, "priority": priority, "party": party, **values},
        )

    def listed(self, lane: str) -> list[JobRecord]:
        self._rows.flush()
        return self._rows.select(
            "[lane] = :lane AND ready >= 0 AND shelf < 2 ORDER BY shelf, ready", {"lane": lane}
        )

    # ---- times

    def due(self, now: float, limit: int, session: str | None = None) -> list[JobRecord]:
        since = self._parked_until()
        if since > now:
            return []
        self._rows.flush()
        of: dict[str, Any] = {"session": session, "since": since, "now": now, "limit": limit}
        if session is not None:
            return self._rows.select(
                "[session] = :session AND state = 'parked' AND place IS NULL AND due <= :now"
                " ORDER BY due, id LIMIT :limit",
                of,
            )
        self._cache.parked_until = None
        # not from the front of the index, where entries stay that an old snapshot may still see
        over = self._rows.select(
            "expires >= :since AND expires <= :now ORDER BY expires, id LIMIT :limit", of
        )
        of["limit"] = limit - len(over)
        due = over + self._rows.select(
            "state = 'parked' AND due >= :since AND due <= :now ORDER BY due, id LIMIT :limit", of
        )
        if len(due) < limit:  # before the caller changes these: it need not be written first
            self._read_parked_until(self._execute(_DUE_LATER, {"now": now}))
        return due

    def _parked_until(self) -> float:
        until = self._cache.parked_until
        if until is None:
            self._rows.flush()
            until = self._read_parked_until(self._execute(DUE))
        return until

    def _read_parked_until(self, due: Cursor) -> float:
        (first,) = due.fetchone()
        until = self._cache.parked_until = NEVER if first is None else float(first)
        return until

    def next_due(self) -> float | None:
        until = min([self._parked_until(), *self.of(PAUSES).values()])
        return until if until < NEVER else None

    def parked_until(self, time: float, limit: int) -> Mapping[str, int]:
        self._rows.flush()
        rows = self._execute(
            "SELECT lane, count(*) FROM (SELECT lane FROM main.jobs WHERE state = 'parked'"
            " AND due <= :time ORDER BY due LIMIT :limit) AS due GROUP BY lane",
            {"time": time, "limit": limit},
        )
        return dict(rows.fetchall())

    # ---- runs

    def _sets(self) -> str:
        return (
            f"SELECT lane, instance, lent, {self._joined_ids} FROM main.jobs"
            " WHERE state = 'running' GROUP BY 1, 2, 3"
        )

    def runs(self) -> Running:
        runs = self._cache.runs
        if runs is None:
            self._rows.flush()
            sets, special = self._execute(self._sets()), self._rows.select(SPECIAL)
            runs = self._cache.runs = Running(sets, special)
        return runs

    def running(self, instance: str) -> list[JobRecord]:
        self._rows.flush()
        where = "state = 'running' AND instance = :instance"
        return self._rows.select(where, {"instance": instance})

    def fences_of(self, instance: str) -> dict[int, int]:
        self._rows.flush()
        of = "SELECT fence, id FROM main.jobs WHERE state = 'running' AND instance = :instance"
        return dict(self._execute(of, {"instance": instance}).fetchall())

    def first_holder(self, lane: str) -> JobRecord | None:
        self._rows.flush()
        first = "state = 'running' AND lane = :lane AND lent = 0 ORDER BY fence LIMIT 1"
        return next(iter(self._rows.select(first, {"lane": lane})), None)

    def ready_before(self, job: JobRecord, limit: int) -> int:
        self._rows.flush()
        rows = self._execute(
            "SELECT count(*) FROM (SELECT 1 FROM main.jobs WHERE [lane] = :lane"
            " AND ready IS NOT NULL AND shelf = 0 AND (priority > :priority"
            " OR (priority = :priority AND ready < :ready)) LIMIT :limit) AS found",
            {"lane": job.lane, "priority": job.priority, "ready": job.ready, "limit": limit},
        )
        return int(rows.fetchone()[0])

    # ---- selections

    def clearable(
        self, lane: str | None, session: str | None, before: int, limit: int
    ) -> list[JobRecord]:
        self._rows.flush()
        of = {"lane": lane, "session": session, "before": before, "limit": limit}
        if session is None:
            return self._rows.select(
                "state IN ('waiting', 'parked') AND lane = :lane AND id < :before"
                " ORDER BY id DESC LIMIT :limit",
                of,
            )
        queued = self._rows.select(
            "[session] = :session AND place IS NOT NULL AND state IN ('waiting', 'parked')"
            " AND id < :before ORDER BY place DESC LIMIT :limit",
            of,
        )
        delayed = self._rows.select(
            "[session] = :session AND place IS NULL AND state = 'parked' AND id < :before"
            " LIMIT :limit",
            {**of, "limit": limit - len(queued)},
        )
        return queued + delayed

    def select(self, of: Selection, after: int, limit: int, now: float) -> list[JobRecord]:
        if not of.states:
            return []
        self._rows.flush()
        letters = of.states <= DEAD_LETTERS
        conditions = {
            "id": "id = :id",
            "lane": "lane = :lane",
            "session": "session = :session",
            # not by an index: there are fewer dead jobs than of a name
            "name": "name || '' = :name" if letters else "[name] = :name",
            "error": "[error] = :error",
            "since": "submitted_at >= :since",
            "until": "submitted_at < :until",
        }
        values = {field: getattr(of, field) for field in conditions}
        where = [text for field, text in conditions.items() if values[field] is not None]
        last = -LEAST_PLACE - 1
        if of.since is not None:
            after = max(after, self._least_id(of.since - OUT_OF_ORDER) - 1)
        if of.until is not None:
            last = self._least_id(of.until + OUT_OF_ORDER)
        # written out, so that the index of one state can be used
        named = [repr(state.value) for state in of.states]
        where.append(f"state IN ({', '.join(named)})" if len(named) != 1 else f"state = {named[0]}")
        if letters:
            where.append("error IS NOT NULL")
        if not ENDED.isdisjoint(of.states):
            where.append(f"(due > :now OR {LIVE})")
        return self._rows.select(
            f"{' AND '.join(where)} AND id > :after AND id <= :last ORDER BY id"
            + ("" if limit < 0 else " LIMIT :limit"),
            {**values, "after": after, "last": last, "now": now, "limit": limit},
        )

    @abstractmethod
    def _least_id(self, time: float) -> int:
        """Return the least id of the jobs submitted then or later, but for ``OUT_OF_ORDER``."""

    def all_live(self) -> Iterable[JobRecord]:
        self._rows.flush()
        order = "session NULLS FIRST, place NULLS FIRST, id"
        return self._rows.records(self._stream(f"{SELECT}{LIVE} ORDER BY {order}"))

    # ---- sums

    def counts(self) -> Counts:
        self._cache.count()
        counts = self._cache.counts
        if counts is None:
            self._flush_counts()
            counts = self._cache.counts = Counts(self._live_counts().items())
        return counts

    def count_end(self, label: str, state: DurableState) -> None:
        key, uncounted = (label, f"+{state.value}", ""), self._cache.uncounted
        uncounted[key] = uncounted.get(key, 0) + 1

    def ends(self) -> Iterable[tuple[str, str, int]]:
        self._flush_counts()
        statement = f"SELECT lane, substr(state, 2), n FROM {self._numbers} WHERE NOT {LIVE}"
        return self._execute(statement).fetchall()

    def sessions(self) -> int:
        self._rows.flush()
        statement = "SELECT count(DISTINCT session) FROM main.jobs WHERE place IS NOT NULL"
        return int(self._execute(statement).fetchone()[0])

    def sessions_of_lanes(self) -> Mapping[str, int]:
        self._rows.flush()
        rows = self._execute(
            "SELECT lane, count(*) FROM (SELECT DISTINCT session, lane FROM main.jobs"
            " WHERE place IS NOT NULL) AS pairs GROUP BY lane"
        )
        return dict(rows.fetchall())

    # ---- consistency

    def forget_unused(self, now: float) -> None:
        self._flush_counts()
        self.counts().forget_zeros()
        self._forget_zeros()
        super().forget_unused(now)

    def _forget_zeros(self) -> None:
        self._execute("DELETE FROM main.counts WHERE n = 0")

    def inspect(self) -> list[str]:
        self._rows.flush()
        self._flush_counts()
        right = self._true_counts() == self._live_counts()
        return [] if right else ["the stored counts of jobs are wrong"]

    def recount(self) -> bool:
        self._rows.flush()
        self._flush_counts()
        true, stored = self._true_counts(), self._live_counts()
        if true == stored:
            return False
        self._cache.counts = Counts(true.items())
        for key in true.keys() | stored.keys():
            self._cache.uncounted[key] = true.get(key, 0) - stored.get(key, 0)
        self._small_writes += 1
        return True

    def _true_counts(self) -> dict[Key, int]:
        rows = self._execute(
            f"SELECT lane, state, name, count(*) FROM main.jobs WHERE {LIVE} GROUP BY 1, 2, 3"
        )
        return {(lane, state, name): n for lane, state, name, n in rows}

    def _live_counts(self) -> dict[Key, int]:
        rows = self._execute(COUNTS.format(self._numbers))
        return {(lane, state, name): n for lane, state, name, n in rows}
