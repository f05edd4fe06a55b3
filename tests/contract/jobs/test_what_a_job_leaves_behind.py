"""What a job leaves behind is its own failure, and never another job's."""

from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest
import trio
from trio.testing import (
    MockClock,
)

from tests.support.track import Track
from trio_lanes import JobState, current_job, open_lanes


async def block() -> None:
    await trio.lowlevel.checkpoint()


async def do_not_block() -> None:
    pass


both = pytest.mark.parametrize("pause", [do_not_block, block])


@both
async def test_a_cancel_scope_that_a_job_left_open_is_its_own_failure_and_cancels_no_other_job(
    pause: Callable[[], Awaitable[None]], autojump_clock: MockClock
) -> None:
    track = Track()

    async def careless() -> None:
        trio.move_on_after(1).__enter__()
        await pause()

    async with open_lanes({"main": 1}) as lanes:
        culprits = [lanes.submit_nowait(careless), lanes.submit_nowait(careless)]
        jobs = [lanes.submit_nowait(track.sleep, n, 5) for n in range(3)]
        for culprit in culprits:
            with pytest.raises(RuntimeError, match="Cancel scope stack corrupted"):
                await culprit.wait()
            assert culprit.state is JobState.FAILED
        for n, job in enumerate(jobs):
            assert await job.wait() == n
    assert track.ended == [0, 1, 2]


@both
async def test_a_nursery_that_a_job_left_open_is_its_own_failure_and_cancels_no_other_job(
    pause: Callable[[], Awaitable[None]], autojump_clock: MockClock
) -> None:
    track = Track()

    async def careless() -> None:
        nursery = await trio.open_nursery().__aenter__()
        nursery.start_soon(trio.sleep, 9)
        await pause()

    async with open_lanes({"main": 1}) as lanes:
        culprits = [lanes.submit_nowait(careless), lanes.submit_nowait(careless)]
        jobs = [lanes.submit_nowait(track.sleep, n, 5) for n in range(3)]
        for culprit in culprits:
            with pytest.raises(RuntimeError, match="Cancel scope stack corrupted"):
                await culprit.wait()
            assert culprit.state is JobState.FAILED
        for n, job in enumerate(jobs):
            assert await job.wait() == n
    assert track.ended == [0, 1, 2]
    assert trio.current_time() == 15


@both
async def test_a_job_that_left_nurseries_open_holds_its_slot_until_their_tasks_have_ended(
    pause: Callable[[], Awaitable[None]], autojump_clock: MockClock
) -> None:
    async def cleans_up(seconds: float) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(seconds)

    async def careless() -> None:
        for seconds in (2, 3):
            nursery = await trio.open_nursery().__aenter__()
            nursery.start_soon(cleans_up, seconds)
        await pause()
        await trio.sleep(1)

    async with open_lanes({"main": 1}) as lanes:
        culprit = lanes.submit_nowait(careless)
        successor = lanes.submit_nowait(trio.sleep, 1)
        await successor.wait()
        assert isinstance(culprit.exception, RuntimeError)
        assert (culprit.finished_at, successor.started_at) == (4, 4)


@pytest.mark.filterwarnings(
    "ignore:.*garbage collected before it had been exhausted:ResourceWarning"
)
async def test_an_abandoned_async_generator_that_holds_a_nursery_harms_no_other_job(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    track = Track()

    async def holds_a_nursery() -> AsyncGenerator[int, None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 9)
            yield 1
            yield 2

    async def careless() -> None:
        async for _ in holds_a_nursery():
            break

    async with open_lanes({"main": 1}) as lanes:
        culprits = [lanes.submit_nowait(careless) for _ in range(3)]
        jobs = [lanes.submit_nowait(track.sleep, n, 5) for n in range(3)]
        for n, job in enumerate(jobs):
            assert await job.wait() == n
        for culprit in culprits:
            assert isinstance(culprit.exception, RuntimeError)
        assert await lanes.run(track.sleep, "later", 5) == "later"
    assert track.ended == [0, 1, 2, "later"]


async def test_an_error_is_in_the_context_of_that_of_the_scope_which_its_job_left_open(
    autojump_clock: MockClock,
) -> None:
    async def careless(seconds: float) -> None:
        trio.CancelScope().__enter__()
        if seconds:
            await trio.sleep(seconds)
        raise ExceptionGroup("", [KeyError(seconds)])

    async with open_lanes({"main": 1}) as lanes:
        for seconds in (0, 1):
            job = lanes.submit_nowait(careless, seconds)
            with pytest.raises(RuntimeError, match="Cancel scope stack corrupted") as told:
                await job.wait()
            assert isinstance(told.value.__context__, ExceptionGroup)


@both
@pytest.mark.filterwarnings(
    "ignore:.*garbage collected before it had been exhausted:ResourceWarning"
)
async def test_an_abandoned_async_generator_that_holds_a_scope_harms_no_other_job(
    pause: Callable[[], Awaitable[None]],
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    track = Track()

    async def holds_a_scope() -> AsyncGenerator[int, None]:
        with trio.move_on_after(1):
            yield 1
            yield 2

    async def careless() -> None:
        async for _ in holds_a_scope():
            break
        await pause()

    async with open_lanes({"main": 1}) as lanes:
        culprits = [lanes.submit_nowait(careless) for _ in range(3)]
        jobs = [lanes.submit_nowait(track.sleep, n, 5) for n in range(3)]
        for n, job in enumerate(jobs):
            assert await job.wait() == n
        for culprit in culprits:
            assert culprit.done
            assert isinstance(culprit.exception, RuntimeError | None)
        assert await lanes.run(track.sleep, "later", 5) == "later"
    assert track.ended == [0, 1, 2, "later"]


@both
async def test_the_custom_sleep_data_that_a_job_set_is_not_its_successors(
    pause: Callable[[], Awaitable[None]], autojump_clock: MockClock
) -> None:
    found: list[object] = []

    async def body() -> None:
        await pause()
        task = trio.lowlevel.current_task()
        found.append(task.custom_sleep_data)
        task.custom_sleep_data = "left"

    async with open_lanes({"main": 1}) as lanes:
        for _ in range(3):
            lanes.submit_nowait(body)
    assert found == [None] * 3


@both
async def test_a_job_does_not_inherit_the_deadline_or_the_cancellation_of_the_job_before_it(
    pause: Callable[[], Awaitable[None]], autojump_clock: MockClock
) -> None:
    async def body() -> float:
        await pause()
        return trio.current_effective_deadline()

    async def cancelled() -> float:
        job = current_job()
        assert job is not None
        job.cancel()
        return 0

    async with open_lanes({"main": 1}) as lanes:
        jobs = [
            lanes.submit_nowait(body, timeout=5),
            lanes.submit_nowait(body),
            lanes.submit_nowait(cancelled),
            lanes.submit_nowait(body),
            lanes.submit_nowait(body, timeout=7),
        ]
        found = [await job.wait() for job in jobs]
        starts = [job.started_at for job in jobs]
        assert starts[0] is not None
        assert starts[4] is not None
        inf = float("inf")
        assert found == [starts[0] + 5, inf, 0, inf, starts[4] + 7]
