"""`Rows`: the table of jobs, with writes that wait for the end of the transaction.

* There is at most one record of a job in memory, whichever query found it.
* A change is made in the record, and written when the transaction ends, the changes of the same
  columns together. A statement for each would cost more than the rest of a job, and a trip to a
  server.
* A caller calls `Rows.flush` before a query whose answer unwritten changes could affect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias

import attrs

from .._contract.state import DurableState
from .._contract.weak_values import WeakValues
from .._rules.job_record import JobRecord

COLUMNS: Final = tuple(field.name for field in attrs.fields(JobRecord))
SELECT: Final = f"SELECT {', '.join(COLUMNS)} FROM main.jobs WHERE "
BITS: Final = {column: 1 << number for number, column in enumerate(COLUMNS)}
"""A set of columns is a number, so that it is a key that costs little."""
_STATES: Final = {state.value: state for state in DurableState}
_STATE: Final = COLUMNS.index("state")
_ID: Final = COLUMNS.index("id")
_BIGGEST: Final = 2**63 - 1  # the integers of both databases have 64 bits

Values: TypeAlias = Mapping[str, Any] | Sequence[Any]
Row: TypeAlias = tuple[Any, ...]


class Cursor(Protocol):
    """The rows of a statement, as the module of each database gives them."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


Execute: TypeAlias = Callable[..., Cursor]


def values_of(columns: Iterable[str]) -> Callable[[JobRecord], Row]:
    """Return a function from a record to the values of some columns."""
    return attrgetter(*("state._value_" if column == "state" else column for column in columns))


@cache
def columns_of(bits: int) -> tuple[str, ...]:
    """Return the columns of a set."""
    return tuple(column for column, bit in BITS.items() if bits & bit)


@cache
def _bits_of(columns: tuple[str, ...]) -> int:
    return BITS["id"] + sum(BITS[column] for column in columns)


def record_of(row: Row) -> JobRecord:
    """Return a new record of a row, which has `COLUMNS`."""
    job = JobRecord(*row)
    job.state = _STATES[row[_STATE]]
    return job


class Rows(ABC):
    """The jobs in one connection's table.

    Attributes:
      touched: the sessions of jobs with unwritten changes.
      writes: the number of changes so far.
      payloads: how many characters of payloads have been read or inserted.
    """

    def __init__(self, execute: Execute) -> None:
        self._execute: Final = execute
        self._known: Final[WeakValues[JobRecord]] = WeakValues()
        self._new: Final[dict[int, JobRecord]] = {}
        self._keys: Final[dict[str, JobRecord]] = {}  # the new jobs of this transaction, by key
        self._changed: Final[dict[int, tuple[JobRecord, int]]] = {}  # {id: (job, columns)}
        self.touched: Final[set[str | None]] = set()
        self.writes = self.payloads = 0

    def forget(self) -> None:
        """Drop all records and unwritten changes: the table has changed, or a rollback came."""
        self._known.clear()
        self._clear()
        self.end()

    def end(self) -> None:
        """End a transaction, whose changes are all written."""
        self._keys.clear()

    def _clear(self) -> None:
        self._new.clear()
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
        self._execute("DELETE FROM main.jobs WHERE id = :id", {"id": job.id})
        self.drop(job.id)
        if job.key is not None:
            self._keys.pop(job.key, None)

    def drop(self, id: int) -> None:
        """Drop the record of a job that was deleted from the table."""
        self._known.drop(id)

    def flush(self) -> None:
        """Write all unwritten changes."""
        by_columns: dict[int, list[JobRecord]] = {}
        for job, bits in self._changed.values():
            by_columns.setdefault(bits, []).append(job)
        for bits, jobs in by_columns.items():
            self._update(bits, jobs)
        if self._new:  # last, since one of them may have the key that a changed job has given up
            self._insert(self._new.values())
        self._clear()

    def unwritten(self) -> Iterable[JobRecord]:
        """Return the jobs with unwritten changes, each once."""
        changed = {id: job for id, (job, _) in self._changed.items()}
        return (self._new | changed).values()  # a new one may have changed before it was inserted

    def is_unwritten(self, coalesce: str) -> bool:
        """Whether an unwritten job has a key to coalesce by, or may have given it up."""
        return any(job.coalesce == coalesce for job in self._new.values()) or any(
            job.coalesce == coalesce or bits & BITS["coalesce"]
            for job, bits in self._changed.values()
        )

    @abstractmethod
    def _insert(self, jobs: Iterable[JobRecord]) -> None:
        """Write new jobs."""

    @abstractmethod
    def _update(self, bits: int, jobs: Sequence[JobRecord]) -> None:
        """Write some columns of jobs; one of the columns is ``id``."""

    # ---- reading

    def get(self, id: int) -> JobRecord | None:
        """Return the job with an id."""
        job = self._known.get(id)
        if job is not None or not -_BIGGEST <= id <= _BIGGEST:
            return job
        return self._one("id = :id", {"id": id})

    def known(self, id: int) -> JobRecord | None:
        """Return the job with an id, if its record is in memory."""
        return self._known.get(id)

    def new_with(self, key: str) -> JobRecord | None:
        """Return the job with a key, if this transaction has accepted it."""
        return self._keys.get(key)

    def keyed(self, key: str) -> JobRecord | None:
        """Return the job with a key."""
        return self._keys.get(key) or self._one("key = :key", {"key": key})

    def _one(self, where: str, values: Values) -> JobRecord | None:
        row = self._execute(SELECT + where, values).fetchone()
        return None if row is None else self.record(row)

    def select(self, where: str, values: Values = ()) -> list[JobRecord]:
        """Return the jobs that fulfil a condition."""
        return list(self.records(self._execute(SELECT + where, values)))

    def records(self, rows: Iterable[Row]) -> Iterator[JobRecord]:
        """Yield the records of rows, which may be more than fit into memory."""
        return map(self.record, rows)

    def record(self, row: Row) -> JobRecord:
        """Return the record of a row, which has `COLUMNS`."""
        known = self._known.get(row[_ID])
        if known is not None:
            return known
        job = record_of(row)
        self._known.put(job.id, job)
        self.payloads += len(job.payload)
        return job
