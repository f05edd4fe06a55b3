"""The block is cancelled while its own task waits, in no scope or nursery inside the block."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from tests.support.bodies import never_ends, returns
from trio_lanes import JobState, LaneConfig, Lanes, open_lanes

pytestmark = pytest.mark.both_doors


async def runs(lanes: Lanes) -> None:
    await lanes.run(never_ends)


async def runs_in_a_session(lanes: Lanes) -> None:
    await lanes.run(never_ends, session="alice", name="a reply", meta=1)


async def runs_with_a_timeout(lanes: Lanes) -> None:
    await lanes.run(never_ends, timeout=100)


async def runs_what_waits_behind_a_closed_lane(lanes: Lanes) -> None:
    async def later() -> None:
        await trio.sleep(0.3)
        lanes.submit_nowait(never_ends, session="alice", lane="free")

    lanes.submit_nowait(later, lane="free")
    await lanes.run(never_ends, session="alice", lane="closed")  # its end lets another job start


async def waits_for_room(lanes: Lanes) -> None:
    lanes.submit_nowait(never_ends, lane="narrow")
    lanes.submit_nowait(never_ends, lane="narrow")
    await lanes.submit(returns, lane="narrow")


async def maps(lanes: Lanes) -> None:
    async with lanes.map(lambda _: never_ends(), range(3)) as results:
        async for _ in results:
            raise AssertionError("no item ends")


async def opens_a_nursery(lanes: Lanes) -> None:
    async with lanes.open_nursery() as jobs:
        jobs.start_soon(never_ends)
        await lanes.run(never_ends, session="alice")


async def waits_for_the_end_of_a_job(lanes: Lanes) -> None:
    await lanes.submit_nowait(never_ends).wait()


async def drains(lanes: Lanes) -> None:
    lanes.submit_nowait(never_ends)
    await lanes.drain()


async def is_idle(lanes: Lanes) -> None:
    lanes.submit_nowait(never_ends)
    await lanes.wait_idle()


WAYS = [
    runs,
    runs_in_a_session,
    runs_with_a_timeout,
    runs_what_waits_behind_a_closed_lane,
    waits_for_room,
    maps,
    opens_a_nursery,
    waits_for_the_end_of_a_job,
    drains,
    is_idle,
]
each_way = pytest.mark.parametrize("waits", WAYS, ids=lambda way: way.__name__)
Way = Callable[[Lanes], Awaitable[None]]

LANES = {"main": 4, "free": 1, "closed": 0, "narrow": LaneConfig(max_waiting=1)}


async def block(waits: Way) -> None:
    """A block whose own task waits; whatever ends it has ended all of its jobs."""
    lanes: Lanes | None = None
    try:
        async with open_lanes(LANES) as lanes:
            await waits(lanes)
    finally:
        assert lanes is not None
        assert lanes.jobs() == []
        assert lanes.statistics().active == 0


@each_way
async def test_a_deadline_ends_the_block(autojump_clock: MockClock, waits: Way) -> None:
    with trio.move_on_after(1) as scope:
        await block(waits)
    assert scope.cancelled_caught
    assert trio.current_time() == 1


@each_way
async def test_a_task_that_cancels_the_scope_around_the_block_goes_on(
    autojump_clock: MockClock, waits: Way
) -> None:
    has_gone_on = False

    async def stop() -> None:
        nonlocal has_gone_on
        await trio.sleep(1)
        scope.cancel()
        has_gone_on = True

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(stop)
            await block(waits)
    assert scope.cancelled_caught
    assert has_gone_on


@each_way
async def test_the_error_of_a_sibling_of_the_block_is_not_lost(
    autojump_clock: MockClock, waits: Way
) -> None:
    async def server() -> None:
        await trio.sleep(1)
        raise OSError("the port is taken")

    async def siblings() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server)
            await block(waits)

    with pytest.raises(ExceptionGroup) as caught:
        await siblings()
    (error,) = caught.value.exceptions
    assert str(error) == "the port is taken"


async def test_the_job_of_a_block_that_is_cancelled_ends_as_cancelled(
    autojump_clock: MockClock,
) -> None:
    with trio.move_on_after(1):
        async with open_lanes({"main": 1}) as lanes:
            job = lanes.submit_nowait(never_ends)
            await lanes.run(returns)
    assert job.state is JobState.CANCELLED
