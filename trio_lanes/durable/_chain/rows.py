"""The rows of jobs, as text: JSON of all columns.

A text of a job that is long (its payload, its checkpoint) has a row of its own, which is written
when it changes, and not with each change of the job. ``true`` stands for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from .._contract.state import DurableState
from .._rules.job_record import JobRecord
from .._sql.rows import COLUMNS, Row, values_of

LONG_TEXT: Final = 4_000
"""From how many characters on a text has a row of its own."""

_TEXT_COLUMNS: Final = ("payload", "checkpoint", "headers", "outcome", "cancel")
_PLACES: Final = {column: COLUMNS.index(column) for column in _TEXT_COLUMNS}
_LONG_PLACES: Final = frozenset(_PLACES.values())
_encode: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, separators=(",", ":")
).encode
KEY_PLACE: Final = COLUMNS.index("key")
values: Final = values_of(COLUMNS)
"""Return the columns of a record."""


def key_of(id: int, column: str) -> str:
    """Return the key of the row of a long text."""
    return f"{id} {column}"


def aside_of(row: Row) -> dict[str, str]:
    """Return the long texts of a row, by the keys of their own rows."""
    found = {}
    for column, place in _PLACES.items():
        text = row[place]
        if text is not None and len(text) > LONG_TEXT:
            found[key_of(row[0], column)] = text
    return found


def text_of(job: JobRecord) -> tuple[str, dict[str, str]]:
    """Return the text of a job's row, and its long texts."""
    row: Row = values(job)
    text = _encode(row)
    if len(text) <= LONG_TEXT:  # so no text in it is long
        return text, {}
    aside = aside_of(row)
    if aside:
        short = [
            True
            if place in _LONG_PLACES and value is not None and len(value) > LONG_TEXT
            else value
            for place, value in enumerate(row)
        ]
        text = _encode(short)
    return text, aside


def row_of(text: str) -> list[Any]:
    """Return the columns of a row; ``True`` stands for each long text."""
    row: list[Any] = json.loads(text)
    row += _DEFAULT_ROW[len(row) :]  # it is of a version that had fewer columns
    return row[: len(COLUMNS)]


def long_in(row: Sequence[Any]) -> list[tuple[int, str]]:
    """Return (place, column) of the long texts of a row."""
    return [(place, column) for column, place in _PLACES.items() if row[place] is True]


def record_of(row: Iterable[Any]) -> JobRecord:
    """Return the record of a row."""
    job = JobRecord(*row)
    job.state = DurableState(job.state)
    return job


def put_back(job: JobRecord, row: Iterable[Any]) -> None:
    """Let a record be what a row says."""
    for column, value in zip(COLUMNS, row, strict=True):
        setattr(job, column, value)
    job.state = DurableState(job.state)


_DEFAULT_ROW: Final[list[Any]] = [
    *[None] * 9,
    *values(JobRecord(0, "", "", None, 0, "", 0.0, DurableState.WAITING, 0.0))[9:],
]
