"""The time of a store in a file, while others do something to the clocks."""

import time
from pathlib import Path
from typing import Any

import pytest
import trio

from trio_lanes.durable import SqliteStore, open_durable_lanes

HOUR = 3600.0


async def echo(payload: Any) -> Any:
    return payload


async def test_a_wall_clock_that_is_set_moves_no_delay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now = tmp_path / "jobs.db", time.time
    monkeypatch.setattr("trio_lanes.durable._sqlite.WORKER_LOOKS_EVERY", 0.02)
    async with open_durable_lanes(SqliteStore(path), {"echo": echo}) as lanes:
        for step in (HOUR, -HOUR):
            monkeypatch.setattr("time.time", lambda step=step: now() + step)
            async with open_durable_lanes(SqliteStore(path), {}, worker=False) as asking:
                begun = trio.current_time()
                job = await asking.submit("echo", step, delay=0.1)
                with trio.fail_after(20):
                    assert await lanes.job(job.id).wait() == step
                assert trio.current_time() - begun >= 0.1


@pytest.mark.parametrize("known", [True, False], ids=["restarted", "start not known"])
async def test_time_goes_on_when_the_machine_has_been_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    path, boot = tmp_path / "jobs.db", tmp_path / "boot"
    monkeypatch.setattr("trio_lanes.durable._machine_time.BOOT_ID", boot)
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
