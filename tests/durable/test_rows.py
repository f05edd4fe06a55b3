"""The rows of jobs in SQLite: what is written at the end of a transaction, and how."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import attrs
import pytest

from trio_lanes.durable import DurableState
from trio_lanes.durable._rules.job_record import JobRecord
from trio_lanes.durable._sqlite import schema
from trio_lanes.durable._sqlite.rows import SqliteRows

PLAIN: dict[str, Any] = {
    "name": "echo",
    "lane": "main",
    "session": None,
    "priority": 0,
    "payload": "1",
    "timeout": 5.0,
    "state": DurableState.WAITING,
    "submitted_at": 0.0,
}
COLUMNS = attrs.fields_dict(JobRecord)
MANY = 43
"""So many jobs are written by statements of every size."""


def other_value(column: str, number: int) -> Any:
    """A value that no record has at first; of a key, another for each job."""
    if column == "state":
        return DurableState.DEAD
    kind = str(COLUMNS[column].type)
    if "float" in kind:
        return number + 0.5
    return number + 7 if "int" in kind else f"{column} {number}"


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        schema.fill(connection)
        yield connection


@pytest.mark.parametrize("column", [*list(COLUMNS)[1:], None])
def test_a_job_is_read_as_it_was_inserted_and_changed(
    connection: sqlite3.Connection, column: str | None
) -> None:
    def changes(number: int) -> dict[str, Any]:
        return {} if column is None else {column: other_value(column, number)}

    rows = SqliteRows(connection.execute)
    jobs = [JobRecord(**{"id": id, **PLAIN}) for id in range(1, MANY + 1)]
    for job in jobs[::2]:
        for name, value in changes(job.id).items():
            setattr(job, name, value)
    for job in jobs:
        rows.insert(job)
    for job in jobs[: MANY // 2 : 2]:  # in the same transaction
        for name in changes(job.id):
            setattr(job, name, PLAIN.get(name, COLUMNS[name].default))
            rows.change(job, [name])
    rows.flush()
    assert SqliteRows(connection.execute).select("id ORDER BY id") == jobs

    for job in jobs:
        changed = {"history": "ran", **changes(MANY + job.id)}
        for name, value in changed.items():
            setattr(job, name, value)
        rows.change(job, changed)
    rows.flush()
    assert SqliteRows(connection.execute).select("id ORDER BY id") == jobs


def test_a_default_of_a_column_is_false_so_that_a_value_that_is_true_is_written() -> None:
    defaults = [field.default for field in COLUMNS.values()]
    assert not any(default for default in defaults if default is not attrs.NOTHING)


def test_a_change_of_many_jobs_finds_each_by_its_number(connection: sqlite3.Connection) -> None:
    rows = SqliteRows(connection.execute)
    jobs = [JobRecord(**{"id": id, **PLAIN}) for id in range(1, MANY + 1)]
    for job in jobs:
        rows.insert(job)
    rows.flush()
    asked: list[str] = []
    connection.set_trace_callback(asked.append)
    for job in jobs:
        job.attempts = job.id
        rows.change(job, ["attempts"])
    rows.flush()
    connection.set_trace_callback(None)
    assert len(asked) == 1 + 1 + 3  # of 32, 8 and 1 jobs
    for statement in asked:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
        assert [step for step in plan if "jobs" in step] == [
            "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)"
        ]


def test_a_job_that_has_changed_before_it_was_inserted_is_unwritten_once(
    connection: sqlite3.Connection,
) -> None:
    rows = SqliteRows(connection.execute)
    first, second = (JobRecord(**{"id": id, **PLAIN}) for id in (1, 2))
    rows.change(first, ["shelf"])
    rows.insert(first)
    rows.insert(second)
    assert sorted(job.id for job in rows.unwritten()) == [1, 2]
