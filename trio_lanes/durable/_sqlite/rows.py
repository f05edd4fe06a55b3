"""`SqliteRows`: how the jobs of a transaction are written to SQLite.

* Many changes of the same columns are one statement: each statement lets go of Python's interpreter
  lock, for which Trio's thread may be waiting.
* A new job is written with the columns that differ from their defaults: they are half of all, and
  each parameter costs time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain, compress
from typing import Any, Final, final

import attrs

from .._rules.job_record import JobRecord
from .._sql.rows import BITS, COLUMNS, Rows, columns_of, values_of

_DEFAULTS: Final = {
    field.name: "NULL" if field.default is None else repr(field.default)
    for field in attrs.fields(JobRecord)
    if field.default is not attrs.NOTHING
}
"""The columns that have a default, each with its literal in SQL. A default is false in Python."""
ROWS_PER_STATEMENT: Final = (32, 8, 1)
"""How many jobs a statement writes: few sizes, since each is a statement that SQLite prepares."""
_REQUIRED: Final = sum(bit for column, bit in BITS.items() if column not in _DEFAULTS)
_OPTIONAL: Final = tuple(BITS[column] for column in _DEFAULTS)
_optional_of: Final = values_of(_DEFAULTS)


@cache
def _values_of(bits: int) -> Callable[[JobRecord], tuple[Any, ...]]:
    return values_of(columns_of(bits))


@cache
def _insert(bits: int, jobs: int) -> str:
    row = ", ".join("?" if bits & bit else _DEFAULTS[column] for column, bit in BITS.items())
    return f"INSERT INTO jobs ({', '.join(COLUMNS)}) VALUES {', '.join([f'({row})'] * jobs)}"


@cache
def _update(bits: int, jobs: int) -> str:
    id, *columns = columns_of(bits)
    changes = ", ".join(f"{column} = new.column{n}" for n, column in enumerate(columns, 2))
    row = ", ".join("?" * (1 + len(columns)))
    return (
        f"UPDATE jobs SET {changes} FROM (VALUES {', '.join([f'({row})'] * jobs)}) AS new"
        f" WHERE {id} = new.column1"
    )


@final
class SqliteRows(Rows):
    """The jobs in one connection's table."""

    def _insert(self, jobs: Iterable[JobRecord]) -> None:
        by_columns: dict[int, list[JobRecord]] = {}
        for job in jobs:
            bits = _REQUIRED + sum(compress(_OPTIONAL, _optional_of(job)))
            by_columns.setdefault(bits, []).append(job)
        for bits, some in by_columns.items():
            self._write(bits, some, _insert)

    def _update(self, bits: int, jobs: Sequence[JobRecord]) -> None:
        self._write(bits, jobs, _update)

    def _write(
        self, bits: int, jobs: Sequence[JobRecord], statement: Callable[[int, int], str]
    ) -> None:
        rows = list(map(_values_of(bits), jobs))
        done = 0
        for size in ROWS_PER_STATEMENT:
            while len(rows) - done >= size:
                values = tuple(chain.from_iterable(rows[done : done + size]))
                self._execute(statement(bits, size), values)
                done += size
