"""Very many waiting jobs: what they may cost, and that they are taken in portions.

The sizes are small, so that the suite is quick. ``TRIO_LANES_LONG_TESTS=1`` makes them what the
promises are about: a million jobs.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import trio

from trio_lanes.durable import (
    DurableState,
    JobDeadError,
    MemoryStore,
    RetryPolicy,
    Selection,
    SqliteStore,
    Store,
    Submission,
    open_durable_lanes,
)
from trio_lanes.durable._sqlite import schema
from trio_lanes.durable._sqlite.tables import SqliteTables

pytestmark = pytest.mark.real_processes

MANY = 1_000_000 if os.environ.get("TRIO_LANES_LONG_TESTS") else 10_000
LETTERS = frozenset({DurableState.DEAD, DurableState.FAILED})
SMALL = 1_000 if MANY == 1_000_000 else 100
CLOCK = "perf_counter" if MANY == 1_000_000 else "process_time"
"""What seconds are measured with; a machine that is busy must not fail the suite."""

PROGRAM = """
import json, pathlib, re, sys, time
import trio
from trio_lanes.durable import SqliteStore, open_durable_lanes

clock = getattr(time, sys.argv[3])
began = clock()

async def main(path, many):
    ran = []
    enough = trio.Event()

    async def echo(payload):
        if not ran:
            print(json.dumps({"first": clock() - began}), flush=True)
        ran.append([payload[0], len(payload[1])])
        if len(ran) == many:
            enough.set()

    async with open_durable_lanes(SqliteStore(path, synchronous="NORMAL"), {"echo": echo}) as lanes:
        await enough.wait()
        # what the system says of its use of memory counts the process that made this one, too
        status = pathlib.Path("/proc/self/status").read_text()
        peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", status).group(1)) * 1024
        print(json.dumps({"ran": ran[:many], "peak": peak}), flush=True)
        await trio.sleep_forever()

trio.run(main, sys.argv[1], int(sys.argv[2]))
"""


def fill(path: Path, submissions: Iterable[list[Submission]]) -> None:
    async def main() -> None:
        store = SqliteStore(path, synchronous="NORMAL", patience=120)  # for large batches
        async with open_durable_lanes(store, {}, worker=False) as lanes:
            for batch in submissions:
                await lanes.submit_many(batch)

    trio.run(main)


def batches(n: int, session: Callable[[int], str | None]) -> Iterator[list[Submission]]:
    text = "x" * 100
    for first in range(0, n, 10_000):
        yield [
            Submission(name="echo", payload=[number, text], session=session(number))
            for number in range(first, min(first + 10_000, n))
        ]


def work(path: Path, many: int) -> dict[str, Any]:
    """What a worker says of itself that is killed when it has begun so many."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path), str(many), CLOCK],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        said: dict[str, Any] = json.loads(process.stdout.readline())
        said |= json.loads(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    return said


def test_a_session_with_very_many_jobs_delays_no_other_and_a_restart_goes_on_at_once(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jobs.db"
    small = [
        Submission(name="echo", payload=[-n, ""], session=f"s{n}") for n in range(1, SMALL + 1)
    ]
    fill(path, chain(batches(MANY, lambda number: "big"), [small]))
    said = work(path, 2 * SMALL)
    numbers = [number for number, _ in said["ran"]]
    assert sum(number < 0 for number in numbers) >= SMALL - 4  # it takes its turn among them
    assert said["first"] < 2
    assert said["peak"] < 300e6
    again = work(path, 1)
    assert again["first"] < 1


@pytest.mark.parametrize("session", [str, lambda number: None], ids=["sessions", "no sessions"])
def test_opening_reads_none_of_very_many_waiting_jobs(
    tmp_path: Path, session: Callable[[int], str | None]
) -> None:
    path = tmp_path / "jobs.db"
    fill(path, batches(MANY, session))
    said = work(path, 100)
    assert said["first"] < 2
    assert said["peak"] < 300e6


def test_large_payloads_that_wait_are_not_in_memory(tmp_path: Path) -> None:
    path, large = tmp_path / "jobs.db", "x" * 200_000
    submissions = (
        [Submission(name="echo", payload=[n, large], session=f"s{n % 50}")] * 4 for n in range(150)
    )
    fill(path, submissions)
    assert work(path, 100)["peak"] < 115e6  # and not the 120 MB that there are, besides


async def echo(payload: Any) -> Any:
    return payload


def stores(tmp_path: Path) -> list[Store]:
    return [MemoryStore(), SqliteStore(tmp_path / "jobs.db", synchronous="NORMAL")]


@pytest.mark.parametrize("which", [0, 1], ids=["memory", "sqlite"])
@pytest.mark.parametrize("name", ["main", "session:s"])
async def test_very_many_jobs_are_cleared_in_portions_and_later_jobs_are_left(
    tmp_path: Path, which: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.durable._rules.engine_store.JOBS_A_STEP", 10)
    store = stores(tmp_path)[which]
    cleared = []

    async def clear() -> None:
        cleared.append(await lanes.clear(name))

    async with open_durable_lanes(store, {"echo": echo}, {"main": 1}) as lanes:
        await lanes.pause("main")
        one = Submission(name="echo", session="s")
        jobs = await lanes.submit_many([one] * 101)
        delayed = await lanes.submit("echo", session="s", delay=100)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clear)
            while (await jobs[-1].status()).state is DurableState.WAITING:
                pass
            later = await lanes.submit("echo", "later", session="s")
        assert cleared == [102]
        for job in (jobs[0], jobs[-1], delayed):
            assert (await job.status()).state is DurableState.CANCELLED
        assert (await lanes.statistics()).waiting == 1
        await lanes.resume("main")
        assert await later.wait() == "later"
        assert (await lanes.check()).problems == ()


@pytest.mark.parametrize("which", [0, 1], ids=["memory", "sqlite"])
async def test_jobs_whose_handler_no_instance_has_wait_and_keep_no_other_job_off(
    tmp_path: Path, which: int
) -> None:
    store = stores(tmp_path)[which]
    async with open_durable_lanes(store, {"echo": echo, "new": echo}, {"main": 4}) as lanes:
        await lanes.pause("main")
        jobs = await lanes.submit_many([Submission(name="new", payload=n) for n in range(35)])
        last = await lanes.submit("echo", "last")
    async with open_durable_lanes(store, {"echo": echo}) as lanes:
        await lanes.resume("main")
        assert await lanes.job(last.id).wait() == "last"
        assert (await lanes.statistics()).unhandled == 35
    async with open_durable_lanes(store, {"echo": echo, "new": echo}) as lanes:
        assert [await lanes.job(job.id).wait() for job in jobs] == list(range(35))
        assert (await lanes.statistics()).unhandled == 0


@pytest.mark.parametrize("which", [0, 1], ids=["memory", "sqlite"])
async def test_very_many_dead_jobs_are_purged_in_portions(
    tmp_path: Path, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.durable._rules.engine_store.JOBS_A_STEP", 10)

    async def bad(payload: Any) -> None:
        raise ValueError("no")

    store = stores(tmp_path)[which]
    once = RetryPolicy(max_attempts=1)
    async with open_durable_lanes(store, {"bad": bad}, {"main": 100}, retry=once) as lanes:
        jobs = await lanes.submit_many([Submission(name="bad", payload=n) for n in range(25)])
        for job in jobs:
            with pytest.raises(JobDeadError):
                await job.wait()
        assert await lanes.purge(jobs[0].id) == 1
        assert await lanes.purge() == 24
        assert await lanes.purge() == 0
        assert await lanes.dead() == []


@pytest.mark.parametrize(
    ("of", "index"),
    [
        (Selection(name="send"), "jobs_name (name=?"),
        (Selection(name="send", states=LETTERS), "jobs_letters (id>?"),
        (Selection(states=LETTERS), "jobs_letters (id>?"),
        (Selection(states=LETTERS, name="send", error="KeyError"), "jobs_error (error=?"),
        (Selection(states=frozenset({DurableState.RUNNING})), "jobs_running (id>?"),
        (Selection(since=1.0, until=2.0), "PRIMARY KEY (rowid>? AND rowid<?)"),
    ],
    ids=["handler", "dead of a handler", "dead", "error", "running", "time"],
)
def test_a_listing_in_sqlite_goes_by_an_index_and_sorts_nothing(of: Selection, index: str) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    with closing(connection):
        schema.fill(connection)
        asked: list[str] = []
        connection.set_trace_callback(asked.append)
        assert SqliteTables(connection, "of a test").select(of, 0, 10, 0.0) == []
        connection.set_trace_callback(None)
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {asked[-1]}")]
    assert len(plan) == 1
    assert index in plan[0]
