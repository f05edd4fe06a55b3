"""Entering the block of the lanes, and leaving it when all is well."""

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, assert_no_checkpoints
from trio.testing import wait_all_tasks_blocked as settle_down

from tests.support.bodies import (
    BodyError,
    never_ends,
    raises,
    returns,
)
from tests.support.logs import messages
from tests.support.track import Track
from trio_lanes import (
    DrainReport,
    Job,
    LaneConfig,
    Lanes,
    LanesClosedError,
    current_job,
    open_lanes,
)

pytestmark = pytest.mark.both_doors


async def test_entering_is_no_checkpoint_and_leaving_is_one(autojump_clock: MockClock) -> None:
    manager = open_lanes()
    with assert_no_checkpoints():
        await manager.__aenter__()
    with assert_checkpoints():
        await manager.__aexit__(None, None, None)


async def test_leaving_waits_for_all_work_also_for_what_jobs_submit_meanwhile(
    autojump_clock: MockClock,
) -> None:
    track = Track()

    async def body(n: int) -> None:
        await track.sleep(n)
        if n:
            lanes.submit_nowait(body, n - 1, session="alice")

    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(body, 3, session="alice")
        lanes.submit_nowait(track.sleep, "other")
    assert sorted(map(str, track.ended)) == ["0", "1", "2", "3", "other"]
    assert trio.current_time() == 5


async def test_leaving_refuses_new_work_from_outside(autojump_clock: MockClock) -> None:
    async def outsider(lanes: Lanes) -> None:
        await trio.sleep(1)
        with pytest.raises(LanesClosedError):
            lanes.submit_nowait(returns)

    async with trio.open_nursery() as nursery:
        async with open_lanes() as lanes:
            lanes.submit_nowait(trio.sleep, 5)
            nursery.start_soon(outsider, lanes)
        with pytest.raises(LanesClosedError):
            lanes.submit_nowait(returns)
        with pytest.raises(LanesClosedError):
            await lanes.run(returns)


@pytest.mark.parametrize("name", ["main", "session:alice"])
async def test_a_paused_lane_with_jobs_keeps_the_block_open_and_the_log_says_so_once(
    name: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    track = Track()
    config = LaneConfig(concurrency=1, warn_after=1000)

    async def resumer(lanes: Lanes) -> None:
        await trio.sleep(100)
        lanes.resume(name)

    async with trio.open_nursery() as nursery:
        async with open_lanes({"main": config}) as lanes:
            lanes.pause(name)
            lanes.submit_nowait(track.sleep, "paused", session="alice")
            nursery.start_soon(resumer, lanes)
    assert track.start_times == {"paused": 100}
    (line,) = messages(caplog)
    assert repr(name) in line
    assert "paused" in line


@pytest.mark.parametrize("name", ["main", "session:alice"])
@pytest.mark.parametrize("lowered", ["before", "meanwhile"])
async def test_a_lane_of_concurrency_0_with_jobs_keeps_the_block_open_and_the_log_says_so_once(
    name: str, lowered: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    track = Track()
    config = LaneConfig(concurrency=1, warn_after=1000)

    async def meddler(lanes: Lanes) -> None:
        await trio.sleep(0.5)
        lanes.configure({name: 0})
        await trio.sleep(99.5)
        lanes.configure({name: 1})

    async with trio.open_nursery() as nursery:
        async with open_lanes({"main": config}) as lanes:
            if lowered == "before":
                lanes.configure({name: 0})
            else:
                lanes.submit_nowait(trio.sleep, 1, session="alice")
            lanes.submit_nowait(track.sleep, "waiting", session="alice")
            nursery.start_soon(meddler, lanes)
    assert track.start_times == {"waiting": 100}
    (line,) = messages(caplog)
    assert line.startswith(f"lane {name!r} has a concurrency of 0 with 1 waiting: the block stays")


async def test_a_lane_paused_while_the_block_is_left_keeps_it_open_and_the_log_says_so_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    track = Track()
    config = LaneConfig(concurrency=1, warn_after=1000)

    async def meddler(lanes: Lanes) -> None:
        await trio.sleep(0.5)
        lanes.pause("main")
        await trio.sleep(100)
        lanes.resume("main")

    async with trio.open_nursery() as nursery:
        async with open_lanes({"main": config}) as lanes:
            lanes.submit_nowait(track.sleep, "running")
            lanes.submit_nowait(track.sleep, "waiting")
            nursery.start_soon(meddler, lanes)
    assert track.start_times == {"running": 0, "waiting": 100.5}
    assert len(messages(caplog)) == 1


async def test_a_paused_lane_without_jobs_keeps_nothing_open(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.pause()
        lanes.pause("session:alice")
    assert trio.current_time() == 0
    assert messages(caplog) == []


async def test_paused_jobs_are_told_when_the_block_is_cancelled(autojump_clock: MockClock) -> None:
    with trio.move_on_after(5) as scope:
        async with open_lanes({"main": 1}) as lanes:
            lanes.pause("main")
            jobs = [lanes.submit_nowait(returns, session=session) for session in (None, "alice")]
    assert scope.cancelled_caught
    for job in jobs:
        assert type(job.exception) is LanesClosedError


async def test_a_job_of_a_lane_may_close_and_drain_it_while_the_block_is_left(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.submit_nowait(never_ends)
        lanes.submit_nowait(lanes.drain, lane="cron", name="drain")  # type: ignore[arg-type]
        (stuck, _) = lanes.jobs()
        with trio.move_on_after(5):
            await lanes.wait_idle()
        stuck.cancel()
    assert trio.current_time() == 5


async def test_the_state_of_the_lanes_can_be_read_when_they_have_ended(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(returns, session="alice")
        failed = lanes.submit_nowait(raises)
    assert await job.wait() == "value"
    with pytest.raises(BodyError):
        await failed.wait()
    await job.wait_started()
    await job.wait_done()
    statistics = lanes.statistics()
    assert (statistics.waiting, statistics.active, statistics.sessions) == (0, 0, 0)
    assert statistics.lanes["main"].finished == 2
    assert lanes.jobs() == lanes.sessions() == []
    assert "closed" in repr(lanes)
    lanes.close()
    assert lanes.clear() == lanes.reset() == 0
    assert await lanes.wait_active() is True
    await lanes.wait_idle()
    assert await lanes.drain() == DrainReport(0, 0, 0)
    assert job.cancel() is False


async def test_several_lanes_live_side_by_side_and_inside_each_other(
    autojump_clock: MockClock,
) -> None:
    async def outer_body() -> str:
        outer_job = current_job()
        async with open_lanes({"main": 1}) as inner:

            async def inner_body() -> Job[object] | None:
                return current_job()

            job = inner.submit_nowait(inner_body)
            assert await job.wait() is job
            assert current_job() is outer_job
            return await inner.run(returns)

    async with open_lanes({"main": 1}) as one, open_lanes({"main": 1}) as two:
        jobs = [lanes.submit_nowait(outer_body) for lanes in (one, two)]
        assert [job.id for job in jobs] == [1, 1]
        for job in jobs:
            assert await job.wait() == "value"
    assert trio.current_time() == 2


@pytest.mark.trio_only("it counts tasks of Trio's")
async def test_jobs_are_children_of_the_lanes_nursery_and_none_outlives_the_block(
    autojump_clock: MockClock,
) -> None:
    tasks: list[trio.lowlevel.Task] = []

    async def body() -> None:
        tasks.append(trio.lowlevel.current_task())
        await trio.sleep(1)

    def size() -> int:
        return trio.lowlevel.current_statistics().tasks_living

    before = size()
    async with open_lanes({"main": 5}) as lanes:
        assert size() == before  # idle lanes have no task
        for n in range(5):
            lanes.submit_nowait(body, session=str(n))
        await trio.sleep(0.5)
        assert len({task.parent_nursery for task in tasks}) == 1
        await lanes.wait_idle()
        await settle_down()
        assert size() == before
    assert size() == before


@pytest.mark.trio_only("it waits for a limiter of Trio's")
async def test_a_job_that_lent_the_slot_of_a_shared_limiter_gets_a_slot_to_clean_up_with(
    autojump_clock: MockClock,
) -> None:
    shared = trio.CapacityLimiter(1)
    ended: list[float] = []

    async def lend_for_ever() -> None:
        job = current_job()
        assert job is not None
        try:
            async with job.yield_slot():
                await trio.sleep_forever()
        finally:
            assert shared.borrowed_tokens == 1
            ended.append(trio.current_time())

    async def borrow() -> None:
        async with shared:
            await trio.sleep(3)

    async with trio.open_nursery() as nursery:
        with trio.fail_after(100), trio.move_on_after(1):
            async with open_lanes({"main": LaneConfig(limiter=shared)}) as lanes:
                lanes.submit_nowait(lend_for_ever)
                await settle_down()
                nursery.start_soon(borrow)
                await trio.sleep_forever()
    assert ended == [3.0]
    assert shared.borrowed_tokens == 0
