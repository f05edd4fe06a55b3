"""A token of a shared limiter that comes in the same tick as something else."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.track import Track
from trio_lanes import LaneConfig, current_job, open_lanes
from trio_lanes.testing import LaneRecorder


async def test_a_submission_in_the_tick_in_which_the_token_comes_waits_behind_its_taker(
    autojump_clock: trio.testing.MockClock,
) -> None:
    track, recorder, shared = Track(), LaneRecorder(), trio.CapacityLimiter(1)
    config = {"main": LaneConfig(limiter=shared)}
    async with open_lanes(config, instruments=[recorder]) as lanes:
        async with shared:
            for label in "ab":
                lanes.submit_nowait(track.sleep, label)
            await wait_all_tasks_blocked()
        lanes.submit_nowait(track.sleep, "c")  # no task has run since the limiter was released
    recorder.check()
    assert track.started == ["a", "b", "c"]
    assert track.peak == 1
    assert shared.borrowed_tokens == 0


async def test_a_head_that_is_cancelled_in_the_tick_in_which_its_token_comes_gives_it_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    track, recorder, shared = Track(), LaneRecorder(), trio.CapacityLimiter(1)
    config = {"main": LaneConfig(limiter=shared)}
    async with open_lanes(config, instruments=[recorder]) as lanes:
        async with shared:
            head = lanes.submit_nowait(track.sleep, "a")
            lanes.submit_nowait(track.sleep, "b")
            await wait_all_tasks_blocked()
        head.cancel()
    recorder.check()
    assert track.started == ["b"]
    assert shared.borrowed_tokens == 0


async def test_a_lane_may_leave_its_limiter_and_come_back_in_the_tick_in_which_a_token_comes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Who asked for that token may see it only after the lane has asked again."""
    for _ in range(20):  # tasks run in any order
        track, recorder = Track(), LaneRecorder()
        shared, other = trio.CapacityLimiter(1), trio.CapacityLimiter(1)
        config = {"main": LaneConfig(limiter=shared)}
        async with open_lanes(config, instruments=[recorder]) as lanes, other:
            async with shared:
                lanes.submit_nowait(track.sleep, "a")
                await wait_all_tasks_blocked()
            lanes.configure({"main": LaneConfig(limiter=other)})
            lanes.configure(config)
        recorder.check()
        assert track.started == ["a"]
        assert shared.borrowed_tokens == shared.statistics().tasks_waiting == 0
        assert other.borrowed_tokens == other.statistics().tasks_waiting == 0


async def test_a_lender_that_is_cancelled_in_the_tick_in_which_its_token_comes_has_its_slot(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def lend() -> None:
        job = current_job()
        assert job is not None
        try:
            async with job.yield_slot():
                await trio.sleep(1)
        finally:
            held.append(job.slot == "held" and job in shared.statistics().borrowers)

    shared, held = trio.CapacityLimiter(1), list[bool]()
    async with open_lanes({"main": LaneConfig(limiter=shared)}) as lanes:
        job = lanes.submit_nowait(lend)
        await wait_all_tasks_blocked()
        async with shared:
            await trio.sleep(2)
        job.cancel()
        await job.wait_done()
        await wait_all_tasks_blocked()
        assert shared.borrowed_tokens == 0
    assert held == [True]
