"""A job that waits is put off: it takes its place later, and keeps its room."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.track import Track
from trio_lanes import (
    Coalesce,
    JobState,
    LaneConfig,
    LaneFullError,
    LanesClosedError,
    QueueTimeoutError,
    open_lanes,
)

pytestmark = pytest.mark.both_doors


@pytest.mark.parametrize("session", [None, "ann"])
async def test_a_job_that_is_put_off_takes_its_place_when_that_is_over(
    session: str | None, autojump_clock: MockClock
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        jobs = [lanes.submit_nowait(track.sleep, n, session=session) for n in range(4)]
        await wait_all_tasks_blocked()
        assert jobs[1].put_off(0.5)  # behind those that wait then
        assert jobs[1].delay == 0.5
        assert jobs[2].put_off(10)
        await trio.sleep(5)
        assert jobs[2].put_off(20)
        assert jobs[2].delay == 25
    assert track.started == [0, 3, 1, 2]
    assert trio.current_time() == 26


@pytest.mark.parametrize("session", [None, "ann"])
async def test_a_job_that_is_put_off_by_nothing_takes_its_place_at_the_tail_now(
    session: str | None, autojump_clock: MockClock
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        jobs = [lanes.submit_nowait(track.sleep, n, session=session) for n in range(3)]
        late = lanes.submit_nowait(track.sleep, 3, session=session, delay=1e9)
        await wait_all_tasks_blocked()
        assert jobs[1].put_off(0)
        assert late.put_off(0)
    assert track.started == [0, 2, 1, 3]
    assert trio.current_time() == 4


async def test_a_job_that_does_not_wait_is_not_put_off(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(trio.sleep, 1)
        await wait_all_tasks_blocked()
        assert not job.put_off(5)
        await job.wait()
        assert not job.put_off(5)
        assert trio.current_time() == 1


async def test_a_job_that_is_put_off_keeps_its_room(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": LaneConfig(concurrency=1, max_waiting=1)}) as lanes:
        lanes.submit_nowait(track.sleep, 0)
        await wait_all_tasks_blocked()
        job = lanes.submit_nowait(track.sleep, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(lanes.run, track.sleep, 2))  # it waits for room
            await wait_all_tasks_blocked()
            assert job.put_off(0.5)
            with pytest.raises(LaneFullError):
                lanes.submit_nowait(track.sleep, 3)
    assert sorted(track.started) == [0, 1, 2]


async def test_a_queue_timeout_counts_from_the_new_place(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 100)
        await wait_all_tasks_blocked()
        job = lanes.submit_nowait(trio.sleep, 1, queue_timeout=5)
        await trio.sleep(3)
        assert job.put_off(10)
        with pytest.raises(QueueTimeoutError):
            await job.wait()
        assert trio.current_time() == 18


async def test_a_job_with_a_key_keeps_its_place_when_it_was_put_off(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(track.sleep, 0, session="ann")
        first = lanes.submit_nowait(track.sleep, 1, session="ann", coalesce=Coalesce("k"))
        lanes.submit_nowait(track.sleep, 2, session="ann")
        await wait_all_tasks_blocked()
        assert first.put_off(0.5)
    assert track.started == [0, 1, 2]


async def test_a_job_that_is_put_off_without_an_end_is_held(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.pause()
        job = lanes.submit_nowait(trio.sleep, 1, session="ann")
        assert job.put_off(1e9)
        (cause,) = job.root_causes()
        assert "it is held" in str(cause)
        lanes.close()
        assert job.state is JobState.CANCELLED
        assert type(job.exception) is LanesClosedError


@pytest.mark.parametrize("delay", [-1, math.nan, math.inf, "1"])
async def test_a_bad_delay_is_refused_and_changes_nothing(
    delay: Any, autojump_clock: MockClock
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(trio.sleep, 1)
        with pytest.raises((TypeError, ValueError), match="delay"):
            job.put_off(delay)
        await job.wait()
