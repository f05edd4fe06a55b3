"""`map` inside a job: what would wait for ever is said at once, and what it lends."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.bodies import cleans_up_shielded, sleeps
from trio_lanes import (
    Job,
    JobCancelledError,
    LaneConfig,
    LaneDeadlockError,
    Lanes,
    current_job,
    open_lanes,
)
from trio_lanes.testing import LaneRecorder

pytestmark = pytest.mark.both_doors

DURATIONS = [3, 1, 4, 1, 5]


async def all_of(lanes: Lanes, items: Any, **options: Any) -> list[Any]:
    async with lanes.map(sleeps, items, **options) as results:
        return [result async for result in results]


async def asynchronously(items: Any) -> AsyncIterator[Any]:
    for item in items:
        yield item


# ---- waits that would never end


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("source", [list, asynchronously])
async def test_a_map_that_would_wait_for_ever_is_told_so_at_once(
    source: Any, ordered: bool, autojump_clock: MockClock
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        body = partial(all_of, lanes, source(DURATIONS), ordered=ordered)
        with pytest.raises(LaneDeadlockError) as caught:
            await lanes.run(body, name="outer")
        assert "'outer' holds a slot of lane 'main'" in str(caught.value)
        assert "which waits for lane 'main'" in str(caught.value)
        assert "yield_slot" in str(caught.value)
        assert lanes.jobs() == []
        assert trio.current_time() == 0


async def test_a_map_that_waits_for_room_for_ever_is_told_so_at_once(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": LaneConfig(concurrency=1, max_waiting=1)}) as lanes:

        async def outer() -> None:
            lanes.submit_nowait(sleeps, 1)
            with pytest.raises(LaneDeadlockError, match="room in lane 'main'"):
                await all_of(lanes, DURATIONS)

        await lanes.run(outer)


async def test_one_job_that_can_go_on_is_enough_for_a_wait_for_any_of_several(
    autojump_clock: MockClock,
) -> None:
    taken = []

    async def outer(ordered: bool) -> None:
        mapped = lanes.map(
            sleeps, [2, 1], session=lambda item: "own" if item == 2 else "other", ordered=ordered
        )
        async with mapped as results:
            async for item in results:
                taken.append(item)

    async with open_lanes({"main": 9}) as lanes:
        with pytest.raises(LaneDeadlockError):  # the first one waits for this very session
            await lanes.run(outer, True, session="own")
        assert taken == []
        with pytest.raises(LaneDeadlockError, match="session 'own'"):
            await lanes.run(outer, False, session="own")
        assert taken == [1]


async def test_one_job_that_could_start_is_enough_for_a_wait_for_any_of_several(
    autojump_clock: MockClock,
) -> None:
    async def outer() -> list[float]:
        mapped = lanes.map(
            sleeps, [2, 1], session=lambda item: f"s{item}", ordered=False, lane="side"
        )
        async with mapped as results:
            return [await anext(results)]

    async with open_lanes({"main": 1, "side": 1}) as lanes:
        lanes.submit_nowait(sleeps, 5, lane="side")  # it is in the way, but will end
        assert await lanes.run(outer, session="s2") == [1]


async def test_each_of_many_that_all_wait_is_named(autojump_clock: MockClock) -> None:
    async def outer() -> None:
        await all_of(lanes, [1, 2], ordered=False)

    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(LaneDeadlockError, match=r"for job 2 '.*' or job 3 '.*', which"):
            await lanes.run(outer)


async def test_jobs_that_map_each_others_lanes_full_are_told(autojump_clock: MockClock) -> None:
    """Two hold the two slots, and wait for jobs that need one."""
    async with open_lanes({"main": 2}) as lanes:
        first = lanes.submit_nowait(partial(all_of, lanes, [1]))
        second = lanes.submit_nowait(partial(all_of, lanes, [1], ordered=False))
        await lanes.wait_idle()
        failed = [job for job in (first, second) if job.exception is not None]
        assert len(failed) == 1  # the last to wait; then the other could go on
        assert isinstance(failed[0].exception, LaneDeadlockError)


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_job_that_maps_lists_the_jobs_that_block_it(
    ordered: bool, autojump_clock: MockClock
) -> None:
    async with open_lanes({"main": 1, "side": LaneConfig(concurrency=1, max_waiting=1)}) as lanes:
        options: Any = {"lane": "side", "ordered": ordered, "max_outstanding": 3}
        outer = lanes.submit_nowait(partial(all_of, lanes, [5, 5, 5], **options))
        await wait_all_tasks_blocked()
        inner = [job for job in lanes.jobs() if job.lane == "side"]
        assert len(inner) == 2
        (blocker,) = outer.blocked_by()
        assert (blocker.kind, blocker.lane) == ("job", "side")
        assert blocker.jobs == tuple(inner[:1] if ordered else inner)
        await outer.wait()
        assert outer.blocked_by() == ()

    async with open_lanes({"main": 1, "side": LaneConfig(concurrency=1, max_waiting=1)}) as lanes:
        lanes.submit_nowait(sleeps, 5, lane="side")
        lanes.submit_nowait(sleeps, 5, lane="side")
        outer = lanes.submit_nowait(partial(all_of, lanes, [5], lane="side", ordered=ordered))
        await wait_all_tasks_blocked()
        assert [blocker.kind for blocker in outer.blocked_by()] == ["room"]


# ---- lending


@pytest.mark.many_seeds(3)
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("source", [list, asynchronously])
@pytest.mark.parametrize("max_waiting", [1, 100])
async def test_with_yield_slot_jobs_map_over_the_lane_that_they_run_in(
    max_waiting: int, source: Any, ordered: bool, autojump_clock: MockClock
) -> None:
    recorder = LaneRecorder()
    config = LaneConfig(concurrency=2, max_waiting=max_waiting)
    async with open_lanes({"main": config}, instruments=[recorder]) as lanes:

        async def run(body: Any) -> None:
            taken = await lanes.run(body)
            assert taken == DURATIONS if ordered else sorted(taken) == sorted(DURATIONS)

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                items = source(DURATIONS)
                body = partial(all_of, lanes, items, ordered=ordered, yield_slot=True)
                nursery.start_soon(run, body)
    recorder.check()


@pytest.mark.trio_only("there a body begins a pass before the first slot is wanted back")
async def test_a_lending_map_leaves_with_its_slot(autojump_clock: MockClock) -> None:
    """Also when what it cancels needs that slot to end."""

    async def inner(n: int) -> None:
        if n == 1:
            await lanes.run(sleeps, 3, yield_slot=True)

    async def outer() -> None:
        async with lanes.map(inner, itertools.count(), yield_slot=True) as results:
            await anext(results)
            assert trio.current_time() == 3
            await trio.sleep(1)
        assert trio.current_time() == 4
        job = current_job()
        assert job is not None
        assert job in lanes.lane("main").limiter.statistics().borrowers

    async with open_lanes({"main": 1}) as lanes:
        await lanes.run(outer)
        assert lanes.statistics().active == 0


async def test_a_lending_map_that_is_cancelled_loses_nothing(autojump_clock: MockClock) -> None:
    async def outer() -> list[float]:
        taken: list[float] = []
        async with lanes.map(sleeps, DURATIONS, yield_slot=True) as results:
            while len(taken) < len(DURATIONS):
                with trio.move_on_after(0.5):
                    taken.append(await anext(results))
        return taken

    async with open_lanes({"main": 1}) as lanes:
        assert await lanes.run(outer) == DURATIONS


async def test_an_instrument_that_cancels_what_lending_has_started_wakes_the_map(
    autojump_clock: MockClock,
) -> None:
    class Instrument:
        def job_started(self, job: Job[Any]) -> None:
            if job.parent is not None:
                lanes.clear()

    async with open_lanes({"main": 2}, instruments=[Instrument()]) as lanes:  # type: ignore[list-item]

        async def outer() -> None:
            async with lanes.map(sleeps, [5, 1, 1], ordered=False, yield_slot=True) as results:
                with pytest.raises(JobCancelledError):
                    await anext(results)
                assert trio.current_time() == 2  # when there was a slot to come back to

        lanes.submit_nowait(sleeps, 2)
        await lanes.run(outer)


# ---- leaving


async def returns_at_once_or(then: Any) -> None:
    if then is not None:
        await then()


async def test_an_item_that_waits_for_the_mapping_job_is_cancelled_when_the_map_is_left(
    autojump_clock: MockClock,
) -> None:
    async def outer() -> None:
        job = current_job()
        assert job is not None
        items = [None, job.wait]
        async with lanes.map(returns_at_once_or, items, lane="side") as results:
            await anext(results)
            await trio.sleep(1)  # the other waits for this job by now

    async with open_lanes({"main": 1, "side": 2}) as lanes:
        await lanes.run(outer)
        assert trio.current_time() == 1


@pytest.mark.trio_only("asyncio has no shields")
async def test_a_child_that_waits_for_the_mapping_job_though_cancelled_is_a_deadlock(
    autojump_clock: MockClock,
) -> None:
    async def outer() -> None:
        job = current_job()
        assert job is not None

        async def waits() -> None:
            with trio.CancelScope(shield=True):
                await job.wait_done()

        async with lanes.map(returns_at_once_or, [None, waits], lane="side") as results:
            await anext(results)
            await trio.sleep(1)

    async with open_lanes({"main": 1, "side": 2}) as lanes:
        with pytest.raises(LaneDeadlockError):
            await lanes.run(outer)
        await lanes.wait_idle()


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_mapped_job_may_wait_for_lanes_and_leaves_out_the_mapping_job(
    leaves: bool, autojump_clock: MockClock
) -> None:
    """Whether that begins to wait for it before or after."""

    async def waits() -> None:
        with trio.CancelScope(shield=True):
            await lanes.wait_idle("main")

    async def outer() -> None:
        async with lanes.map(returns_at_once_or, [None, waits], lane="side") as results:
            await anext(results)
            await trio.sleep(1)
            if not leaves:
                await anext(results)
        async with lanes.map(returns_at_once_or, [waits], lane="side") as results:
            if not leaves:
                await anext(results)

    async with open_lanes({"main": 1, "side": 2}) as lanes:
        await lanes.run(outer)
        assert trio.current_time() == 1


async def test_a_job_that_leaves_its_map_lists_the_jobs_that_it_waits_for(
    autojump_clock: MockClock,
) -> None:
    async def inner(n: int) -> None:
        if n:
            await cleans_up_shielded()

    async def outer() -> None:
        async with lanes.map(inner, range(3), lane="side", max_outstanding=3) as results:
            with trio.move_on_after(0):
                await anext(results)
            await trio.sleep(1)

    async with open_lanes({"main": 1, "side": 3}) as lanes:
        job = lanes.submit_nowait(outer)
        await trio.sleep(1.5)
        (blocker,) = job.blocked_by()
        assert blocker.jobs == tuple(job for job in lanes.jobs() if job.lane == "side")
        assert len(blocker.jobs) == 2


async def test_a_running_job_maps_also_while_the_lanes_close(autojump_clock: MockClock) -> None:
    async def outer() -> list[Any]:
        lanes.close()
        return await all_of(lanes, DURATIONS, lane="side")

    async with open_lanes({"main": 1, "side": LaneConfig(max_waiting=1)}) as lanes:
        assert await lanes.run(outer) == DURATIONS
