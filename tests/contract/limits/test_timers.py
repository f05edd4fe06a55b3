"""Timers: what they never do, where much is due at once."""

import trio
from trio.testing import MockClock

from tests.support.timers import watched_timers
from trio_lanes import Job, LaneConfig, RateLimit, open_lanes


async def test_what_is_due_at_once_goes_off_once(autojump_clock: MockClock) -> None:
    rate = RateLimit(1, per=2, algorithm="sliding")
    with watched_timers():
        async with open_lanes({f"lane{n}": LaneConfig(rate=rate) for n in range(5)}) as lanes:
            for n in range(5):
                lanes.pause_for(f"lane{n}", 2)
                for _ in range(3):
                    lanes.submit_nowait(trio.sleep, 2, lane=f"lane{n}", timeout=2)
                lanes.submit_nowait(trio.sleep, 0, lane=f"lane{n}", delay=2, queue_timeout=2)


async def test_a_job_that_a_callback_submits_for_now_or_never_is_decided_after_all_else(
    autojump_clock: MockClock,
) -> None:
    jobs: list[Job[None]] = []

    def again(job: Job[None]) -> None:
        if len(jobs) < 100:
            jobs.append(lanes.submit_nowait(trio.sleep, 1, queue_timeout=0))
            jobs[-1].on_settled(again)

    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 5)
        again(lanes.submit_nowait(trio.sleep, 0))
        with trio.fail_after(1):  # timers that set timers for now let other tasks have their turn
            while len(jobs) < 100:
                await trio.lowlevel.checkpoint()
