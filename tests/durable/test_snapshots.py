"""It is a problem that a reader keeps the log of a SQLite file from being emptied."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.programs import PATIENCE
from trio_lanes.durable import SqliteStore, open_durable_lanes
from trio_lanes.durable._lanes import verdicts
from trio_lanes.durable._sqlite.tables import SqliteTables
from trio_lanes.durable.acts.inspection import HeldSnapshots

MOST = 4_000_000


async def waits(payload: Any) -> None:
    raise AssertionError("it never begins")


async def test_a_reader_that_keeps_the_log_is_a_problem_until_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "LOG_KEPT", MOST)
    path = tmp_path / "jobs.db"
    async with open_durable_lanes(SqliteStore(path, patience=PATIENCE), {"waits": waits}) as lanes:
        await lanes.pause("main")

        async def writes() -> None:
            for _ in range(6):
                await lanes.submit("waits", "x" * 900_000)

        await writes()
        assert await lanes.health() == ()  # the file is as long as before, and all is in its place
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM jobs").fetchone()
            await writes()
            (problem,) = await lanes.health()
            assert (problem.kind, problem.lane) == ("snapshot", "")
            assert problem.text.startswith("a reader keeps ")
            assert problem.text.endswith(f" MB in the log of {path}")
        await lanes.submit("waits")
        await lanes.submit("waits")
        assert await lanes.health() == ()


def test_a_file_without_a_log_keeps_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with closing(sqlite3.connect(path)) as connection:
        assert SqliteTables(connection, str(path)).held_snapshots() == []


IN_USE = """
import fcntl, sys
with open(sys.argv[1], "r+b") as index:
    try:
        # the byte that each connection locks
        fcntl.lockf(index, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 128)
    except BlockingIOError:
        print("in use")
"""


@pytest.mark.real_processes
async def test_a_look_at_the_log_leaves_to_sqlite_the_locks_of_this_process(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with open_durable_lanes(SqliteStore(path, patience=PATIENCE), {"waits": waits}) as lanes:
        for _ in range(2):
            command = [sys.executable, "-c", IN_USE, f"{path}-shm"]
            assert (await trio.run_process(command, capture_stdout=True)).stdout == b"in use\n"
            assert await lanes.health() == ()


async def test_a_small_log_is_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with open_durable_lanes(SqliteStore(path, patience=PATIENCE), {"waits": waits}) as lanes:
        await lanes.pause("main")
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM jobs").fetchone()
            await lanes.submit("waits")
            (held,) = await lanes._store.look(HeldSnapshots())
            assert (held.kind, held.age) == ("log", None)
            assert 0 < held.size < 1_000_000
            assert await lanes.health() == ()
