"""`PostgresRows`: how the jobs of a transaction are written to PostgreSQL."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, final

from .._contract.state import DurableState
from .._rules.job_record import JobRecord
from .._sql.rows import COLUMNS, Execute, Row, Rows, columns_of, values_of
from .delta import Changes

_all_of: Final = values_of(COLUMNS)


def _new(job: JobRecord) -> dict[str, Any]:
    row = {
        name: value for name, value in zip(COLUMNS, _all_of(job), strict=True) if value is not None
    }
    if job.timeout == math.inf:  # as it is most often; JSON has no such number
        row["timeout"] = "Infinity"
    return row


@final
class PostgresRows(Rows):
    """The jobs in one connection's table.

    Args:
      put: writes rows, or notes them for the end of the transaction; see `batch.FUNCTIONS`.

    Attributes:
      changes: those of the transaction, for the other instances.
    """

    changes: Changes

    def __init__(self, execute: Execute, put: Callable[[str, list[Any]], None]) -> None:
        super().__init__(execute)
        self._put: Final = put

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
        self._put("new", list(map(_new, jobs)))

    def _update(self, bits: int, jobs: Sequence[JobRecord]) -> None:
        columns = columns_of(bits)
        values_of_job = values_of(columns)
        self._put("changed", [dict(zip(columns, values_of_job(job), strict=True)) for job in jobs])

    def put(self, row: Row) -> JobRecord:
        """Return the record of a row that another instance has written, or that was before."""
        job = self.known(row[0])
        if job is None:
            return self.record(row)
        for column, value in zip(COLUMNS, row, strict=True):
            setattr(job, column, value)
        job.state = DurableState(job.state)
        return job

    def undo(self) -> None:
        """Drop the unwritten changes; the caller puts the records back."""
        self._clear()
        self.end()
