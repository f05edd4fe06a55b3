"""The time of a store in a file, while others do something to the clocks."""

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_lanes.durable import (
    DurableJob,
    DurableLanes,
    DurableState,
    SqliteStore,
    open_durable_lanes,
)

HOUR = 3600.0


async def echo(payload: Any) -> Any:
    return payload


async def settle(lanes: DurableLanes) -> None:
    """Let everything happen that can happen now, in the thread of the store as well."""
    for _ in range(6):
        await wait_all_tasks_blocked()
        await lanes.pause_for("session:unused", 0)  # comes back after what was handed over
    await wait_all_tasks_blocked()


async def test_a_wall_clock_that_is_set_moves_no_delay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    path, now = tmp_path / "jobs.db", time.time
    monkeypatch.setattr("time.monotonic", mock_clock.current_time)  # the machine's own clock
    async with open_durable_lanes(SqliteStore(path), {"echo": echo}) as lanes:
        for step in (HOUR, -HOUR):
            monkeypatch.setattr("time.time", lambda step=step: now() + step)
            async with open_durable_lanes(SqliteStore(path), {}, worker=False) as asking:
                job = await asking.submit("echo", step, delay=10)
                mock_clock.jump(9.9)  # the worker has seen it
                await settle(lanes)
                assert (await asking.job(job.id).status()).state is DurableState.PARKED
                mock_clock.jump(0.2)
                await settle(lanes)
                assert (await asking.job(job.id).status()).state is DurableState.SUCCEEDED


@pytest.mark.parametrize("known", [True, False], ids=["restarted", "start not known"])
async def test_time_goes_on_when_the_machine_has_been_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    path, boot = tmp_path / "jobs.db", tmp_path / "boot"
    monkeypatch.setattr("trio_lanes.durable._sqlite.machine_time.BOOT_ID", boot)
    if known:
        boot.write_text("first\n")
    async with open_durable_lanes(SqliteStore(path), {"echo": echo}) as lanes:
        job = await lanes.submit("echo", 1, delay=HOUR)
        until = (await job.status()).until
        assert until is not None
        assert abs(until - time.time() - HOUR) < 60
    if known:
        boot.write_text("second\n")
    machine, wall = time.monotonic, time.time
    monkeypatch.setattr("time.monotonic", lambda: machine() - 5 * HOUR)
    monkeypatch.setattr("time.time", lambda: wall() + HOUR)
    async with open_durable_lanes(SqliteStore(path), {"echo": echo}) as lanes:
        assert await lanes.job(job.id).wait() == 1  # it was due while the machine was down
        late = await lanes.submit("echo", 2, delay=HOUR)
        was = (await late.status()).until
        assert was is not None
    if known:
        boot.write_text("third\n")
    monkeypatch.setattr("time.time", lambda: wall() - HOUR)
    async with open_durable_lanes(SqliteStore(path), {}, worker=False) as lanes:
        later = await lanes.submit("echo", 3, delay=HOUR)
        until = (await later.status()).until
        assert until is not None
        assert until >= was - 2  # it is never set back, but by what is not written yet


async def test_what_others_write_is_seen_within_a_second(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    path, results = tmp_path / "jobs.db", []
    async with open_durable_lanes(SqliteStore(path), {"echo": echo}) as lanes:
        async with open_durable_lanes(SqliteStore(path), {}, worker=False) as asking:
            for n in range(3):
                job = await asking.submit("echo", n)

                async def wait(job: DurableJob = job) -> None:
                    results.append(await job.wait())

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait)
                    await settle(asking)
                    mock_clock.jump(1.0)
                    for _ in range(6):
                        await wait_all_tasks_blocked()
                        await lanes.rules()  # comes back after what was handed over
                    assert (await lanes.job(job.id).status()).state is DurableState.SUCCEEDED
                    mock_clock.jump(0.25)
                    await settle(asking)
                    assert results == list(range(n + 1))


async def test_numbers_of_a_lost_log_do_not_come_again_where_the_clock_has_gone_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    path, boot, on_the_disk = tmp_path / "jobs.db", tmp_path / "boot", tmp_path / "copy.db"
    monkeypatch.setattr("trio_lanes.durable._sqlite.machine_time.BOOT_ID", boot)
    boot.write_text("first\n")
    async with open_durable_lanes(SqliteStore(path), {"echo": echo}) as lanes:
        connection = sqlite3.connect(path)
        connection.execute("VACUUM INTO ?", (str(on_the_disk),))
        connection.close()
        lost = []
        for _ in range(5):
            lost.append((await lanes.submit("echo")).id)
            mock_clock.jump(60.0)  # a log that is not synced may hold the jobs of minutes
    on_the_disk.rename(path)
    boot.write_text("second\n")
    monkeypatch.setattr("time.time", lambda: 1000.0)  # a machine that has no clock of its own
    async with open_durable_lanes(SqliteStore(path), {"echo": echo}) as lanes:
        assert (await lanes.submit("echo")).id > lost[-1]


async def test_run_at_follows_the_wall_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    path = tmp_path / "jobs.db"
    begin = time.time()
    set_by = 0.0

    def wall() -> float:
        return begin + mock_clock.current_time() + set_by

    async def state(id: int) -> DurableState:
        mock_clock.jump(1.1)  # the worker looks at its clock once a second
        await settle(lanes)
        return (await lanes.job(id).status()).state

    monkeypatch.setattr("time.monotonic", mock_clock.current_time)
    monkeypatch.setattr("time.time", wall)
    async with open_durable_lanes(SqliteStore(path), {"echo": echo}) as lanes:
        planned = [await lanes.submit("echo", run_at=wall() + hours * HOUR) for hours in (1, 3, 5)]
        delayed = await lanes.submit("echo", delay=1.5 * HOUR)
        one, three, five = (job.id for job in planned)
        set_by = HOUR  # or the machine has slept for an hour
        assert await state(one) is DurableState.SUCCEEDED
        assert await state(delayed.id) is await state(three) is DurableState.PARKED
        set_by = -HOUR
        await state(three)
        mock_clock.jump(1.5 * HOUR)
        assert await state(delayed.id) is DurableState.SUCCEEDED
        mock_clock.jump(2 * HOUR)  # three hours and a half, of which one was set back
        assert await state(three) is DurableState.PARKED
        mock_clock.jump(0.5 * HOUR)
        assert await state(three) is DurableState.SUCCEEDED
    set_by = HOUR  # while no worker has the file open
    async with open_durable_lanes(SqliteStore(path), {"echo": echo}) as lanes:
        assert await state(five) is DurableState.SUCCEEDED
