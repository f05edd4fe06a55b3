"""`Rows`: the table of jobs in PostgreSQL, with writes that wait for the end of the transaction.

* There is at most one record of a job in memory, whichever query found it.
* A change is made in the record, and written at the end of the transaction. All changes of the same
  columns are one statement, which gets a column of values as one array.
* A caller calls `Rows.flush` before a query whose answer unwritten changes could affect.
* In a statement, ``@`` stands for the schema and a dot: see `PostgresTables`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias, final

import attrs
import psycopg

from .._contract.state import DurableState
from .._rules.job_record import JobRecord
from .._tables.weak_values import WeakValues

COLUMNS: Final = tuple(field.name for field in attrs.fields(JobRecord))
SELECTED: Final = ", ".join(f"j.{column}" for column in COLUMNS)
Values: TypeAlias = Sequence[Any] | Mapping[str, Any]
Execute: TypeAlias = Callable[..., psycopg.Cursor[Any]]
_NUMBERS: Final = {"id", "place", "ready", "fence", "emitted", "sent"}
_TIMES: Final = {"timeout", "run_at", "due", "submitted_at"}
_SMALL: Final = {"priority", "shelf", "attempts", "crashes", "alone", "company", "lent"}
_STATES: Final = {state.value: state for state in DurableState}
_STATE: Final = COLUMNS.index("state")
_ID: Final = COLUMNS.index("id")
_BITS: Final = {column: 1 << number for number, column in enumerate(COLUMNS)}
_BIGGEST: Final = 2**63 - 1


def _type_of(column: str) -> str:
    if column in _NUMBERS:
        return "bigint"
    if column in _TIMES:
        return "float8"
    return "int" if column in _SMALL else "text"


def _arrays(columns: Iterable[str]) -> str:
    return ", ".join(f"%s::{_type_of(column)}[]" for column in columns)


def _values_of(columns: Iterable[str]) -> Callable[[JobRecord], Any]:
    """Return a function from a record to the values of some columns."""
    return attrgetter(*("state._value_" if column == "state" else column for column in columns))


_INSERT: Final = (
    f"INSERT INTO @jobs ({', '.join(COLUMNS)}) SELECT * FROM unnest({_arrays(COLUMNS)})"
)
_ROW_OF: Final = _values_of(COLUMNS)


@final
class Rows:
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
        self._changed: Final[dict[int, tuple[JobRecord, int]]] = {}  # {id: (job, bits of columns)}
        self._updates: Final[dict[int, tuple[str, Callable[[JobRecord], Any]]]] = {}
        self.touched: Final[set[str | None]] = set()
        self.writes = self.payloads = 0

    def forget(self) -> None:
        """Drop all records and unwritten changes: the table has changed, or a rollback came."""
        self._known.clear()
        self._keys.clear()
        self._clear()

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
            _, bits = self._changed.get(job.id, (job, 0))
            for column in columns:
                bits |= _BITS[column]
            self._changed[job.id] = job, bits
            self.touched.add(job.session)

    def delete(self, job: JobRecord) -> None:
        """Delete a job."""
        self.flush()
        self.writes += 1
        self._execute("DELETE FROM @jobs WHERE id = %s", (job.id,))
        self._known.drop(job.id)

    def flush(self) -> None:
        """Write all unwritten changes."""
        if self._new:
            self._execute(_INSERT, _columns(map(_ROW_OF, self._new.values())))
        by_columns: dict[int, list[JobRecord]] = {}
        for job, bits in self._changed.values():
            by_columns.setdefault(bits, []).append(job)
        for bits, jobs in by_columns.items():
            statement, values_of = self._update(bits)
            self._execute(statement, _columns(map(values_of, jobs)))
        self._clear()

    def _update(self, bits: int) -> tuple[str, Callable[[JobRecord], Any]]:
        update = self._updates.get(bits)
        if update is None:
            columns = [column for column, bit in _BITS.items() if bits & bit]
            assignments = ", ".join(f"{column} = v.{column}" for column in columns)
            names = [*columns, "id"]
            statement = (
                f"UPDATE @jobs SET {assignments} FROM unnest({_arrays(names)})"
                f" AS v({', '.join(names)}) WHERE jobs.id = v.id"
            )
            update = self._updates[bits] = statement, _values_of(names)
        return update

    # ---- reading

    def get(self, id: int) -> JobRecord | None:
        """Return the job with an id."""
        job = self._known.get(id)
        if job is not None or not -_BIGGEST <= id <= _BIGGEST:
            return job
        return self.one("j.id = %s", (id,))

    def known(self, id: int) -> JobRecord | None:
        """Return the job with an id, if its record is in memory."""
        return self._known.get(id)

    def new_with(self, key: str) -> JobRecord | None:
        """Return the job with a key, if this transaction has accepted it."""
        return self._keys.get(key)

    def one(self, where: str, values: Values) -> JobRecord | None:
        """Return the first job that fulfils a condition."""
        row = self._execute(f"SELECT {SELECTED} FROM @jobs j WHERE {where}", values).fetchone()
        return None if row is None else self.record(row)

    def select(self, where: str, values: Values = ()) -> list[JobRecord]:
        """Return the jobs that fulfil a condition."""
        return list(
            self.records(self._execute(f"SELECT {SELECTED} FROM @jobs j WHERE {where}", values))
        )

    def records(self, rows: Iterable[Sequence[Any]]) -> Iterator[JobRecord]:
        """Yield the records of rows."""
        return map(self.record, rows)

    def record(self, row: Sequence[Any]) -> JobRecord:
        """Return the record of a row, which has `COLUMNS` and may have more."""
        known = self._known.get(row[_ID])
        if known is not None:
            return known
        job = JobRecord(*row[: len(COLUMNS)])
        job.state = _STATES[row[_STATE]]
        self._known.put(job.id, job)
        self.payloads += len(job.payload)
        return job


def _columns(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]
