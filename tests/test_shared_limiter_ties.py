"""A token of a shared limiter that comes in the same tick as something else."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from tests.track import Track
from trio_lanes import LaneConfig, open_lanes
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
