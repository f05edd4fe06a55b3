"""`PostgresRows`: how the jobs of a transaction are written to PostgreSQL.

All changes of the same columns are one statement, which gets a column of values as one array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final, final

from .._contract.state import DurableState
from .._rules.job_record import JobRecord
from .._sql.rows import COLUMNS, Row, Rows, columns_of, values_of
from .._sql.schema import JOB_TYPES
from .delta import Changes


def _rows_of(columns: Iterable[str]) -> str:
    return f"unnest({', '.join(f'%s::{JOB_TYPES[column]}[]' for column in columns)})"


_INSERT: Final = f"INSERT INTO main.jobs ({', '.join(COLUMNS)}) SELECT * FROM {_rows_of(COLUMNS)}"
_all_of: Final = values_of(COLUMNS)


@cache
def _update(bits: int) -> tuple[str, Callable[[JobRecord], tuple[Any, ...]]]:
    columns = columns_of(bits)
    changes = ", ".join(f"{column} = v.{column}" for column in columns if column != "id")
    statement = (
        f"UPDATE main.jobs SET {changes} FROM {_rows_of(columns)} AS v({', '.join(columns)})"
        " WHERE jobs.id = v.id"
    )
    return statement, values_of(columns)


def by_column(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """Return the columns of rows."""
    return [list(column) for column in zip(*rows, strict=True)]


@final
class PostgresRows(Rows):
    """The jobs in one connection's table.

    Attributes:
      changes: those of the transaction, for the other instances.
    """

    changes: Changes

    def insert(self, job: JobRecord) -> None:
        super().insert(job)
        self.changes.jobs[job.id] = job

    def change(self, job: JobRecord, columns: Iterable[str]) -> None:
        super().change(job, columns)
        self.changes.jobs[job.id] = job
        if job.crashed_with or "crashed_with" in columns:
            self.changes.suspects = True

    def delete(self, job: JobRecord) -> None:
        super().delete(job)
        self.changes.jobs.pop(job.id, None)
        self.changes.deleted[job.id] = job.lane

    def _insert(self, jobs: Iterable[JobRecord]) -> None:
        self._execute(_INSERT, by_column(map(_all_of, jobs)))

    def _update(self, bits: int, jobs: Sequence[JobRecord]) -> None:
        statement, values_of = _update(bits)
        self._execute(statement, by_column(map(values_of, jobs)))

    def put(self, row: Row) -> JobRecord:
        """Return the record of a row that another instance has written."""
        job = self.known(row[0])
        if job is None:
            return self.record(row)
        for column, value in zip(COLUMNS, row, strict=True):
            setattr(job, column, value)
        job.state = DurableState(job.state)
        return job
