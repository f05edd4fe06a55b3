"""`SqliteTables`: the tables of a store in a SQLite file.

Numbers begin with the store's time in microseconds when the file is opened, and then count.
Besides, a worker leaves a gap after the last number in the file, and writes it to the disk before
it gives out a number. So numbers that were lost do not come again if the machine starts with a
clock that has gone back: they were counted, however long it took.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, final

from .._contract.errors import StoreLockedError
from .._contract.records import HeldSnapshot
from .._contract.state import ENDED, DurableState
from .._rules.answers import RemembersAnswers
from .._rules.engine import Engine
from .._rules.job_record import JobRecord
from .._rules.tables import INSTANCES
from .._sql.act_thread import HandedAct, Transactions
from .._sql.cache import NEVER, ListKey
from .._sql.rows import COLUMNS, Row
from .._sql.statements import Many
from .._sql.tables import SqlTables, number_at
from .machine_time import Moment
from .rows import SqliteRows
from .schema import confirmed_error, is_damage

NUMBER_GAP: Final = 2**16
"""Numbers that a worker leaves out when it opens a file: more than an unsynced log can hold.

It is less than the microseconds that the start of a worker takes, or the gaps would outrun the
time.
"""
TOLERANCE: Final = 0.1
"""Seconds by which the wall clock may be set before the jobs with a ``run_at`` follow it."""
CLOCK_STEP: Final = 1.0
"""Seconds by which the store's time may be ahead of the time in the file."""
_READY_BEHIND: Final = (
    f"SELECT {', '.join(f'j.{column}' for column in COLUMNS)} FROM json_each(?) AS list"
    " CROSS JOIN jobs AS j WHERE j.id IN (SELECT id FROM jobs"
    " WHERE lane = json_extract(list.value, '$[0]')"
    " AND priority = json_extract(list.value, '$[1]') AND name = json_extract(list.value, '$[2]')"
    " AND ring = json_extract(list.value, '$[3]')"
    " AND ready > ? AND ready IS NOT NULL AND shelf = 0 ORDER BY ready LIMIT ?)"
)
"""The fronts of some ready lists: the lists come first, so that each is looked up in the index."""


@final
class SqliteTables(RemembersAnswers, SqlTables, Transactions):
    """An implementation of `Tables` over one connection, with a cache.

    Args:
      name: the path of the file.
      check: raises if the file of that path was removed or replaced.
    """

    errors = sqlite3.Error
    _queue_front = 16
    _list_front = 256
    _joined_ids = "group_concat(id)"

    def __init__(
        self, connection: sqlite3.Connection, name: str, check: Callable[[], None] = lambda: None
    ) -> None:
        self._execute = connection.execute
        RemembersAnswers.__init__(self)
        SqlTables.__init__(self, SqliteRows(connection.execute))
        self._connection: Final = connection
        self._name: Final = name
        self._check: Final = check
        self._begun = False  # whether the present transaction of acts has begun
        self.epoch: int | None = None  # of a worker; None: this is no worker
        self._number_before = 0
        self._least_number = 0  # all numbers that this connection gives out are greater
        self.ahead = 0.0  # the store's time less Unix time
        self._in_doubt = False  # the log may hold a failed commit that is not written over yet

    def _execute_many(self, many: Many, rows: Collection[Row]) -> None:
        self._connection.executemany(many.for_each, rows)

    def _stream(self, statement: str) -> Iterable[Any]:
        return self._execute(statement)

    def _ready_behind(self, keys: Sequence[ListKey], after: int, limit: int) -> Iterable[JobRecord]:
        return self._rows.records(self._execute(_READY_BEHIND, (json.dumps(keys), after, limit)))

    # ---- transactions

    def begin_acts(self, engine: Engine, acts: Sequence[HandedAct[Any]]) -> None:
        self._begun = False
        self._check()
        self.begin(write=any(act.write for act in acts))
        self._begun = True

    def commit_acts(self, engine: Engine, acts: Sequence[HandedAct[Any]]) -> None:
        self.commit(acts[-1].now or 0.0)

    def undo_acts(
        self, acts: list[HandedAct[Any]], error: BaseException
    ) -> tuple[list[list[HandedAct[Any]]], BaseException, bool]:
        unknown = not self.rollback()
        again: list[list[HandedAct[Any]]] = []
        if not (isinstance(error, sqlite3.Error) and is_damage(error)):
            looks = [act for act in acts if not act.write]
            if len(acts) > 1 and self._begun:
                again = [[act] for act in acts]  # one too large for a nearly full disk fails alone
            elif looks and len(looks) < len(acts):
                again = [looks]  # another process writes: these need no lock of it
        if isinstance(error, sqlite3.Error) and len(again) < len(acts):
            error = confirmed_error(Path(self._name), error)
        return again, error, unknown

    def lose_patience(self) -> None:
        """Do nothing: only the disk itself ends a call of the disk."""

    def begin(self, *, write: bool = True) -> None:
        """Begin a transaction.

        Raises:
          StoreLockedError: if another worker has opened the file since.
        """
        self._execute("BEGIN IMMEDIATE" if write else "BEGIN")
        version = int(self._execute("PRAGMA data_version").fetchone()[0])
        if version != self._version:  # another connection has written
            self._forget()
            statement = "SELECT epoch, sequence, clock FROM meta"
            epoch, self._number, self._clock = self._execute(statement).fetchone()
            if self.epoch is not None and self.epoch != epoch:
                raise StoreLockedError(self._name, owner_of(self))
            self._version = version
            self._number = max(self._number, self._least_number)
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
        self.commit_answers()
        self._end()

    def rollback(self) -> bool:
        """Undo the transaction. If that fails, the next `begin` raises the reason.

        Return whether it is certain that nothing of this transaction, or of an earlier one that
        failed, is left if the process dies now.
        """
        self._forget()
        self.undo_answers()
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
            # another value, since the same value writes nothing
            self._execute("UPDATE meta SET sequence = sequence + 1")
            self._execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._execute("ROLLBACK")
            return _is_of_sync(error)
        return True

    def enter_epoch(self, moment: Moment) -> float:
        """Lock earlier workers out, leave a gap in the numbers, and set the clock."""
        self.begin()
        self._execute("UPDATE meta SET epoch = epoch + 1")
        beyond_gap = self._number + NUMBER_GAP
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
        self._least_number = number_at(now)
        self._number = self._number_before = max(self._number, self._least_number)
        return now

    def _time_at(self, moment: Moment) -> float:
        clock: float
        boot: str
        ahead: float
        clock, boot, ahead = self._execute("SELECT clock, boot, ahead FROM meta").fetchone()
        if moment.boot and moment.boot == boot:  # else the monotonic clock may have begun anew
            return max(moment.machine + ahead, clock)
        now = max(moment.wall, clock)
        self._execute("UPDATE meta SET boot = ?, ahead = ?", (moment.boot, now - moment.machine))
        return now

    def version(self) -> int:
        """Return a number that changes when another connection has written."""
        return int(self._execute("PRAGMA data_version").fetchone()[0])

    # ---- selections

    def _least_id(self, time: float) -> int:
        # Ids are in the order of submission, so this is a binary search on the primary key.
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

    # ---- times

    def held_snapshots(self) -> list[HeldSnapshot]:
        """Return the log, if a reader keeps a part of it that cannot be copied into the file.

        SQLite is asked, by a connection of its own, since a transaction can copy nothing. Nobody
        may open the files of the log: a process that closes one loses all locks of SQLite there.
        """
        with closing(sqlite3.connect(self._name, timeout=0)) as other:
            (page,) = other.execute("PRAGMA page_size").fetchone()
            _, frames, copied = other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return [] if frames == copied else [HeldSnapshot("log", self._name, size=frames * page)]

    def ahead_of_wall(self) -> float:
        return self.ahead

    def follow_wall_clock(self, ahead: float) -> bool:
        """Move the jobs that have a time of the wall clock; return whether there was one to move.

        Args:
          ahead: the store's time less Unix time.
        """
        self.ahead = ahead
        self._flush()
        moved = self._execute(
            "UPDATE jobs SET due = run_at + :ahead WHERE state = 'parked' AND why = 'delay'"
            " AND abs(run_at + :ahead - due) > :tolerance",
            {"ahead": ahead, "tolerance": TOLERANCE},
        ).rowcount
        if moved:
            self._forget()
            self._small_writes += moved
        return moved > 0

    def forget_due(self, now: float, limit: int) -> int:
        if self._kept_until() > now:
            return 0
        self._cache.kept_until = None
        self._rows.flush()
        self._flush_small()  # what is in the lists of these jobs goes with them
        forgotten = 0
        for state in ENDED:
            statement = "SELECT id FROM jobs WHERE state = ? AND due <= ? LIMIT ?"
            ids = self._execute(statement, (state.value, now, limit - forgotten)).fetchall()
            self._connection.executemany("DELETE FROM jobs WHERE id = ?", ids)
            forgotten += len(ids)
            for (id,) in ids:
                self._rows.drop(id)
        self._small_writes += forgotten
        return forgotten

    def _kept_until(self) -> float:
        until = self._cache.kept_until
        if until is None:
            self._rows.flush()
            until = self._cache.kept_until = min(map(self._first_due, ENDED))
        return until

    def _first_due(self, state: DurableState) -> float:
        statement = "SELECT min(due) FROM jobs WHERE state = ? AND due IS NOT NULL"
        due = self._execute(statement, (state.value,)).fetchone()[0]
        return NEVER if due is None else float(due)

    def next_over(self) -> float | None:
        until = self._kept_until()
        return until if until < NEVER else None

    # ---- consistency

    def inspect(self) -> list[str]:
        found = [row[0] for row in self._execute("PRAGMA integrity_check(20)")]
        return ([] if found == ["ok"] else found) + super().inspect()


def _is_of_sync(error: sqlite3.Error) -> bool:
    return error.sqlite_errorcode == sqlite3.SQLITE_IOERR_FSYNC


def owner_of(tables: SqliteTables) -> str:
    """Describe the process that holds the file, for an error message."""
    owners = [f"process {info.pid} on {info.host}" for info in tables.of(INSTANCES).values()]
    return ", ".join(owners) or "another process"
