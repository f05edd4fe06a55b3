"""What is wrong with a store, where much of it runs, or is forgotten meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_lanes.durable import MemoryStore, open_durable_lanes
from trio_lanes.durable._lanes import health


async def waits(payload: Any) -> None:
    await trio.sleep(payload)


async def test_of_a_lane_with_many_runs_the_last_that_began_counts(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "JOBS_LISTED", 2)
    async with (
        open_durable_lanes(MemoryStore(), {"waits": waits}, {"main": 4}, grace=0) as lanes,
    ):
        for _ in range(3):
            await lanes.submit("waits", 10_000)
        await trio.sleep(200)
        for _ in range(2):
            await lanes.submit("waits", 10_000)
        await trio.sleep(299)
        assert await lanes.health() == ()
        await trio.sleep(2)
        assert [one.kind for one in await lanes.health()] == ["standstill"]


async def test_a_run_that_was_in_the_way_of_a_schedule_and_is_forgotten_is_no_problem(
    autojump_clock: MockClock,
) -> None:
    handlers = {"waits": waits}
    async with open_durable_lanes(MemoryStore(), handlers, result_ttl=5.0, grace=0) as lanes:
        await lanes.schedule("tick", "waits", 10_000, every=100)
        await trio.sleep(450)
        (problem,) = await lanes.health()
        assert problem.job is not None
        await lanes.cancel(problem.job)
        await trio.sleep(30)
        (one,) = await lanes.schedules()
        assert one.skipped_in_row == 3
        assert await lanes.jobs() == []
        assert await lanes.health() == ()


async def test_a_job_that_begins_during_the_look_is_no_problem(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_durable_lanes(MemoryStore(), {"waits": waits}, {"main": 1}, grace=0) as lanes:
        await lanes.pause("main")
        await lanes.submit("waits", 10_000)
        await trio.sleep(20)
        root_causes = lanes.root_causes

        async def resumes(id: int) -> Any:
            found = await root_causes(id)
            await lanes.resume("main")
            await trio.sleep(1)
            return found

        monkeypatch.setattr(lanes, "root_causes", resumes)
        assert await lanes.health() == ()
