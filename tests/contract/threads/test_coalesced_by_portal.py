"""Submissions of threads under one key: each has a future of its own, of one job."""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import Any, Literal

import pytest
import trio
from trio.testing import MockClock

from trio_lanes import (
    Coalesce,
    JobState,
    LaneConfig,
    LaneFullError,
    LanesPortal,
    QueueTimeoutError,
    open_lanes,
)

KEY = Coalesce("index")


async def work(what: Any) -> Any:
    await trio.sleep(1)
    return what


async def test_each_future_gets_the_result_of_what_ran(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": LaneConfig(max_waiting=1)}) as lanes:
        portal = lanes.portal()
        lanes.submit_nowait(trio.sleep, 5)
        futures = [portal.submit(work, number, coalesce=KEY) for number in range(4)]
        await trio.sleep(1)
        (job,) = (job for job in lanes.jobs() if job.state is JobState.WAITING)
        assert job.submissions == 4
        await job.wait()
    assert [future.result() for future in futures] == [3] * 4


async def test_a_future_that_is_cancelled_leaves_the_job_to_the_others(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        portal = lanes.portal()
        lanes.submit_nowait(trio.sleep, 5)
        waits, runs, stays = (portal.submit(work, number, coalesce=KEY) for number in range(3))
        await trio.sleep(1)
        assert waits.cancel()
        await trio.sleep(4.5)
        assert runs.cancel()
    assert stays.result() == 2
    for future in (waits, runs):
        with pytest.raises(CancelledError):
            future.result()


async def test_the_last_future_that_is_cancelled_withdraws_the_job(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        portal = lanes.portal()
        lanes.submit_nowait(trio.sleep, 5)
        futures = [portal.submit(work, number, coalesce=KEY) for number in range(3)]
        await trio.sleep(1)
        for future in futures:
            assert lanes.statistics().waiting == 1
            future.cancel()
            await trio.sleep(1)
        assert lanes.statistics().waiting == 0


async def test_a_queue_timeout_ends_one_future_if_the_job_is_that_of_a_later_one(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        portal = lanes.portal()
        lanes.submit_nowait(trio.sleep, 5)
        hasty = portal.submit(work, 1, queue_timeout=3, coalesce=KEY)
        await trio.sleep(1)
        patient = portal.submit(work, 2, coalesce=KEY)
        await trio.sleep(3)
        with pytest.raises(QueueTimeoutError):
            hasty.result(0)
    assert patient.result() == 2


@pytest.mark.parametrize("keep", ["first", "latest"])
async def test_the_error_of_a_future_says_its_own_queue_timeout(
    keep: Literal["first", "latest"], autojump_clock: MockClock
) -> None:
    key = Coalesce("key", keep=keep)
    async with open_lanes({"main": 1}) as lanes:
        portal = lanes.portal()
        lanes.submit_nowait(trio.sleep, 9)
        portal.submit(work, 0, coalesce=key)
        hasty = [portal.submit(work, 1, queue_timeout=3 + n, coalesce=key) for n in range(2)]
        await trio.sleep(1)
        portal.submit(work, 2, coalesce=key)
        await trio.sleep(5)
        errors = [future.exception(0) for future in hasty]
        assert [getattr(error, "seconds", error) for error in errors] == [3, 4]


async def test_submissions_that_wait_for_room_join_the_first_that_has_it(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": LaneConfig(max_waiting=1)}) as lanes:
        portal = lanes.portal()
        lanes.submit_nowait(trio.sleep, 5)
        lanes.submit_nowait(trio.sleep, 1)
        futures = [portal.submit(work, number, coalesce=KEY) for number in range(3)]
        elsewhere = portal.submit(work, 3, session="a", coalesce=KEY)
        await trio.sleep(1)
        assert futures[0].cancel()  # it has no room, and so is no job
        await trio.sleep(10)
    assert [future.result() for future in futures[1:]] == [2, 2]
    with pytest.raises(ValueError, match="coalesce"):
        elsewhere.result()


async def test_submit_nowait_of_a_thread_joins_in_a_full_lane(mock_clock: MockClock) -> None:
    mock_clock.rate = 1000
    released = trio.Event()

    def in_thread(portal: LanesPortal) -> Any:
        future = portal.submit_nowait(work, "newest", coalesce=KEY)
        with pytest.raises(LaneFullError):
            portal.submit_nowait(work, "another", coalesce=Coalesce("other"))
        with pytest.raises(ValueError, match="coalesce"):
            portal.submit_nowait(work, "another", session="a", coalesce=KEY)
        trio.from_thread.run_sync(released.set)
        return future.result()

    async with open_lanes({"main": LaneConfig(max_waiting=1)}) as lanes:
        lanes.submit_nowait(released.wait)
        job = lanes.submit_nowait(work, "first", coalesce=KEY)
        assert await trio.to_thread.run_sync(in_thread, lanes.portal()) == "newest"
        assert await job.wait() == "newest"
