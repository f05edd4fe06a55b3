"""`SqliteTables`: each lookup of `Tables`, from the cache or as one SQL statement.

No statement may read the jobs behind a head: their number is the one that grows. `cache` says which
values are cached and when they are dropped; `rows` reads and writes jobs; `small_tables` has the
other tables.

Numbers (ids, places, fences) are counted in memory inside of a transaction, and written at its end.
A file can go back in time: a backup is restored, or the power fails and ``synchronous`` is NORMAL.
The lost numbers may be in use outside of the store, so they must not be given out again:

* A process that opens the file continues with numbers above the store's time in microseconds. A
  store gives out fewer than a million numbers in a second. So the numbers are greater than all
  earlier numbers, also than lost numbers.
* A worker leaves a gap after the last number in the file, and writes that to the disk before it
  gives out a number. So numbers do not come again if the machine starts with a clock that has gone
  back.

They stay below 2**53, which JSON and JavaScript keep exact, until the year 2255.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, final

from .._contract.errors import StoreLockedError
from .._contract.records import Selection
from .._contract.state import DEAD, ENDED, FAILED, PARKED, DurableState
from .._rules.answers import Answers
from .._rules.job_record import LENT_SLOT, JobRecord
from .._rules.tables import LastStep
from .._tables.cache import (
    COUNTED,
    LIST_FRONT,
    NEVER,
    PAYLOADS,
    QUEUE_FRONT,
    QUEUES_KEPT,
    Cache,
    Runs,
    place_of,
    ready_of,
)
from .._tables.counts import Counts
from .._tables.list_front import ListFront
from .machine_time import Moment
from .rows import Rows
from .small_tables import SmallTables

GAP: Final = 2**16
"""Numbers that a worker leaves out when it opens a file: more than an unsynced log can hold.

It is less than the microseconds that the start of a worker takes, or the gaps would outrun the
time.
"""
OUT_OF_ORDER: Final = 60.0
"""Seconds by which the times of two submissions may be out of the order of their ids.

A process reads the time, and may then wait for the transaction of another.
"""
TOLERANCE: Final = 0.1
"""Seconds by which the wall clock may be set before the jobs with a ``run_at`` follow it."""
MOVED_AT_ONCE: Final = 1_000
GREATEST: Final = 2**63 - 1
CLOCK_STEP: Final = 1.0
"""Seconds by which the store's time may be ahead of the time in the file."""
_LETTERS: Final = frozenset({DEAD, FAILED})
_LIVE: Final = f"state IN ({', '.join(repr(state.value) for state in COUNTED)})"


@final
class SqliteTables(SmallTables):
    """An implementation of `Tables` over one connection, with a cache."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        super().__init__(connection)
        self._name: Final = name
        self._rows: Final = Rows(connection)
        self._cache = Cache()
        self._answers: Final = Answers()
        self.epoch: int | None = None  # of a worker; None: this is no worker
        self.least_number = 0  # all numbers given out by this connection are greater
        self._version: int | None = None  # the version of the file that is cached; or None
        self._number = self._number_before = 0
        self._clock = 0.0
        self._in_doubt = False  # the log may hold a failed commit that is not written over yet

    # ---- transactions

    def begin(self, *, write: bool = True) -> None:
        """Begin a transaction.

        Raises:
          StoreLockedError: if another worker has opened the file since.
        """
        self._execute("BEGIN IMMEDIATE" if write else "BEGIN")
        version = int(self._execute("PRAGMA data_version").fetchone()[0])
        if version != self._version:  # another connection has written
            self._forget()
            epoch, self._number, self._clock = self._execute(
                "SELECT epoch, sequence, clock FROM meta"
            ).fetchone()
            if self.epoch is not None and self.epoch != epoch:
                raise StoreLockedError(self._name, owner_of(self))
            self._version = version
            self._number = max(self._number, self.least_number)
        self._number_before = self._number

    def commit(self, now: float) -> None:
        """Commit the transaction; its changes are on the disk when this returns."""
        self._flush()
        if self._number != self._number_before:
            if now > self._clock + CLOCK_STEP:
                self._clock = now
            self._execute("UPDATE meta SET sequence = ?, clock = ?", (self._number, self._clock))
        try:
            self._execute("COMMIT")
        except sqlite3.Error as error:
            self._in_doubt = self._in_doubt or _is_of_sync(error)
            raise
        self._answers.commit()
        if len(self._cache.queues) > QUEUES_KEPT or self._rows.payloads > PAYLOADS:
            self._cache.forget_fronts()
            self._rows.payloads = 0

    def rollback(self) -> bool:
        """Undo the transaction. If that fails, the next `begin` raises the reason.

        Return whether it is certain that nothing of this transaction, or of an earlier one that
        failed, is left if the process dies now.
        """
        self._forget()
        self._answers.undo()
        with suppress(sqlite3.Error):  # some errors have done so already
            self._execute("ROLLBACK")
        self._in_doubt = self._in_doubt and not self._overwrite()
        return not self._in_doubt

    def _overwrite(self) -> bool:
        """Write over a failed commit that may be complete in the log.

        A commit is written to the log and then synced. If only the sync fails, the commit is in the
        file: SQLite ignores it now, but would find it when it reads the log after a crash. The next
        transaction is written to the same place, whether or not its own sync succeeds.
        """
        try:
            self._execute("BEGIN IMMEDIATE")
            self._execute(
                "UPDATE meta SET sequence = sequence + 1"
            )  # the same value writes nothing
            self._execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._execute("ROLLBACK")
            return _is_of_sync(error)
        return True

    def _forget(self) -> None:
        self._version = None
        self._rows.forget()
        self._cache = Cache()
        self._forget_small()

    def _flush(self) -> None:
        self._rows.flush()
        self._cache.count()
        if self._cache.uncounted:
            self._connection.executemany(
                "INSERT INTO counts VALUES (?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET n = n + excluded.n",
                [(*sums, n) for sums, n in self._cache.uncounted.items() if n],
            )
            self._cache.uncounted.clear()

    @property
    def writes(self) -> int:
        """The number of changes so far: a caller compares it with an earlier value."""
        return self._small_writes + self._rows.writes

    def enter_epoch(self, moment: Moment) -> float:
        """Lock earlier workers out, leave a gap in the numbers, and set the clock."""
        self.begin()
        self._execute("UPDATE meta SET epoch = epoch + 1")
        beyond_gap = self._number + GAP
        now = self.set_clock(moment)
        self._number = max(self._number, beyond_gap)
        self._number_before = 0  # so that the number is written in any case
        self.commit(now)
        self.epoch = self._execute("SELECT epoch FROM meta").fetchone()[0]
        return now

    def set_synchronous(self, mode: str) -> None:
        """Set SQLite's ``synchronous`` mode. Call it between transactions."""
        self._execute(f"PRAGMA synchronous = {mode}")

    def set_clock(self, moment: Moment) -> float:
        """Return the store's time at a moment; numbers continue from it in microseconds."""
        now = self._time_at(moment)
        self.least_number = int(now * 1_000_000)
        self._number = self._number_before = max(self._number, self.least_number)
        return now

    def _time_at(self, moment: Moment) -> float:
        clock: float
        boot: str
        ahead: float
        clock, boot, ahead = self._execute("SELECT clock, boot, ahead FROM meta").fetchone()
        if moment.boot and moment.boot == boot:
            return max(moment.machine + ahead, clock)
        now = max(moment.wall, clock)
        self._execute("UPDATE meta SET boot = ?, ahead = ?", (moment.boot, now - moment.machine))
        return now

    def version(self) -> int:
        """Return a number that changes when another connection has written."""
        return int(self._execute("PRAGMA data_version").fetchone()[0])

    # ---- jobs

    def insert(self, job: JobRecord) -> None:
        self._rows.insert(job)
        self._cache.appeared(job)

    def update(self, job: JobRecord, **changes: Any) -> None:
        before = job.state
        for column, value in changes.items():
            setattr(job, column, value)
        self._rows.change(job, changes)
        cache = self._cache
        if "state" in changes:
            cache.changed_state(job, before)
        elif "lent" in changes or "cancel" in changes:
            cache.changed_run(job)
        if job.place is not None and "place" in changes:
            cache.changed_place(job)
        if job.ready is not None and ("ready" in changes or "shelf" in changes):
            cache.changed_ready(job)

    def delete(self, job: JobRecord) -> None:
        self._rows.delete(job)
        self._cache.disappeared(job)

    def get(self, id: int) -> JobRecord | None:
        return self._rows.get(id)

    def keyed(self, key: str) -> JobRecord | None:
        return self._rows.keyed(key)

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
            if session in self._rows.touched:
                self._flush()
            jobs = self._rows.select(
                "session = ? AND place > ? AND place IS NOT NULL ORDER BY place LIMIT ?",
                (session, _beyond(front), QUEUE_FRONT),
            )
            front.extend(jobs, complete=len(jobs) < QUEUE_FRONT)
        return head

    def ready(
        self, lane: str, priority: int, name: str, after: int | None, limit: int
    ) -> list[JobRecord]:
        known = self._cache.lists.get((lane, priority, name))
        if known is None:
            known = self._cache.lists[lane, priority, name] = ListFront(ready_of, LIST_FRONT)
        while (found := known.first(after, limit)) is None:
            self._flush()
            most = max(limit, LIST_FRONT)
            jobs = self._rows.select(
                "lane = ? AND priority = ? AND name = ? AND ready > ?"
                " AND ready IS NOT NULL AND shelf = 0 ORDER BY ready LIMIT ?",
                (lane, priority, name, _beyond(known), most),
            )
            known.extend(jobs, complete=len(jobs) < most)
        return found

    def has_waiting(self, lane: str, name: str) -> bool:
        return (lane, name) in self._counts().waiting

    def waiting_lanes(self, names: Collection[str]) -> Iterable[str]:
        return {lane for lane, name in self._counts().waiting if name in names}

    # ---- answers that may be asked for again

    def answer(self, ticket: str, now: float) -> tuple[Any] | None:
        return self._answers.get(ticket, now)

    def put_answer(self, ticket: str, answer: Any, now: float) -> None:
        self._answers.put(ticket, answer, now)

    def last_step(self, instance: str) -> LastStep | None:
        return self._answers.steps.get(instance)

    def put_last_step(self, instance: str, step: LastStep) -> None:
        self._answers.put_step(instance, step)

    def drop_instance(self, id: str) -> None:
        super().drop_instance(id)
        self._answers.put_step(id, None)

    # ---- times

    def parked_due(self, now: float, limit: int, session: str | None = None) -> list[JobRecord]:
        if self._parked_until() > now:
            return []
        if session is not None:
            self._flush()
            return self._rows.select(
                "session = ? AND state = 'parked' AND place IS NULL AND due <= ?"
                " ORDER BY due, id LIMIT ?",
                (session, now, limit),
            )
        self._cache.parked_until = None
        self._flush()
        return self._rows.select(
            "state = 'parked' AND due <= ? ORDER BY due, id LIMIT ?", (now, limit)
        )

    def _parked_until(self) -> float:
        until = self._cache.parked_until
        if until is None:
            until = self._cache.parked_until = self._first_due(PARKED)
        return until

    def follow_wall_clock(self, ahead: float) -> bool:
        """Move the jobs that have a time of the wall clock; return whether there was one to move.

        Args:
          ahead: the store's time less Unix time.
        """
        moved = False
        where = "state = 'parked' AND why = 'delay' AND abs(run_at + ? - due) > ? LIMIT ?"
        self._flush()
        while jobs := self._rows.select(where, (ahead, TOLERANCE, MOVED_AT_ONCE)):
            for job in jobs:
                assert job.run_at is not None
                self.update(job, due=job.run_at + ahead)
            self._flush()
            moved = True
        self._cache.parked_until = None
        return moved

    def forget_due(self, now: float, limit: int) -> int:
        if self._kept_until() > now:
            return 0
        self._cache.kept_until = None
        self._flush()
        forgotten = 0
        for state in ENDED:
            forgotten += self._rows.delete_where(
                "state = ? AND due <= ? LIMIT ?", (state.value, now, limit - forgotten)
            )
        return forgotten

    def _kept_until(self) -> float:
        until = self._cache.kept_until
        if until is None:
            until = self._cache.kept_until = min(map(self._first_due, ENDED))
        return until

    def _first_due(self, state: DurableState) -> float:
        self._flush()
        due = self._execute(
            "SELECT min(due) FROM jobs WHERE state = ? AND due IS NOT NULL", (state.value,)
        ).fetchone()[0]
        return NEVER if due is None else float(due)

    def next_due(self) -> float | None:
        until = min([self._parked_until(), *self.pauses().values()])
        return until if until < NEVER else None

    def next_over(self) -> float | None:
        until = self._kept_until()
        return until if until < NEVER else None

    # ---- runs

    def _runs(self) -> Runs:
        runs = self._cache.runs
        if runs is None:
            self._flush()
            runs = self._cache.runs = Runs()
            for job in self._rows.select("state = 'running'"):
                runs.put(job)
        return runs

    def running(self, instance: str) -> list[JobRecord]:
        return [job for job in self._runs().all.values() if job.instance == instance]

    def beside(self, instance: str) -> tuple[int, list[JobRecord]]:
        runs = [job for job in self.running(instance) if job.lent != LENT_SLOT]
        return len(runs), [job for job in runs if job.company]

    def cancelled_running(self, instance: str) -> list[JobRecord]:
        return [job for job in self._runs().cancelled.values() if job.instance == instance]

    def slots_used(self, lane: str) -> int:
        return len(self._runs().holding.get(lane, ()))

    def running_lanes(self) -> Iterable[str]:
        runs = self._runs()
        return {*runs.holding, *(job.lane for job in runs.wanting.values())}

    def wanting(self, lane: str) -> list[JobRecord]:
        wanting = [job for job in self._runs().wanting.values() if job.lane == lane]
        return sorted(wanting, key=lambda job: job.fence)

    # ---- selections

    def clearable(
        self, lane: str | None, session: str | None, before: int, limit: int
    ) -> list[JobRecord]:
        self._flush()
        if session is None:
            return self._rows.select(
                "state IN ('waiting', 'parked') AND lane = ? AND id < ? ORDER BY id DESC LIMIT ?",
                (lane, before, limit),
            )
        queued = self._rows.select(
            "session = ? AND place IS NOT NULL AND state IN ('waiting', 'parked') AND id < ?"
            " ORDER BY place DESC LIMIT ?",
            (session, before, limit),
        )
        delayed = self._rows.select(
            "session = ? AND place IS NULL AND state = 'parked' AND id < ? LIMIT ?",
            (session, before, limit - len(queued)),
        )
        return queued + delayed

    def select(self, of: Selection, after: int, limit: int, now: float) -> list[JobRecord]:
        self._flush()
        letters = of.states <= _LETTERS
        columns = {
            "id": of.id,
            "lane": of.lane,
            "session": of.session,
            # with a plus, SQLite does not use the index: there are fewer dead jobs than of a name
            "+name" if letters else "name": of.name,
            "error": of.error,
        }
        given = {column: value for column, value in columns.items() if value is not None}
        conditions = [f"{column} = ?" for column in given]
        values: list[Any] = list(given.values())
        last = GREATEST
        if of.since is not None:
            after = max(after, self._first_since(of.since - OUT_OF_ORDER) - 1)
            conditions.append("submitted_at >= ?")
            values.append(of.since)
        if of.until is not None:
            last = self._first_since(of.until + OUT_OF_ORDER)
            conditions.append("submitted_at < ?")
            values.append(of.until)
        # written out, so that SQLite can use the index of one state
        named = [repr(state.value) for state in of.states]
        one_of = f"IN ({', '.join(named)})" if len(named) != 1 else f"= {named[0]}"
        conditions.append(f"state {one_of}")
        if letters:
            conditions.append("error IS NOT NULL")
        if not ENDED.isdisjoint(of.states):
            conditions.append(f"(due > ? OR {_LIVE})")
            values.append(now)
        return self._rows.select(
            f"{' AND '.join(conditions)} AND id > ? AND id <= ? ORDER BY id LIMIT ?",
            (*values, after, last, limit),
        )

    def _first_since(self, time: float) -> int:
        """Return the least id of the jobs submitted at a time or later; or a greater number.

        Ids are in the order of that time, so this is a binary search on the primary key.
        """
        least, most = self._execute(
            "SELECT coalesce(min(id), 0), coalesce(max(id) + 1, 0) FROM jobs"
        ).fetchone()
        while least < most:
            middle = (least + most) // 2
            id, submitted_at = self._execute(
                "SELECT id, submitted_at FROM jobs WHERE id >= ? ORDER BY id LIMIT 1", (middle,)
            ).fetchone()
            if submitted_at < time:
                least = id + 1
            else:
                most = middle
        return int(least)

    def put_event(self, job: JobRecord, number: int, event: str, keep: int) -> None:
        self._write("INSERT INTO events VALUES (?, ?, ?)", (job.id, number, event))
        if number > keep:
            self._write("DELETE FROM events WHERE job = ? AND number <= ?", (job.id, number - keep))

    def events(self, id: int, after: int, limit: int) -> list[tuple[int, str]]:
        return self._execute(
            "SELECT number, told FROM events WHERE job = ? AND number > ? ORDER BY number LIMIT ?",
            (id, after, limit),
        ).fetchall()

    def put_message(self, id: int, number: int, key: str | None, taken: bool, message: str) -> None:
        self._write(
            "REPLACE INTO messages VALUES (?, ?, ?, ?, ?)", (id, number, key, taken, message)
        )

    def messages(self, id: int, after: int, limit: int) -> list[tuple[int, str | None, bool, str]]:
        return self._execute(
            "SELECT number, key, taken, told FROM messages WHERE job = ? AND number > ?"
            " ORDER BY number LIMIT ?",
            (id, after, limit),
        ).fetchall()

    def drop_untaken(self, id: int) -> None:
        self._write("DELETE FROM messages WHERE job = ? AND taken = 0", (id,))

    def all_live(self) -> Iterable[JobRecord]:
        self._flush()
        return self._rows.stream(f"{_LIVE} ORDER BY session, place, id")

    # ---- sums

    def waiting_for(self, lane: str) -> int:
        return self._counts().bound.get(lane, 0)

    def counts(self) -> Mapping[tuple[str, str, str], int]:
        return self._counts().all()

    def _counts(self) -> Counts:
        self._cache.count()
        counts = self._cache.counts
        if counts is None:
            self._flush()
            rows = self._execute("SELECT lane, state, name, n FROM counts WHERE n != 0")
            counts = Counts(((lane, state, name), n) for lane, state, name, n in rows)
            self._cache.counts = counts
        return counts

    def sessions(self) -> int:
        self._flush()
        statement = "SELECT count(DISTINCT session) FROM jobs WHERE place IS NOT NULL"
        return int(self._execute(statement).fetchone()[0])

    def sessions_of_lanes(self) -> Mapping[str, int]:
        self._flush()
        return dict(
            self._execute(
                "SELECT lane, count(*) FROM"
                " (SELECT DISTINCT session, lane FROM jobs WHERE place IS NOT NULL) GROUP BY lane"
            )
        )

    # ---- consistency

    def forget_unused(self, now: float) -> None:
        self._flush()
        self._counts().forget_zeros()
        self._execute("DELETE FROM counts WHERE n = 0")
        super().forget_unused(now)

    def inspect(self) -> list[str]:
        self._flush()
        found = [row[0] for row in self._execute("PRAGMA integrity_check(20)")]
        problems = [] if found == ["ok"] else found
        if self._true_counts() != self._live_counts():
            problems.append("the stored counts of jobs are wrong")
        return problems

    def recount(self) -> bool:
        self._flush()
        true = self._true_counts()
        if true == self._live_counts():
            return False
        self._cache.counts = None
        self._execute("DELETE FROM counts")
        self._connection.executemany(
            "INSERT INTO counts VALUES (?, ?, ?, ?)", [(*sums, n) for sums, n in true.items()]
        )
        return True

    def _true_counts(self) -> dict[tuple[str, str, str], int]:
        rows = self._execute(
            f"SELECT lane, state, name, count(*) FROM jobs WHERE {_LIVE} GROUP BY 1, 2, 3"
        )
        return {(lane, state, name): n for lane, state, name, n in rows}

    def _live_counts(self) -> dict[tuple[str, str, str], int]:
        rows = self._execute("SELECT lane, state, name, n FROM counts WHERE n != 0")
        return {(lane, state, name): n for lane, state, name, n in rows}


def _is_of_sync(error: sqlite3.Error) -> bool:
    return error.sqlite_errorcode == sqlite3.SQLITE_IOERR_FSYNC


def _beyond(front: ListFront) -> float:
    last = front.last()
    return -math.inf if last is None else last


def owner_of(tables: SqliteTables) -> str:
    """Describe the process that holds the file, for an error message."""
    owners = [f"process {info.pid} on {info.host}" for info in tables.instances()]
    return ", ".join(owners) or "another process"
