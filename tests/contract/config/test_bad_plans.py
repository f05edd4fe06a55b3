"""Configurations that contradict themselves or lanes in use are refused, with nothing changed."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_lanes import (
    JobState,
    LaneClearedError,
    LaneGroup,
    UnknownLaneError,
    open_lanes,
)


async def no_op() -> None:
    pass


def test_a_reservation_resolves_names_of_lanes_and_is_a_copy() -> None:
    reserve = {" main ": 1}
    group = LaneGroup(["main", "cron"], 2, reserve)
    reserve[" main "] = 9
    assert group.reserve == {"main": 1}
    assert "reserve={'main': 1}" in repr(group)


async def test_a_lane_that_is_in_a_group_cannot_be_removed_without_it(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"a": 1, "b": 1}, groups={"g": LaneGroup(["a", "b"])}) as lanes:
        with pytest.raises(ValueError, match=r"'g'.*'b'"):
            lanes.configure({"b": None})
        view = lanes.lane("b")
        lanes.configure({"b": None}, {"g": LaneGroup(["a"])})
        with pytest.raises(UnknownLaneError):
            _ = view.limiter


async def test_only_run_lends_a_slot_and_only_inside_a_job(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        for submit in (lanes.submit_nowait, lanes.start_soon):
            with pytest.raises(ValueError, match="yield_slot"):
                submit(no_op, yield_slot=True)
        with pytest.raises(ValueError, match="yield_slot"):
            await lanes.submit(no_op, yield_slot=True)
        with pytest.raises(RuntimeError, match="not inside"):
            await lanes.run(no_op, yield_slot=True)
        assert lanes.jobs() == []


async def test_what_only_a_running_job_can_do_is_refused_otherwise(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.pause()
        job = lanes.submit_nowait(no_op)
        job.progress()  # says nothing: it does not run
        with pytest.raises(RuntimeError, match="no slot"):
            async with job.yield_slot():
                raise AssertionError
        with pytest.raises(RuntimeError, match="does not run"):
            await job.readmit()
        lanes.resume()
        await job.wait()
        with pytest.raises(RuntimeError, match="does not run"):
            await job.readmit()


async def test_progress_may_come_before_the_body_has_begun(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(trio.sleep, 1, idle_timeout=2)
        job.progress()
        await job.wait()


async def test_a_hook_may_submit_when_a_deadline_has_just_withdrawn_a_job(
    autojump_clock: MockClock,
) -> None:
    class Replace:
        def job_finished(self, job: Any) -> None:
            if job.name == "withdrawn":
                lanes.submit_nowait(no_op, name="instead")

    async with open_lanes({"main": 1, "cron": 1}, instruments=[Replace()]) as lanes:
        lanes.submit_nowait(trio.sleep, 5, lane="cron", name="running")
        lanes.pause("main")
        with trio.move_on_after(1):
            await lanes.run(no_op, name="withdrawn")
        assert [job.name for job in lanes.jobs()] == ["running", "instead"]
        assert lanes.jobs()[1].parent is None
        lanes.resume("main")


async def test_a_hook_that_is_told_of_a_cleared_job_finds_the_others_cleared_too(
    autojump_clock: MockClock,
) -> None:
    class Both:
        def job_finished(self, job: Any) -> None:
            assert not jobs[1].cancel()

    async with open_lanes({"main": 1}, instruments=[Both()]) as lanes:
        lanes.pause()
        jobs = [lanes.submit_nowait(no_op) for _ in range(3)]
        assert lanes.clear() == 3
        assert {type(job.exception) for job in jobs} == {LaneClearedError}


async def test_a_hook_may_pause_the_lane_that_its_group_serves_next(
    autojump_clock: MockClock,
) -> None:
    class Pause:
        def job_started(self, job: Any) -> None:
            lanes.pause("cron")

    group = LaneGroup(["main", "cron"], concurrency=2)
    config = {"main": 1, "cron": 1, "other": 1}
    async with open_lanes(config, groups={"key": group}, instruments=[Pause()]) as lanes:
        lanes.pause()
        lanes.submit_nowait(trio.sleep, 1)
        waits = lanes.submit_nowait(trio.sleep, 1, lane="cron")
        lanes.resume()
        await trio.sleep(5)
        assert waits.state is JobState.WAITING
        lanes.resume("cron")
