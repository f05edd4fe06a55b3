"""`timeout`, which counts running, and `queue_timeout`, which counts waiting."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, assert_no_checkpoints

from tests.support.track import Track
from trio_lanes import (
    Job,
    JobState,
    JobTimeoutError,
    LaneConfig,
    Lanes,
    QueueTimeoutError,
    open_lanes,
)

pytestmark = pytest.mark.both_doors

both_layers = pytest.mark.parametrize("session", [None, "alice"])


# ---- timeout


@both_layers
@pytest.mark.many_seeds(3)
async def test_jobs_of_a_lane_of_one_that_time_out_never_overlap(
    autojump_clock: MockClock, session: str | None
) -> None:
    track = Track()

    async def slow_to_end(i: int) -> None:
        track.running += 1
        track.peak = max(track.peak, track.running)
        track.start_times[i] = trio.current_time()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            track.running -= 1

    async with open_lanes({"main": 1}) as lanes:
        jobs = [lanes.submit_nowait(slow_to_end, i, session=session, timeout=2) for i in range(3)]
        for job in jobs:
            with pytest.raises(JobTimeoutError) as error:
                await job.wait()
            assert (error.value.kind, error.value.seconds) == ("timeout", 2)
            assert isinstance(error.value, trio.TooSlowError)
            assert job.state is JobState.FAILED
    assert track.start_times == {0: 0.0, 1: 3.0, 2: 6.0}
    assert track.peak == 1


async def test_each_job_has_a_timeout_of_its_own(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 3}) as lanes:
        short = lanes.submit_nowait(trio.sleep, 10, timeout=1)
        long = lanes.submit_nowait(trio.sleep, 10, timeout=5)
        none = lanes.submit_nowait(trio.sleep, 10)
        for job in (short, long, none):
            await job.wait_done()
        assert [job.finished_at for job in (short, long, none)] == [1.0, 5.0, 10.0]
        assert [type(job.exception) for job in (short, long, none)] == [
            JobTimeoutError,
            JobTimeoutError,
            type(None),
        ]


async def test_an_infinite_timeout_is_none(autojump_clock: MockClock) -> None:
    async with open_lanes() as lanes:
        await lanes.run(trio.sleep, 1e9, timeout=math.inf)


async def test_a_timeout_is_not_mistaken_for_a_timeout_of_the_body(
    autojump_clock: MockClock,
) -> None:
    async def body() -> str:
        with trio.move_on_after(1):
            await trio.sleep_forever()
        try:
            with trio.fail_after(1):
                await trio.sleep_forever()
        except trio.TooSlowError:
            return "mine"
        raise AssertionError

    async def too_slow() -> None:
        with trio.fail_after(1):
            await trio.sleep_forever()

    async with open_lanes() as lanes:
        assert await lanes.run(body, timeout=10) == "mine"
        job = lanes.submit_nowait(too_slow, timeout=10)
        with pytest.raises(trio.TooSlowError) as error:
            await job.wait()
        assert not isinstance(error.value, JobTimeoutError)


# ---- queue_timeout


@both_layers
async def test_a_job_that_waits_for_longer_than_its_queue_timeout_never_starts(
    autojump_clock: MockClock, session: str | None
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(track.sleep, "running", 10, session=session)
        job = lanes.submit_nowait(track.sleep, "late", session=session, queue_timeout=3)
        with pytest.raises(QueueTimeoutError) as error:
            await job.wait()
        assert trio.current_time() == job.finished_at == 3.0
        assert error.value.seconds == 3
        assert isinstance(error.value, trio.TooSlowError)
        assert job.state is JobState.CANCELLED
        assert job.started_at is None
        assert lanes.lane("main").waiting == 0
    assert track.started == ["running"]


async def test_a_queue_timeout_counts_over_both_layers(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(track.sleep, "blocker", 10)
        lanes.start_soon(track.sleep, "a0", session="alice")
        lanes.submit_nowait(track.sleep, "in its session", session="alice", queue_timeout=4)
        lanes.submit_nowait(track.sleep, "in the lane", session="bob", queue_timeout=4)
        assert lanes.lane("main").statistics().waiting_in_sessions == 1
        await trio.sleep(4.5)
        assert lanes.lane("main").waiting == 1
    assert track.started == ["blocker", "a0"]


@pytest.mark.many_seeds(10)
async def test_at_the_very_end_of_its_queue_timeout_a_job_either_starts_or_never_does(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(track.sleep, "first", 3)
        job = lanes.submit_nowait(track.sleep, "second", queue_timeout=3)
        await job.wait_done()
        if job.state is JobState.CANCELLED:
            assert isinstance(job.exception, QueueTimeoutError)
            assert track.started == ["first"]
        else:
            assert job.state is JobState.SUCCEEDED
            assert track.ended == ["first", "second"]
        await lanes.wait_idle()
        assert lanes.lane("main").limiter.borrowed_tokens == 0


async def test_the_queue_timeout_of_a_job_leaves_the_order_of_the_other_jobs(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(track.sleep, "first", 5, session="alice")
        for i in range(6):
            limit = 2 if i % 2 else math.inf
            lanes.submit_nowait(track.sleep, i, session="alice", queue_timeout=limit)
    assert track.started == ["first", 0, 2, 4]


async def test_queue_timeouts_end_waits_in_a_paused_lane(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": LaneConfig(paused=True)}) as lanes:
        with pytest.raises(QueueTimeoutError, match="7"):
            await lanes.run(trio.sleep, 1, queue_timeout=7)
        assert trio.current_time() == 7.0


# ---- queue_timeout=0


def busy(lanes: Lanes) -> None:
    lanes.start_soon(trio.sleep, 10)


def paused(lanes: Lanes) -> None:
    lanes.pause("main")


def busy_session(lanes: Lanes) -> None:
    lanes.configure({"main": 2})
    lanes.start_soon(trio.sleep, 10, session="alice")


def paused_session(lanes: Lanes) -> None:
    lanes.pause("session:alice")


obstacles = pytest.mark.parametrize("obstacle", [busy, paused, busy_session, paused_session])


@obstacles
async def test_with_a_queue_timeout_of_0_a_job_that_cannot_start_has_settled_when_it_is_returned(
    autojump_clock: MockClock, obstacle: Callable[[Lanes], None]
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        obstacle(lanes)
        before = lanes.statistics()
        with assert_no_checkpoints():
            job = lanes.submit_nowait(track.sleep, "a", session="alice", queue_timeout=0)
        assert job.state is JobState.CANCELLED
        assert isinstance(job.exception, QueueTimeoutError)
        main = attrs.evolve(before.lanes["main"], cancelled=1)
        assert lanes.statistics() == attrs.evolve(before, lanes={"main": main})
        lanes.resume()
        lanes.resume("session:alice")
    assert track.started == []


@both_layers
async def test_with_a_queue_timeout_of_0_a_job_that_can_start_does(
    autojump_clock: MockClock, session: str | None
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(trio.sleep, 5, session=session, queue_timeout=0)
        assert job.state is JobState.RUNNING
        await job.wait()
        assert trio.current_time() == 5.0


async def test_a_job_with_a_queue_timeout_of_0_overtakes_other_jobs_only_by_priority(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(track.sleep, "running")
        lanes.start_soon(track.sleep, "waiting", session="alice")
        jobs = [
            lanes.submit_nowait(track.sleep, "now", session=session, priority=9, queue_timeout=0)
            for session in (None, "alice", "bob")
        ]
        assert all(isinstance(job.exception, QueueTimeoutError) for job in jobs)
    assert track.started == ["running", "waiting"]


@pytest.mark.parametrize("verb", ["run", "submit"])
async def test_run_and_submit_with_a_queue_timeout_of_0_do_not_wait(
    autojump_clock: MockClock, verb: str
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(trio.sleep, 10)
        if verb == "run":
            with pytest.raises(QueueTimeoutError):
                await lanes.run(trio.sleep, 1, queue_timeout=0)
        else:
            with assert_checkpoints():
                job = await lanes.submit(trio.sleep, 1, queue_timeout=0)
            assert isinstance(job.exception, QueueTimeoutError)
        assert trio.current_time() == 0.0


async def test_inside_a_hook_a_queue_timeout_of_0_is_decided_when_the_lanes_were_served(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    got: list[Job[Any]] = []

    class SubmitNow:
        lanes: Lanes

        def job_submitted(self, job: Job[Any]) -> None:
            if job.name == "outer":
                got.append(
                    self.lanes.submit_nowait(track.sleep, "inner", name="inner", queue_timeout=0)
                )

    hook = SubmitNow()
    async with open_lanes({"main": 2}, instruments=[hook]) as lanes:
        hook.lanes = lanes
        lanes.start_soon(track.sleep, "outer", 1, name="outer")
        lanes.start_soon(track.sleep, "outer", 1, name="outer")
    assert sorted(track.started) == ["inner", "outer", "outer"]
    assert [type(job.exception) for job in got] == [type(None), QueueTimeoutError]


# ---- many, and what they leave


async def test_timers_of_many_jobs_go_off_each_at_its_time(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 0}) as lanes:
        order = [i * 37 % 100 for i in range(100)]
        jobs = {
            i: lanes.submit_nowait(trio.sleep, 1, queue_timeout=1 + i, session=f"s{i % 7}")
            for i in order
        }
        for i, job in jobs.items():
            if i % 3:  # most of them: their timers are thrown away
                job.cancel()
        await lanes.wait_empty()
        for i, job in jobs.items():
            assert job.finished_at == (0.0 if i % 3 else 1.0 + i)


async def test_a_shorter_queue_timeout_set_later_goes_off_first(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 0}) as lanes:
        long = lanes.submit_nowait(trio.sleep, 1, queue_timeout=1000)
        await trio.sleep(1)
        short = lanes.submit_nowait(trio.sleep, 1, queue_timeout=1)
        await short.wait_done()
        assert trio.current_time() == 2.0
        long.cancel()
    assert trio.current_time() == 2.0


@pytest.mark.many_seeds(10)
@pytest.mark.parametrize("how", ["queue_timeout", "warn_after", "timeout"])
async def test_the_lanes_do_not_outlast_the_work_for_a_timer_that_is_due_later(
    autojump_clock: MockClock, how: str
) -> None:
    options: dict[str, Any] = {how: 1_000_000}
    async with open_lanes({"main": 1}) as lanes:
        for _ in range(3):
            lanes.start_soon(trio.sleep, 1, **options)
    assert trio.current_time() == 3.0
