"""`Rows`: the table of jobs in SQLite, with writes that wait for the end of the transaction.

* There is at most one record of a job in memory, whichever query found it.
* A change is made in the record, and written when the transaction ends, many changes of the same
  columns in one statement: a statement for each change would cost more than the rest of a job. It
  also lets go of Python's interpreter lock each time, for which Trio's thread may be waiting.
* A new job is written with the columns that differ from their defaults: they are half of all, and
  each parameter costs time.
* A caller calls `Rows.flush` before a query whose answer unwritten changes could affect.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain, compress
from operator import attrgetter
from typing import Any, Final, TypeAlias, final

import attrs

from .._contract.state import DurableState
from .._rules.job_record import JobRecord
from .._tables.weak_values import WeakValues

COLUMNS: Final = tuple(field.name for field in attrs.fields(JobRecord))
_SELECT: Final = f"SELECT {', '.join(COLUMNS)} FROM jobs"
_STATES: Final = {state.value: state for state in DurableState}
_STATE: Final = COLUMNS.index("state")
_ID: Final = COLUMNS.index("id")
_BITS: Final = {column: 1 << number for number, column in enumerate(COLUMNS)}
_DEFAULTS: Final = {
    field.name: "NULL" if field.default is None else repr(field.default)
    for field in attrs.fields(JobRecord)
    if field.default is not attrs.NOTHING
}
"""The columns that have a default, each with its literal in SQL. A default is false in Python."""
AT_ONCE: Final = (32, 8, 1)
"""How many jobs a statement writes: few sizes, since each is a statement that SQLite prepares."""
_REQUIRED: Final = sum(bit for column, bit in _BITS.items() if column not in _DEFAULTS)
_OPTIONAL: Final = tuple(_BITS[column] for column in _DEFAULTS)


_Writes: TypeAlias = Iterable[tuple[JobRecord, int]]
"""(job, bits of the columns to be written, and of ``id``)"""


def _values_of(columns: Iterable[str]) -> Callable[[JobRecord], Any]:
    """Return a function from a record to the values of some columns."""
    return attrgetter(*("state._value_" if column == "state" else column for column in columns))


_optional_of: Final = _values_of(_DEFAULTS)


def _bits_of_new(job: JobRecord) -> int:
    return _REQUIRED + sum(compress(_OPTIONAL, _optional_of(job)))


@cache
def _bits_of(columns: tuple[str, ...]) -> int:
    return _BITS["id"] + sum(_BITS[column] for column in columns)


def _columns_of(bits: int) -> list[str]:
    return [column for column, bit in _BITS.items() if bits & bit]


@cache
def _parameters(bits: int) -> Callable[[JobRecord], Any]:
    return _values_of(_columns_of(bits))


@cache
def _insert(bits: int, jobs: int) -> str:
    row = ", ".join("?" if bits & bit else _DEFAULTS[column] for column, bit in _BITS.items())
    return f"INSERT INTO jobs ({', '.join(COLUMNS)}) VALUES {', '.join([f'({row})'] * jobs)}"


@cache
def _update(bits: int, jobs: int) -> str:
    id, *columns = _columns_of(bits)
    changes = ", ".join(f"{column} = new.column{n}" for n, column in enumerate(columns, 2))
    row = ", ".join("?" * (1 + len(columns)))
    return (
        f"UPDATE jobs SET {changes} FROM (VALUES {', '.join([f'({row})'] * jobs)}) AS new"
        f" WHERE {id} = new.column1"
    )


@final
class Rows:
    """The jobs in one connection's table.

    Attributes:
      touched: the sessions of jobs with unwritten changes.
      writes: the number of changes so far.
      payloads: how many characters of payloads have been read or inserted.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection: Final = connection
        self._known: Final[WeakValues[JobRecord]] = WeakValues()
        self._new: Final[dict[int, JobRecord]] = {}
        self._keys: Final[dict[str, JobRecord]] = {}  # the new jobs by key
        self._changed: Final[dict[int, tuple[JobRecord, int]]] = {}  # with bits of the columns
        self.touched: Final[set[str | None]] = set()
        self.writes = self.payloads = 0

    def forget(self) -> None:
        """Drop all records and unwritten changes: the table has changed, or a rollback came."""
        self._known.clear()
        self._clear()

    def _clear(self) -> None:
        self._new.clear()
        self._keys.clear()
        self._changed.clear()
        self.touched.clear()

    # ---- writing

    def insert(self, job: JobRecord) -> None:
        """Add a new job, which has its id."""
        self._known.put(job.id, job)
        self._new[job.id] = job
        if job.key is not None:
            self._keys[job.key] = job
        self.touched.add(job.session)
        self.writes += 1
        self.payloads += len(job.payload)

    def change(self, job: JobRecord, columns: Iterable[str]) -> None:
        """Note that some columns of a job's record have changed."""
        self.writes += 1
        if job.id not in self._new:
            bits = _bits_of(tuple(columns))
            before = self._changed.get(job.id)
            self._changed[job.id] = job, bits if before is None else bits | before[1]
            self.touched.add(job.session)

    def delete(self, job: JobRecord) -> None:
        """Delete a job."""
        self.flush()
        self.writes += 1
        self._connection.execute("DELETE FROM jobs WHERE id = ?", (job.id,))
        self._known.drop(job.id)

    def delete_where(self, where: str, values: tuple[Any, ...]) -> int:
        """Delete the jobs that fulfil a condition, which has a limit. Return how many."""
        statement = f"SELECT id FROM jobs WHERE {where}"
        ids: list[tuple[int]] = self._connection.execute(statement, values).fetchall()
        self.writes += len(ids)
        self._connection.executemany("DELETE FROM jobs WHERE id = ?", ids)
        for (id,) in ids:
            self._known.drop(id)
        return len(ids)

    def flush(self) -> None:
        """Write all unwritten changes."""
        new = self._new.values()
        self._write(zip(new, map(_bits_of_new, new), strict=True), _insert)
        self._write(self._changed.values(), _update)
        self._clear()

    def _write(self, writes: _Writes, statement: Callable[[int, int], str]) -> None:
        by_columns: dict[int, list[JobRecord]] = {}
        for job, bits in writes:
            by_columns.setdefault(bits, []).append(job)
        for bits, jobs in by_columns.items():
            rows = list(map(_parameters(bits), jobs))
            done = 0
            for size in AT_ONCE:
                while len(rows) - done >= size:
                    values = tuple(chain.from_iterable(rows[done : done + size]))
                    self._connection.execute(statement(bits, size), values)
                    done += size

    # ---- reading

    def get(self, id: int) -> JobRecord | None:
        """Return the job with an id."""
        job = self._known.get(id)
        if job is not None or id.bit_length() > 63:  # SQLite's integers have 64 bits
            return job
        return self.one("id = ?", (id,))

    def keyed(self, key: str) -> JobRecord | None:
        """Return the job with a key."""
        job = self._keys.get(key)
        return job if job is not None else self.one("key = ?", (key,))

    def one(self, where: str, values: tuple[Any, ...]) -> JobRecord | None:
        """Return the first job that fulfils a condition."""
        row = self._connection.execute(f"{_SELECT} WHERE {where}", values).fetchone()
        return None if row is None else self._record(row)

    def select(self, where: str, values: tuple[Any, ...] = ()) -> list[JobRecord]:
        """Return the jobs that fulfil a condition."""
        return list(self.stream(where, values))

    def stream(self, where: str, values: tuple[Any, ...] = ()) -> Iterator[JobRecord]:
        """Yield the jobs that fulfil a condition, which may be more than fit into memory."""
        return map(self._record, self._connection.execute(f"{_SELECT} WHERE {where}", values))

    def _record(self, row: tuple[Any, ...]) -> JobRecord:
        known = self._known.get(row[_ID])
        if known is not None:
            return known
        job = JobRecord(*row)
        job.state = _STATES[row[_STATE]]
        self._known.put(job.id, job)
        self.payloads += len(job.payload)
        return job
