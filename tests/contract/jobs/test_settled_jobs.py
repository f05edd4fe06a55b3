"""What observers learn of a job: `on_settled`, `outcome`, `waiting_since`, `lane_label`."""

from __future__ import annotations

import gc
import logging
from typing import Any

import outcome
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.bodies import BodyError, raises_at_once, returns_at_once
from trio_lanes import Job, JobCancelledError, JobState, Lanes, current_job, open_lanes

pytestmark = pytest.mark.both_doors


async def test_on_settled_calls_back_once_when_the_job_has_settled(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        told: list[tuple[JobState, float]] = []
        job = lanes.submit_nowait(trio.sleep, 2)
        job.on_settled(lambda it: told.append((it.state, trio.current_time())))
        await trio.sleep(1)
        assert told == []
        await job.wait()
        assert told == [(JobState.SUCCEEDED, 2.0)]
        job.on_settled(lambda it: told.append((it.state, -1.0)))  # it has settled: now
        assert told[1:] == [(JobState.SUCCEEDED, -1.0)]
        await trio.sleep(5)
        assert len(told) == 2


async def test_on_settled_tells_of_jobs_that_never_start(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 0}) as lanes:
        told: list[Job[Any]] = []
        jobs = [lanes.submit_nowait(trio.sleep, 2) for _ in range(2)]
        for job in jobs:
            job.on_settled(told.append)
        jobs[0].cancel()
        assert told == jobs[:1]
        lanes.clear()
        assert told == jobs


def submits(lanes: Lanes) -> None:
    lanes.submit_nowait(trio.sleep, 1, name="another")


def clears(lanes: Lanes) -> None:
    lanes.clear()


def resets(lanes: Lanes) -> None:
    lanes.reset()


@pytest.mark.parametrize(
    ("act", "states"),
    [
        (submits, ["SUCCEEDED", "SUCCEEDED", "SUCCEEDED"]),
        (clears, ["SUCCEEDED", "SUCCEEDED", "CANCELLED"]),
        (resets, ["SUCCEEDED", "CANCELLED", "SUCCEEDED"]),
    ],
)
async def test_a_callback_may_change_the_lanes(
    autojump_clock: MockClock, act: Any, states: list[str]
) -> None:
    async with open_lanes({"main": 2}) as lanes:
        jobs = [lanes.submit_nowait(trio.sleep, seconds) for seconds in (1, 9, 2)]
        jobs[0].on_settled(lambda job: act(lanes))
        await jobs[0].wait()
    # The slot of the first was given to none before the callback: it is told first.
    assert [job.state.name for job in jobs] == states


async def test_a_callback_may_cancel_a_task_that_waits_for_the_same_job(
    autojump_clock: MockClock,
) -> None:
    cancelled: list[bool] = []

    async def wait(job: Job[None]) -> None:
        with trio.CancelScope() as scope:
            job.on_settled(lambda it: scope.cancel())
            await job.wait()
        cancelled.append(scope.cancelled_caught)

    async with open_lanes({"main": 1}) as lanes, trio.open_nursery() as nursery:
        job = lanes.submit_nowait(trio.sleep, 1)
        nursery.start_soon(wait, job)
        nursery.start_soon(wait, job)
    assert cancelled == [True, True]


async def test_an_exception_in_a_callback_is_logged_and_changes_nothing(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(job: Job[Any]) -> None:
        raise BodyError

    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(returns_at_once)
        told: list[Job[Any]] = []
        job.on_settled(fails)
        job.on_settled(told.append)
        assert await job.wait() == "value"
        assert told == [job]
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert "a callback of" in record.message
    assert record.exc_info is not None
    assert record.exc_info[0] is BodyError


async def test_neither_a_callback_nor_outcome_retrieves_a_failure(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: list[Any] = []
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(raises_at_once)
        assert job.outcome is None
        job.on_settled(lambda it: outcomes.append(type(it.outcome)))
        await job.wait_done()
        del job
        gc.collect()
    assert outcomes == [outcome.Error]
    assert "its exception was never retrieved" in caplog.text


@pytest.mark.trio_only("its threads are Trio's")
async def test_another_thread_cannot_add_a_callback(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        for job in (lanes.submit_nowait(trio.sleep, 1), lanes.submit_nowait(returns_at_once)):
            with pytest.raises(RuntimeError, match="one thread"):
                await trio.to_thread.run_sync(job.on_settled, print)


async def test_a_callback_is_a_synchronous_function(autojump_clock: MockClock) -> None:
    async def is_async(job: Job[Any]) -> None:
        raise AssertionError

    class IsAsync:
        async def __call__(self, job: Job[Any]) -> None:
            raise AssertionError

    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(trio.sleep, 1)
        for bad in (is_async, IsAsync(), 5, None):
            with pytest.raises(TypeError, match="callback"):
                job.on_settled(bad)  # type: ignore[arg-type]


async def test_outcome_is_what_wait_gives(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        good = lanes.submit_nowait(returns_at_once)
        bad = lanes.submit_nowait(raises_at_once)
        gone = lanes.submit_nowait(returns_at_once)
        gone.cancel("enough")
        assert await good.wait() == "value"
        assert good.outcome == outcome.Value("value")
        await bad.wait_done()
        assert isinstance(bad.outcome, outcome.Error)
        assert bad.outcome.error is bad.exception
        assert isinstance(gone.outcome, outcome.Error)
        assert isinstance(gone.outcome.error, JobCancelledError)


async def test_waiting_since_is_when_the_wait_began_and_none_until_the_job_is_due(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        first = lanes.submit_nowait(trio.sleep, 10)
        assert first.waiting_since == 0.0
        await trio.sleep(1)
        waits = lanes.submit_nowait(trio.sleep, 1)
        delayed = lanes.submit_nowait(trio.sleep, 1, delay=3)
        assert (waits.waiting_since, delayed.waiting_since) == (1.0, None)
        await trio.sleep(4)
        assert (waits.waiting_since, delayed.waiting_since) == (1.0, 4.0)


async def test_a_job_that_is_readmitted_begins_to_wait_anew(autojump_clock: MockClock) -> None:
    async def again() -> None:
        job = current_job()
        assert job is not None
        await trio.sleep(3)
        await job.readmit()

    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(again)
        await trio.sleep(1)
        lanes.pause()
        await trio.sleep(5)
        assert job.waiting_since == 3.0
        lanes.resume()


async def test_lane_label_is_the_name_of_the_template(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1, "host-*": 1}) as lanes:
        job = lanes.submit_nowait(trio.sleep, 1, lane="host-a")
        assert (job.lane, job.lane_label) == ("host-a", "host-*")
        other = lanes.submit_nowait(trio.sleep, 1)
        assert other.lane_label == "main"
        await job.wait()
        await wait_all_tasks_blocked()
        assert job.lane_label == "host-*"
