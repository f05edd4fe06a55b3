"""`asyncio.Task.cancel` at any point of a caller, and the block of the lanes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from trio_lanes import (
    Job,
    JobCancelledError,
    JobState,
    LaneConfig,
    LaneInstrument,
    LanesClosedError,
    current_job,
)
from trio_lanes.aio import Lanes, open_lanes

pytestmark = pytest.mark.asyncio_only


async def returns_anyway() -> str:
    try:
        await asyncio.sleep(2)
    except asyncio.CancelledError:
        await asyncio.sleep(1)
    return "value"


async def stubborn_raises() -> None:
    try:
        await asyncio.sleep(2)
    finally:
        raise KeyError("its own")


async def test_run_whose_caller_is_cancelled_goes_on_until_its_job_has_ended() -> None:
    async def cleans_up() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(3)

    async with open_lanes() as lanes:
        caller = asyncio.create_task(lanes.run(cleans_up))
        await asyncio.sleep(1)
        (job,) = lanes.jobs()
        for _ in range(3):
            caller.cancel()
            await asyncio.sleep(0.5)
        assert job.state is JobState.RUNNING
        await asyncio.wait([caller])
        assert caller.cancelled()
        assert job.finished_at == asyncio.get_running_loop().time() == 4
        assert isinstance(job.exception, JobCancelledError)


async def test_run_whose_caller_is_cancelled_gives_what_the_body_raised() -> None:
    async with open_lanes() as lanes:
        caller = asyncio.create_task(lanes.run(stubborn_raises))
        await asyncio.sleep(1)
        caller.cancel()
        with pytest.raises(KeyError):
            await caller


async def test_a_value_is_not_lost_and_the_cancellation_comes_again_at_the_next_wait() -> None:
    reached: list[object] = []

    async def caller() -> None:
        while True:
            reached.append(await lanes.run(returns_anyway))
            await asyncio.sleep(10)

    async with open_lanes() as lanes:
        task = asyncio.create_task(caller())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert reached == ["value"]
        assert asyncio.get_running_loop().time() == 2


async def test_a_timeout_around_run_that_is_left_with_a_value_cancels_nothing_later() -> None:
    async with open_lanes() as lanes:
        async with asyncio.timeout(1) as timeout:
            assert await lanes.run(returns_anyway) == "value"
        assert timeout.expired()
        await asyncio.sleep(10)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


async def test_a_timeout_around_run_ends_it() -> None:
    async with open_lanes() as lanes:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await lanes.run(asyncio.sleep, 10)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lanes.run(asyncio.sleep, 10), 1)
        assert lanes.jobs() == []


class Ends(LaneInstrument):
    """Counts how often each job settles."""

    def __init__(self) -> None:
        self.submitted: list[Job[Any]] = []
        self.settled: list[Job[Any]] = []

    def job_submitted(self, job: Job[Any]) -> None:
        self.submitted.append(job)

    def job_finished(self, job: Job[Any]) -> None:
        self.settled.append(job)


async def by_run(lanes: Lanes) -> None:
    await lanes.run(asyncio.sleep, 1, session="alice")


async def by_submit(lanes: Lanes) -> None:
    await (await lanes.submit(asyncio.sleep, 1, session="alice")).wait()


async def by_run_inside_a_job(lanes: Lanes) -> None:
    await lanes.run(by_run, lanes, lane="outer")


async def by_submit_inside_a_job(lanes: Lanes) -> None:
    await lanes.run(by_submit, lanes, lane="outer")


async def by_a_loan(lanes: Lanes) -> None:
    async def body() -> None:
        job = current_job()
        assert job is not None
        await lanes.run(asyncio.sleep, 1, yield_slot=True)
        async with job.yield_slot():
            await asyncio.sleep(0)
        await job.readmit()

    await lanes.run(body)


async def by_a_nursery(lanes: Lanes) -> None:
    async with lanes.open_nursery() as jobs:
        for _ in range(2):
            jobs.start_soon(asyncio.sleep, 1, lane="outer")


async def by_a_map(lanes: Lanes) -> None:
    async with lanes.map(asyncio.sleep, [1, 1, 1]) as results:
        async for _ in results:
            pass


async def by_a_run_that_returns_anyway(lanes: Lanes) -> None:
    assert await lanes.run(returns_anyway) == "value"


async def by_waits(lanes: Lanes) -> None:
    job = lanes.submit_nowait(asyncio.sleep, 1, lane="outer")
    await job.wait_started()
    await lanes.wait_active(timeout=0.5)
    await job.wait_done()
    await lanes.wait_idle()


async def by_lanes_of_its_own(lanes: Lanes) -> None:
    async with open_lanes() as others:
        others.submit_nowait(returns_anyway)
        others.submit_nowait(asyncio.sleep, 1)
        await others.drain(grace=0.5, cancel_grace=0.5)


CALLERS = [
    by_run,
    by_submit,
    by_a_run_that_returns_anyway,
    by_waits,
    by_lanes_of_its_own,
    by_run_inside_a_job,
    by_submit_inside_a_job,
    by_a_loan,
    by_a_nursery,
    by_a_map,
]


@pytest.mark.no_cover  # other tests are about each line of this
@pytest.mark.parametrize("by", ["a cancellation", "a timeout", "a task group"])
@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("full", [False, True])
async def test_a_caller_may_be_cancelled_at_each_turn_of_the_loop(
    caller: Callable[[Lanes], Awaitable[None]], full: bool, by: str
) -> None:
    """Each job settles once, no slot is lost, and one cancellation ends the caller, and no more."""
    ends = Ends()
    asks: Callable[[], object]
    finished = False

    async def fails(now: asyncio.Event) -> None:
        await now.wait()
        raise KeyError

    async def calls() -> None:
        nonlocal asks, finished
        task = asyncio.current_task()
        assert task is not None
        asks = task.cancel
        try:
            if by == "a timeout":
                async with asyncio.timeout(None) as timeout:
                    asks = lambda: timeout.reschedule(asyncio.get_running_loop().time())  # noqa: E731
                    await caller(lanes)
                    finished = True
                    await asyncio.sleep(1000)
            elif by == "a task group":
                async with asyncio.TaskGroup() as group:
                    now = asyncio.Event()
                    asks = now.set
                    group.create_task(fails(now))
                    await caller(lanes)
                    finished = True
                    await asyncio.sleep(1000)
            else:
                await caller(lanes)
                finished = True
                await asyncio.sleep(1000)
        except* (TimeoutError, KeyError):
            assert task.cancelling() == 0
            await asyncio.sleep(3)
            await asyncio.sleep(3)

    most = 1 if full else float("inf")
    config = {"main": LaneConfig(max_waiting=most), "outer": LaneConfig(concurrency=3)}
    async with open_lanes(config, instruments=[ends]) as lanes:
        turns = 0
        while not finished:
            turns += 1
            others = [lanes.submit_nowait(asyncio.sleep, 0.1) for _ in range(2)]
            task = asyncio.ensure_future(calls())
            for _ in range(turns):
                await asyncio.sleep(0 if turns < 60 else 0.1)
            if by == "a cancellation":
                task.cancel()
            else:
                asks()
            done, _ = await asyncio.wait([task], timeout=50)
            assert done
            assert task.cancelled() if by == "a cancellation" else task.exception() is None
            for job in others:
                await job.wait()
            await lanes.wait_idle()
            assert not any(lane.limiter.borrowed_tokens for lane in lanes.lanes())
        assert turns > 10
    assert len(ends.settled) == len(set(ends.settled)) == len(ends.submitted)


@pytest.mark.parametrize("ends", ["an error", "a timeout", "a task factory"])
async def test_a_failure_that_closes_the_lanes_for_good_is_one_line_in_the_log(
    ends: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A web server serves on then, and each request is a `LanesClosedError`."""

    async def fails(seconds: float) -> None:
        await asyncio.sleep(seconds)
        raise KeyError("failed")

    def factory(*args: Any, **options: Any) -> Any:
        raise KeyError("failed")

    loop = asyncio.get_running_loop()
    with suppress(ExceptionGroup):
        async with open_lanes() as lanes:
            await lanes.run(asyncio.sleep, 1)
            if ends == "a task factory":
                loop.set_task_factory(factory)
            lanes.start_soon(fails, 1, timeout=0.5 if ends == "a timeout" else 5)
            loop.set_task_factory(None)
            if ends == "an error":
                lanes.start_soon(fails, 1)
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(2)
            for _ in range(2):
                with pytest.raises(LanesClosedError):
                    lanes.submit_nowait(asyncio.sleep, 0)
    raised = "JobTimeoutError" if ends == "a timeout" else "KeyError"
    (line,) = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert f"lanes are closed for good since job 2 raised {raised}" in line
    assert line.endswith("each call is now a LanesClosedError")


async def test_a_failure_in_lanes_that_are_left_already_is_no_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            raise KeyError("failed")

    with pytest.raises(ExceptionGroup):
        async with open_lanes() as lanes:
            lanes.start_soon(fails)
            await asyncio.sleep(1)
            raise ValueError
    assert not [one for one in caplog.records if "for good" in one.getMessage()]


async def test_a_failure_of_start_soon_cancels_the_block_as_a_task_group_does() -> None:
    async def fails() -> None:
        await asyncio.sleep(1)
        raise KeyError("failed")

    task = asyncio.current_task()
    assert task is not None
    with pytest.RaisesGroup(KeyError):
        async with open_lanes() as lanes:
            lanes.start_soon(fails)
            job = lanes.submit_nowait(asyncio.sleep, 100)
            await asyncio.sleep(100)
    assert asyncio.get_running_loop().time() == 1
    assert task.cancelling() == 0
    assert isinstance(job.exception, JobCancelledError)


async def test_an_exception_of_the_block_cancels_all_and_leaves_in_a_group() -> None:
    with pytest.RaisesGroup(ValueError):
        async with open_lanes() as lanes:
            job = lanes.submit_nowait(asyncio.sleep, 100)
            raise ValueError
    assert job.state is JobState.CANCELLED


async def test_a_failure_and_a_cancellation_from_outside_leave_as_from_a_task_group() -> None:
    async def raises_when_cancelled() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            raise KeyError("failed")

    async def block() -> None:
        with pytest.RaisesGroup(KeyError):
            async with open_lanes() as lanes:
                lanes.start_soon(raises_when_cancelled)
                await asyncio.sleep(100)
        await asyncio.sleep(100)

    task = asyncio.create_task(block())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert asyncio.get_running_loop().time() == 1


async def test_a_cancellation_while_the_block_is_left_cancels_what_runs() -> None:
    async def block() -> None:
        async with open_lanes() as lanes:
            jobs.append(lanes.submit_nowait(asyncio.sleep, 100))

    jobs: list[Job[Any]] = []
    task = asyncio.create_task(block())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert isinstance(jobs[0].exception, JobCancelledError)


async def test_a_cancellation_while_the_block_is_entered_leaves_it() -> None:
    for turns in range(12):
        task = asyncio.create_task(open_lanes().__aenter__())
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.done():
            break
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or task.exception() is None
        if not task.cancelled():
            break
    assert turns > 2


async def test_a_cancellation_while_other_lanes_are_entered_leaves_the_lanes_that_are_open() -> (
    None
):
    async with open_lanes() as lanes:
        for turns in range(12):
            task = asyncio.create_task(open_lanes().__aenter__())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        assert await lanes.run(asyncio.sleep, 1, "value") == "value"


async def test_a_cancellation_while_lanes_wait_for_the_end_of_others_is_not_lost() -> None:
    async def use(seconds: float) -> None:
        async with open_lanes() as lanes:
            await lanes.run(asyncio.sleep, 0)
            await asyncio.sleep(seconds)

    for turns in range(25):
        for more in range(6):
            before = asyncio.create_task(use(0))
            for _ in range(turns):
                await asyncio.sleep(0)
            task = asyncio.create_task(use(1000))
            for _ in range(more):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            await before
    assert asyncio.get_running_loop().time() < 10


async def test_a_task_that_has_cancelled_itself_submits_nothing() -> None:
    async def cancels_itself(verb: Callable[..., Awaitable[object]]) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await verb(asyncio.sleep, 1)

    ends = Ends()
    async with open_lanes(instruments=[ends]) as lanes:
        for verb in (lanes.run, lanes.submit):
            task = asyncio.create_task(cancels_itself(verb))
            await asyncio.wait([task])
            assert task.cancelled()
    assert ends.submitted == []


async def test_the_message_of_a_cancellation_is_kept_also_if_it_comes_again() -> None:
    async def caller(body: Callable[[], Awaitable[object]]) -> None:
        await lanes.run(body)
        await asyncio.sleep(100)

    async with open_lanes() as lanes:
        for body in (returns_anyway, asyncio.get_running_loop().create_future):
            task = asyncio.create_task(caller(body))
            await asyncio.sleep(1)
            task.cancel("the reason")
            with pytest.raises(asyncio.CancelledError, match="the reason"):
                await task


async def test_lanes_may_be_entered_in_one_task_and_left_in_another() -> None:
    """As fixtures of pytest-asyncio are."""
    manager = open_lanes()
    lanes = await asyncio.create_task(manager.__aenter__())
    assert await lanes.run(asyncio.sleep, 1, "value") == "value"
    await asyncio.create_task(manager.__aexit__(None, None, None))


async def test_lanes_that_have_ended_still_answer() -> None:
    async with open_lanes() as lanes:
        job = lanes.submit_nowait(asyncio.sleep, 1, "value")
    assert await job.wait() == "value"
    await lanes.wait_idle()
    assert (await lanes.drain()).finished == 0


def test_a_system_exit_leaves_as_it_is() -> None:
    async def main() -> None:
        async with open_lanes():
            raise SystemExit(3)

    with pytest.raises(SystemExit) as caught:
        asyncio.run(main())
    assert caught.value.code == 3


async def test_a_caller_that_is_cancelled_while_it_waits_for_room_leaves_no_job() -> None:
    ran: list[str] = []

    async def body() -> None:
        ran.append("body")

    async with open_lanes({"main": LaneConfig(concurrency=1, max_waiting=1)}) as lanes:
        first, second = (lanes.submit_nowait(asyncio.sleep, 5) for _ in range(2))
        for verb in (lanes.run, lanes.submit):
            task = asyncio.create_task(verb(body))
            await asyncio.sleep(1)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        await second.wait()
        assert first.done
    assert ran == []


@pytest.mark.parametrize("runs", [True, False])
async def test_a_caller_that_is_cancelled_as_it_gets_room_has_a_job(runs: bool) -> None:
    got: list[object] = []

    async def submits(lanes: Lanes) -> None:
        got.append(await lanes.submit(asyncio.sleep, 1))
        await asyncio.sleep(100)

    async with open_lanes({"main": LaneConfig(concurrency=1, max_waiting=1)}) as lanes:
        lanes.submit_nowait(asyncio.sleep, 5)
        second = lanes.submit_nowait(asyncio.sleep, 5)
        work = lanes.run(asyncio.sleep, 100) if runs else submits(lanes)
        task = asyncio.create_task(work)
        await asyncio.sleep(1)
        second.cancel()  # which gives its room to the caller
        assert lanes.statistics().waiting == 1
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    assert [job.state for job in got if isinstance(job, Job)] == [JobState.SUCCEEDED] * (not runs)


async def test_an_error_of_the_block_leaves_beside_the_failure_that_cancelled_it() -> None:
    async def fails() -> None:
        raise KeyError("of the job")

    with pytest.RaisesGroup(KeyError, ValueError):
        async with open_lanes() as lanes:
            lanes.start_soon(fails)
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                raise ValueError("of the block") from None
