"""The slider: what another limit would have done in the last minutes, by a replay."""

from __future__ import annotations

import json
import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.monitor.web import Answer, ask, looking, page
from trio_lanes import Lanes, current_job, open_lanes
from trio_lanes.monitor import _whatif, monitor
from trio_lanes.testing import LaneRecorder


async def work(lanes: Lanes) -> None:
    """Six jobs, one after the other."""

    async def lend(seconds: float) -> None:
        job = current_job()
        assert job is not None
        async with job.yield_slot():
            await trio.sleep(seconds)

    await lanes.run(lend, 0.01)
    for _ in range(5):
        lanes.submit_nowait(trio.sleep, 0.05)
    await lanes.wait_idle()


async def what_if(app: Any, lane: str = "main", limit: str = "3", status: int = 200) -> Any:
    answer: Answer = await ask(app, f"/replay?lane={lane}&limit={limit}")
    assert answer.status == status, answer.json
    return answer.json


@pytest.mark.real_processes
async def test_the_last_minutes_are_replayed_with_another_limit_in_another_process() -> None:
    with trio.fail_after(120):
        async with open_lanes({"main": 1}) as lanes:
            app = page(lanes)
            async with looking(app):
                await work(lanes)
                running = lanes.submit_nowait(trio.sleep_forever)
                told = await what_if(app, limit="5")
                running.cancel()
    assert told["jobs"] == 7
    assert told["recorded"]["longest"] > told["changed"]["longest"]
    assert told["replayed"]["longest"] == pytest.approx(told["recorded"]["longest"], abs=0.1)


@pytest.mark.real_processes
async def test_one_replay_runs_at_a_time() -> None:
    with trio.fail_after(120):
        async with open_lanes({"main": 1}) as lanes:
            app = page(lanes)
            async with looking(app), trio.open_nursery() as nursery:
                await work(lanes)
                nursery.start_soon(what_if, app)
                await wait_all_tasks_blocked()
                assert "another replay" in (await what_if(app, status=429))["error"]


async def test_what_cannot_be_replayed_says_why(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        app = page(lanes)
        for limit in ("", "x", "-1", "1.5", "1" * 7):
            assert "whole number" in (await what_if(app, limit=limit, status=400))["error"]
        await work(lanes)
        assert "too few jobs" in (await what_if(app, status=409))["error"]
        async with looking(app):
            await work(lanes)
            told = await what_if(app, lane="<b>", status=404)
            assert told["error"] == "<b> had no jobs in the last minutes"
            await trio.sleep(700)
            assert "too few jobs" in (await what_if(app, status=409))["error"]
            lanes.pause()
            for _ in range(2001):
                lanes.submit_nowait(trio.sleep, 0)
            assert "more than 2000 jobs wait" in (await what_if(app, status=409))["error"]
            lanes.clear()
        refuses = monitor(lanes, authorize=lambda connection: None)
        assert (await ask(refuses, "/replay?lane=main&limit=1")).status == 403


async def test_the_time_in_which_no_page_was_open_is_not_replayed(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = page(lanes)
        async with looking(app):
            await work(lanes)
        assert "too few jobs" in (await what_if(app, status=409))["error"]
        async with looking(app):
            assert "too few jobs" in (await what_if(app, status=409))["error"]


async def test_records_that_are_not_complete_are_not_replayed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_lanes({"main": 50}) as lanes:
        app = page(lanes)
        async with looking(app) as viewer:
            await work(lanes)
            for _ in range(300):  # more than the records of a frame
                lanes.submit_nowait(trio.sleep, 0)
            await lanes.wait_idle()
            await viewer.next()
            await viewer.next()
            assert "too few jobs" in (await what_if(app, status=409))["error"]
            for _ in range(45):
                for _ in range(90):
                    lanes.submit_nowait(trio.sleep, 0)
                await viewer.next()
            monkeypatch.setattr(sys, "executable", "/bin/false")
            await trio.sleep(1)
            assert (await what_if(app, status=500))["error"].startswith("the replay failed")


@pytest.mark.real_processes
async def test_a_replay_that_does_not_end_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    with trio.fail_after(120):
        async with open_lanes({"main": 1}) as lanes:
            app = page(lanes)
            async with looking(app):
                await work(lanes)
                monkeypatch.setattr(sys, "executable", str(slow))
                monkeypatch.setattr(_whatif, "_REPLAY_SECONDS", 0.3)
                assert "longer than" in (await what_if(app, status=503))["error"]


def test_the_process_of_a_replay_prints_the_figures_of_three_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = LaneRecorder()

    async def main() -> None:
        async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
            await work(lanes)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    recorder.save(tmp_path / "x")
    monkeypatch.setattr(sys, "argv", ["replay", str(tmp_path / "x"), '{"main": 9}'])
    runpy.run_module("trio_lanes.replay", run_name="__main__")
    told = json.loads(capsys.readouterr().out)
    assert [round(told[run]["longest"], 2) for run in ("recorded", "replayed", "changed")] == [
        0.2,
        0.2,
        0.0,
    ]
    import_module("trio_lanes.replay.__main__")
    assert capsys.readouterr().out == ""  # to import it does nothing
