"""The table of the last warnings about waits, which no public name shows."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from trio_lanes import LaneConfig, open_lanes


async def test_what_was_said_of_lanes_long_ago_is_forgotten(autojump_clock: MockClock) -> None:
    async with open_lanes({"tenant:*": LaneConfig(concurrency=1, warn_after=1)}) as lanes:
        table = lanes._scheduler._wait_warnings
        for number in range(1000):
            name = f"tenant:{number}"
            for _ in range(2):
                lanes.submit_nowait(trio.sleep, 2, lane=name)
            await trio.sleep(10)
        assert len(table._quiet) < 100
