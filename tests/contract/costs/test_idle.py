"""A lane with nothing to do costs nothing: no wake-up, no task, no table entry, no memory."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.track import Steps, Track
from trio_lanes import LaneConfig, Lanes, open_lanes

pytestmark = pytest.mark.slow

HOUR = 3600.0


class Tasks(trio.abc.Instrument):
    """Which tasks were spawned since, and have not exited."""

    def __init__(self) -> None:
        self.alive: set[Any] = set()

    def task_spawned(self, task: Any) -> None:
        self.alive.add(task)

    def task_exited(self, task: Any) -> None:
        self.alive.discard(task)

    def __enter__(self) -> Tasks:
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(self, *exc: object) -> None:
        trio.lowlevel.remove_instrument(self)


async def nothing() -> None:
    pass


async def a_bit_of_everything(lanes: Lanes) -> None:
    """Every kind of thing that may leave something behind, until all is idle."""
    jobs = [lanes.submit_nowait(trio.sleep, 0.5, session=f"s{i % 3}") for i in range(12)]
    jobs += [lanes.submit_nowait(trio.sleep, 9, timeout=1) for _ in range(3)]
    jobs += [lanes.submit_nowait(trio.sleep, 1, queue_timeout=0.25) for _ in range(3)]
    jobs += [lanes.submit_nowait(trio.sleep, 1, warn_after=0.5, lane="cron") for _ in range(3)]
    jobs[3].cancel()
    lanes.pause("session:s1")
    lanes.pause("session:never used")
    await trio.sleep(1)
    lanes.resume("session:s1")
    lanes.resume("session:never used")
    with trio.move_on_after(0.1):
        await lanes.wait_idle()
    with trio.move_on_after(0.1):
        await lanes.submit(trio.sleep, 1, lane="bounded")
        await lanes.submit(trio.sleep, 1, lane="bounded")
        await lanes.submit(trio.sleep, 1, lane="bounded", session="waits for room")
    lanes.reset("session:s2")
    lanes.clear("cron")
    await lanes.wait_idle()
    for job in jobs:
        assert job.done
        _ = job.exception  # it is looked at


LANES = {"main": 2, "cron": 1, "bounded": LaneConfig(max_waiting=1)}


async def test_over_ten_hours_the_clock_of_an_idle_run_never_wakes(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes(LANES) as lanes:
        with Steps() as steps:
            await trio.sleep(10 * HOUR)
        assert steps.count == 1  # that of this test, which ends it
        await a_bit_of_everything(lanes)
        await wait_all_tasks_blocked()
        with Steps() as steps:
            await trio.sleep(10 * HOUR)
        assert steps.count == 1
        await a_bit_of_everything(lanes)


async def test_a_running_job_wakes_no_other_task(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(trio.sleep, 20 * HOUR, timeout=30 * HOUR)
        await wait_all_tasks_blocked()
        with Steps() as steps:
            await trio.sleep(10 * HOUR)
        assert steps.count == 1
        await job.wait()


@pytest.mark.many_seeds(5)
async def test_idle_lanes_have_no_task(autojump_clock: MockClock) -> None:
    with Tasks() as tasks:
        async with open_lanes(LANES) as lanes:
            await wait_all_tasks_blocked()
            assert tasks.alive == set()
            await a_bit_of_everything(lanes)
            await wait_all_tasks_blocked()
            assert tasks.alive == set()


async def test_a_lane_has_no_more_tasks_than_jobs_that_run(autojump_clock: MockClock) -> None:
    config = LaneConfig(concurrency=3, warn_after=float("inf"))
    with Tasks() as tasks:
        async with open_lanes({"main": config}) as lanes:
            for i in range(100):
                lanes.submit_nowait(trio.sleep, 1, session=f"s{i}")
            await wait_all_tasks_blocked()
            assert len(tasks.alive) == 3
            lanes.clear()
            await lanes.wait_idle()


def total_of_objects() -> int:
    gc.collect()
    return len(gc.get_objects())


@pytest.mark.parametrize("concurrency", [1, 50])
async def test_very_many_session_keys_leave_nothing_behind(
    autojump_clock: MockClock, concurrency: int
) -> None:
    n = 2_500
    config = LaneConfig(concurrency=concurrency, warn_after=float("inf"))

    async def use(keys: Iterable[int], body: Any) -> None:
        for i in keys:
            if i % 50 == 49:  # few at a time, so that tables are small in any order
                await lanes.wait_room(50)
            lanes.start_soon(body, session=f"key {i}")
        await lanes.wait_idle()

    async with open_lanes({"main": config}) as lanes:
        tracemalloc.start()
        await use(range(1000), nothing)  # tables have their size after that
        await use(range(1000), trio.lowlevel.checkpoint)
        await wait_all_tasks_blocked()
        objects_before = total_of_objects()
        try:
            before = tracemalloc.get_traced_memory()[0]
            await use(range(n), nothing)
            await use(range(n, n + n // 10), trio.lowlevel.checkpoint)
            await wait_all_tasks_blocked()
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert lanes.sessions() == []
        assert lanes.statistics().sessions == 0
        assert total_of_objects() - objects_before < 500
        assert grown < 50_000  # bytes, that is twenty for each key
        assert lanes.lane("main").statistics().finished == 2000 + n + n // 10


async def test_many_sessions_that_ran_at_once_leave_no_more_than_a_few_spare_parts(
    autojump_clock: MockClock,
) -> None:
    n = 2_000
    config = LaneConfig(concurrency=float("inf"), warn_after=float("inf"))
    async with open_lanes({"main": config}) as lanes:
        await lanes.run(trio.sleep, 1, session="alice")
        before = total_of_objects()
        for i in range(n):
            lanes.start_soon(trio.sleep, 1, session=f"key {i}")
        await lanes.wait_idle()
        await wait_all_tasks_blocked()
        assert lanes.sessions() == []
        assert total_of_objects() - before < n


async def test_sessions_that_were_cleared_cancelled_or_refused_leave_nothing_behind(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 0}) as lanes:
        before = 0
        for round_ in range(3):
            for i in range(1_000):
                lanes.submit_nowait(nothing, session=f"key {round_}:{i}")
            for job in lanes.jobs()[::2]:
                job.cancel()
            for i in range(10):
                lanes.clear(f"session:key {round_}:{i}")
            lanes.clear()
            for i in range(1_000):
                lanes.submit_nowait(nothing, session=f"key {i}", queue_timeout=0)
            assert lanes.sessions() == []
            del job
            if round_ == 0:
                before = total_of_objects()
        assert total_of_objects() - before < 500


async def test_a_chain_of_jobs_that_submit_their_successors_does_not_grow(
    autojump_clock: MockClock,
) -> None:
    at_its_end: list[int] = []

    async def body(left: int) -> None:
        if left:
            lanes.start_soon(body, left - 1, session="alice")
            await trio.lowlevel.checkpoint()
        else:
            at_its_end.append(total_of_objects())

    async with open_lanes({"main": 1}) as lanes:
        for length in (100, 3_000):
            lanes.start_soon(body, length, session="alice")
            await lanes.wait_idle()
    short, long = at_its_end
    assert long - short < 300


async def test_cancelled_waits_leave_nothing_behind(autojump_clock: MockClock) -> None:
    track = Track()
    config = LaneConfig(max_waiting=0, warn_after=float("inf"))
    async with open_lanes({"main": config}) as lanes:
        job = lanes.submit_nowait(track.sleep, "a", 10 * HOUR)
        before = 0
        for round_ in range(3):
            for _ in range(100):
                for wait in (
                    job.wait,
                    job.wait_done,
                    lanes.wait_idle,
                    lanes.wait_active,
                    lambda: lanes.submit(nothing, session="bob"),
                    lambda: lanes.run(nothing),
                ):
                    with trio.move_on_after(1) as scope:
                        await wait()
                    assert scope.cancelled_caught
            assert lanes.sessions() == []
            if round_ == 0:
                before = total_of_objects()
        assert total_of_objects() - before < 100
        job.cancel()
