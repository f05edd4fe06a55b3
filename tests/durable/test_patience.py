"""A disk or another process that stands still: no call of SQLite outlasts its patience."""

import sqlite3
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.durable.cancelled import cancel_calls, cancel_open
from trio_lanes.durable import (
    SqliteStore,
    StoreLockedError,
    StoreUnavailableError,
    SubmittedJob,
    open_durable_lanes,
)
from trio_lanes.durable._rules.engine import Engine
from trio_lanes.durable._sqlite.guest import host
from trio_lanes.durable._sqlite.tables import SqliteTables
from trio_lanes.durable.acts.jobs import Enqueue

pytestmark = pytest.mark.real_processes
PATIENCE = 0.3
LONG = 60
"""Seconds for what a slow machine does within its patience, and more."""


async def echo(payload: Any) -> Any:
    return payload


class Disk:
    """A disk that can stand still in the next commit: before it is on the disk, and after."""

    def __init__(self) -> None:
        self.stuck = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def stand_still(self) -> None:
        self.stuck.clear()
        self.goes_on.clear()

    async def wait_stuck(self) -> None:
        assert await trio.to_thread.run_sync(self.stuck.wait, LONG)

    def pass_by(self) -> None:
        """Stand still, if this is to. Runs in the writer's thread."""
        if not self.goes_on.is_set():
            self.stuck.set()
            assert self.goes_on.wait(LONG)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk, commit = Disk(), SqliteTables.commit

    def slow(tables: SqliteTables, now: float) -> None:
        disk.pass_by()
        commit(tables, now)

    monkeypatch.setattr(SqliteTables, "commit", slow)
    yield disk
    disk.goes_on.set()


async def refused(ask: Any, match: str) -> StoreUnavailableError:
    with trio.fail_after(LONG), pytest.raises(StoreUnavailableError, match=match) as caught:
        await ask()
    return caught.value


async def test_a_process_that_keeps_the_file_locked_delays_no_call_for_longer(
    tmp_path: Path,
) -> None:
    path, errors = tmp_path / "jobs.db", []
    async with open_durable_lanes(SqliteStore(path, patience=3), {}, worker=False) as lanes:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")

        async def submit() -> None:
            errors.append(await refused(lambda: lanes.submit("echo"), "locked|has not answered"))

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(submit)
        assert trio.current_time() - began < 40  # not 20 times the 2.4 s for one transaction
        assert not any(error.unknown for error in errors)
        other.close()
        assert (await lanes.statistics()).waiting == 0
        await lanes.submit("echo")


async def test_an_act_in_a_commit_that_stands_still_may_have_happened_and_its_ticket_decides(
    tmp_path: Path, disk: Disk
) -> None:
    store = SqliteStore(tmp_path / "jobs.db", patience=PATIENCE)
    batch = [SubmittedJob(name="echo")]
    async with open_durable_lanes(store, {}, worker=False) as lanes:
        disk.stand_still()
        error = await refused(lambda: store.do(Enqueue(batch), "ticket"), "within 0.3 s")
        assert error.unknown
        behind = await refused(lambda: store.do(Enqueue(batch), "another"), "within 0.3 s")
        assert not behind.unknown
        disk.goes_on.set()
        (id,) = await store.do(Enqueue(batch), "ticket")
        assert [job.id for job in await lanes.jobs()] == [id]


async def test_an_act_that_stands_still_before_its_commit_does_not_happen(
    tmp_path: Path, disk: Disk
) -> None:
    store = SqliteStore(tmp_path / "jobs.db", patience=PATIENCE)
    first = threading.Event()

    def slow(engine: Engine) -> tuple[int, ...]:
        if not first.is_set():
            first.set()
            disk.pass_by()
        return engine.enqueue([SubmittedJob(name="slow")])

    async with open_durable_lanes(store, {}, worker=False) as lanes:
        disk.stand_still()
        error = await refused(lambda: store._transact(slow), "within 0.3 s")
        assert not error.unknown
        disk.goes_on.set()
        with trio.fail_after(LONG):
            job = await lanes.submit("echo")
        assert [one.id for one in await lanes.jobs()] == [job.id]


async def test_a_worker_goes_on_when_the_disk_does(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []

    async def work(payload: Any) -> int:
        ran.append(payload)
        return int(payload)

    store = SqliteStore(tmp_path / "jobs.db", patience=PATIENCE)
    async with open_durable_lanes(store, {"work": work}) as lanes:
        first = await lanes.submit("work", 1)
        assert await first.wait() == 1
        disk.stand_still()
        await refused(lambda: lanes.submit("work", 2, key="2"), "within 0.3 s")
        disk.goes_on.set()
        with trio.fail_after(LONG):
            while True:
                try:
                    job = await lanes.submit("work", 2, key="2")
                    assert await job.wait() == 2
                    break
                except StoreUnavailableError:  # a slow machine
                    await trio.sleep(0.01)
        assert (await lanes.check()).problems == ()
    assert ran == [1, 2]


async def test_a_worker_on_a_served_file_is_refused_in_time_too(tmp_path: Path, disk: Disk) -> None:
    async with host(SqliteStore(tmp_path / "jobs.db", patience=PATIENCE)) as owner:
        guest = owner.guest()
        assert guest.patience == PATIENCE
        async with open_durable_lanes(guest, {"echo": echo}) as lanes:
            assert await (await lanes.submit("echo", 1)).wait() == 1
            disk.stand_still()
            await refused(guest.beat, "within 0.3 s")
            await refused(guest.beat, "within 0.3 s")
            disk.goes_on.set()
            with trio.fail_after(LONG):
                while True:
                    try:
                        assert await guest.beat()
                        break
                    except StoreUnavailableError:  # a slow machine
                        await trio.sleep(0.01)


def test_a_store_whose_disk_stands_still_can_be_closed_and_keeps_its_lock(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobs.db"
    may_have_happened: list[bool] = []  # not so if the thread was slow to begin it

    async def leave() -> None:
        async with host(SqliteStore(path, patience=PATIENCE)) as owner:
            disk.stand_still()
            batch = [SubmittedJob(name="echo")]
            error = await refused(lambda: owner.store.do(Enqueue(batch), "ticket"), "within 0.3 s")
            may_have_happened.append(error.unknown)

    async def look() -> int:
        async with open_durable_lanes(SqliteStore(path), {"echo": echo}, worker=False) as lanes:
            return (await lanes.statistics()).waiting

    trio.run(used, path)
    trio.run(leave)  # its thread still stands in the commit
    assert "stays locked by this process" in caplog.text
    with pytest.raises(StoreLockedError):
        trio.run(leave)
    (thread,) = (one for one in threading.enumerate() if one.name == f"writer of {path}")
    disk.goes_on.set()
    thread.join(LONG)
    assert [trio.run(look)] == may_have_happened  # it was accepted after all
    trio.run(used, path)


async def used(path: Path) -> None:
    async with open_durable_lanes(SqliteStore(path), {"echo": echo}) as lanes:
        assert await (await lanes.submit("echo", 7)).wait() == 7


def test_a_patience_is_a_positive_number_of_seconds(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="patience"):
        SqliteStore(tmp_path / "jobs.db", patience=0)


async def test_calls_that_are_cancelled_are_done_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    await cancel_calls(SqliteStore(tmp_path / "jobs.db"))


@pytest.mark.parametrize("worker", [True, False])
def test_opening_that_is_cancelled_at_any_step_ends(tmp_path: Path, worker: bool) -> None:
    cancel_open(lambda: SqliteStore(tmp_path / "jobs.db"), worker=worker)
    cancel_open(lambda: SqliteStore(tmp_path / "jobs.db"), worker=worker)  # the file is there


async def test_a_question_that_reads_every_job_is_cancelled_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, stands = threading.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    def stand_still(queues: Any) -> None:
        token.run_sync_soon(stands.set)
        assert goes_on.wait(LONG)

    async with open_durable_lanes(SqliteStore(tmp_path / "jobs.db"), {"echo": echo}) as lanes:
        store: Any = lanes._store
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(store._read, stand_still, long=True))
            await stands.wait()
            nursery.cancel_scope.cancel()
        with trio.CancelScope() as waits:  # for the end of that one
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lanes.statistics)
                await wait_all_tasks_blocked()
                waits.cancel()
        goes_on.set()
        assert (await lanes.statistics()).waiting == 0
