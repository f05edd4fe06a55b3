"""What ends all lanes at once: `start_soon`, the block, an outer scope, a BaseException."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from tests.support.bodies import (
    BodyError,
    a_nursery_that_never_ends,
    cleans_up_shielded,
    never_ends,
    raises,
    raises_at_once,
    raises_beside_its_cancellation,
    raises_when_cancelled,
    returns,
    returns_at_once,
    returns_in_spite_of_all,
    swallows_its_cancellation,
)
from trio_lanes import (
    Job,
    JobCancelledError,
    JobState,
    JobTimeoutError,
    LaneConfig,
    Lanes,
    LanesClosedError,
    open_lanes,
)

pytestmark = pytest.mark.both_doors

SUCCEEDED, FAILED, CANCELLED = JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED


async def test_a_failure_in_start_soon_leaves_the_lanes_and_the_others_are_told(
    autojump_clock: MockClock,
) -> None:
    jobs: list[Job[str]] = []
    with pytest.RaisesGroup(BodyError):
        async with open_lanes({"main": 2}) as lanes:
            lanes.start_soon(raises)
            jobs += [lanes.submit_nowait(body) for body in (never_ends, returns, returns)]
            await trio.sleep_forever()
    assert trio.current_time() == 2
    running, *waiting = jobs
    with pytest.raises(JobCancelledError):
        await running.wait()
    for job in waiting:
        with pytest.raises(LanesClosedError):
            await job.wait()


@pytest.mark.parametrize("body", [raises_at_once, raises])
async def test_what_start_soon_raises_is_that_very_exception(
    body: Callable[[], Awaitable[str]], autojump_clock: MockClock
) -> None:
    error = BodyError()

    async def raises_it() -> None:
        try:
            await body()
        except BodyError:
            raise error from None

    with pytest.raises(ExceptionGroup) as caught:
        async with open_lanes() as lanes:
            lanes.start_soon(raises_it)
    assert caught.value.exceptions == (error,)


async def test_a_timeout_in_start_soon_is_a_failure(autojump_clock: MockClock) -> None:
    with pytest.RaisesGroup(JobTimeoutError):
        async with open_lanes() as lanes:
            lanes.start_soon(never_ends, timeout=1)


async def test_a_job_of_start_soon_that_is_cancelled_or_cleared_is_no_failure(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(never_ends)
        lanes.start_soon(returns, queue_timeout=0.5)
        lanes.start_soon(returns)
        (running, *_) = lanes.jobs()
        await trio.sleep(1)
        assert lanes.clear() == 1
        running.cancel()
        lanes.start_soon(returns_in_spite_of_all)
        await trio.sleep(1)
        assert lanes.reset() == 1


async def test_several_failures_of_start_soon_leave_together(autojump_clock: MockClock) -> None:
    with pytest.RaisesGroup(BodyError, BodyError):
        async with open_lanes({"main": 4}) as lanes:
            lanes.start_soon(raises)
            lanes.start_soon(raises_when_cancelled)


async def runs(lanes: Lanes) -> None:
    await lanes.run(returns)


async def waits(lanes: Lanes) -> None:
    await lanes.submit_nowait(returns).wait()


async def waits_for_room(lanes: Lanes) -> None:
    lanes.submit_nowait(returns)
    await lanes.submit(returns)


async def maps(lanes: Lanes) -> None:
    async with lanes.map(lambda item: returns(), range(2)) as results:
        async for _ in results:
            raise AssertionError("no item begins")


async def has_children(lanes: Lanes) -> None:
    async with lanes.open_nursery() as jobs:
        jobs.start_soon(returns)


async def waits_for_a_child(lanes: Lanes) -> None:
    async with lanes.open_nursery() as jobs:
        await jobs.submit_nowait(returns).wait()


@pytest.mark.parametrize(
    "way", [runs, waits, waits_for_room, maps, has_children, waits_for_a_child]
)
async def test_the_block_is_not_told_what_follows_from_a_failure_but_cancelled_by_it(
    way: Callable[[Lanes], Awaitable[None]], autojump_clock: MockClock
) -> None:
    told: list[BaseException] = []
    with pytest.RaisesGroup(BodyError):
        async with open_lanes({"main": LaneConfig(max_waiting=1)}) as lanes:
            lanes.start_soon(raises)
            try:
                await way(lanes)
            except LanesClosedError as error:
                told.append(error)
                raise
    assert told == []


@pytest.mark.parametrize("way", [runs, waits])
async def test_a_body_that_waits_for_another_job_is_cancelled_with_the_lanes(
    way: Callable[[Lanes], Awaitable[None]], autojump_clock: MockClock
) -> None:
    with pytest.RaisesGroup(OSError):
        async with open_lanes({"main": 1, "other": 1}) as lanes:
            lanes.submit_nowait(never_ends)
            job = lanes.submit_nowait(way, lanes, lane="other")
            await trio.sleep(1)
            raise OSError
    assert job.state is CANCELLED
    assert type(job.exception) is JobCancelledError


# ---- the block and outer scopes


async def test_what_never_started_is_told_that_the_lanes_closed_when_they_crash(
    autojump_clock: MockClock,
) -> None:
    async def kept_waiting(job: Job[str]) -> None:
        with pytest.raises(LanesClosedError):
            await job.wait()

    async with trio.open_nursery() as waiters:
        with pytest.RaisesGroup(BodyError):
            async with open_lanes({"main": 1}) as lanes:
                running = lanes.submit_nowait(never_ends)
                jobs = [
                    lanes.submit_nowait(returns),
                    lanes.submit_nowait(returns, session="alice"),
                    lanes.submit_nowait(returns, session="alice"),
                    lanes.submit_nowait(returns, lane="main", queue_timeout=50),
                ]
                for job in jobs:
                    waiters.start_soon(kept_waiting, job)
                await trio.sleep(1)
                raise BodyError
    for job in jobs:
        assert job.state is CANCELLED
        assert type(job.exception) is LanesClosedError
        assert job.started_at is None
    assert running.state is CANCELLED
    assert type(running.exception) is JobCancelledError


@pytest.mark.many_seeds(5)
async def test_outer_cancellation_cancels_what_runs_and_starts_nothing(
    autojump_clock: MockClock,
) -> None:
    with trio.move_on_after(1) as scope:
        async with open_lanes({"main": 3}) as lanes:
            running = [
                lanes.submit_nowait(body)
                for body in (never_ends, a_nursery_that_never_ends, cleans_up_shielded)
            ]
            waiting = [lanes.submit_nowait(returns_at_once) for _ in range(3)]
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() == 2
    for job in running:
        assert job.state is CANCELLED
        assert type(job.exception) is JobCancelledError
    for job in waiting:
        assert job.state is CANCELLED
        assert type(job.exception) is LanesClosedError


async def test_bodies_that_return_or_raise_in_an_outer_cancellation_are_believed(
    autojump_clock: MockClock,
) -> None:
    with pytest.RaisesGroup(OSError):
        async with open_lanes({"main": 4}) as lanes:
            returned = lanes.submit_nowait(swallows_its_cancellation)
            raised = lanes.submit_nowait(raises_when_cancelled)
            grouped = lanes.submit_nowait(raises_beside_its_cancellation)
            await trio.sleep(1)
            raise OSError
    assert (returned.state, await returned.wait()) == (SUCCEEDED, "value")
    assert (raised.state, type(raised.exception)) == (FAILED, BodyError)
    assert grouped.state is FAILED
    assert isinstance(grouped.exception, ExceptionGroup)
    assert pytest.RaisesGroup(BodyError).matches(grouped.exception)


@pytest.mark.trio_only("asyncio has no shields")
@pytest.mark.parametrize("body", [never_ends, a_nursery_that_never_ends])
async def test_a_job_that_never_started_is_told_that_the_lanes_were_cancelled_not_that_a_job_failed(
    body: Callable[[], Awaitable[str]], autojump_clock: MockClock
) -> None:
    jobs: list[Job[str]] = []
    scope = trio.CancelScope()

    async def holder() -> None:
        with scope:
            async with open_lanes({"main": 1}) as lanes:
                jobs.extend([lanes.submit_nowait(body), lanes.submit_nowait(returns)])
                with trio.CancelScope(shield=True):
                    await trio.sleep(5)  # so that the lanes hear of it from the running job

    async with trio.open_nursery() as nursery:
        nursery.start_soon(holder)
        await trio.sleep(1)
        scope.cancel()
        with pytest.raises(LanesClosedError, match="the lanes were cancelled"):
            await jobs[1].wait()
        assert trio.current_time() == 1


# ---- a BaseException that is no Exception


class Leaving(BaseException):
    """No Exception."""


async def leaves() -> str:
    await trio.sleep(1)
    raise Leaving


async def leaves_at_once() -> str:
    raise Leaving


async def leaves_in_a_group() -> str:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leaves)
    raise AssertionError


@pytest.mark.parametrize("body", [leaves, leaves_at_once, leaves_in_a_group])
@pytest.mark.parametrize("handle", [True, False])
async def test_a_base_exception_leaves_the_lanes_and_its_waiter_gets_a_job_cancelled_from_it(
    body: Callable[[], Awaitable[str]], handle: bool, autojump_clock: MockClock
) -> None:
    caught: list[BaseException] = []

    async def waiter(job: Job[str]) -> None:
        with pytest.raises((JobCancelledError, LanesClosedError)) as told:
            await job.wait()
        caught.append(told.value)

    with pytest.raises(BaseExceptionGroup) as left:
        async with trio.open_nursery() as waiters, open_lanes({"main": 2}) as lanes:
            if handle:
                job = lanes.submit_nowait(body)
                waiters.start_soon(waiter, job)
            else:
                lanes.start_soon(body)
                (job,) = lanes.jobs()
            running = lanes.submit_nowait(never_ends)
            waiting = lanes.submit_nowait(returns)
            await trio.sleep_forever()
    assert pytest.RaisesGroup(Leaving, flatten_subgroups=True).matches(left.value)
    assert job.state is FAILED
    assert type(job.exception) is JobCancelledError
    cause = job.exception.__cause__
    assert isinstance(cause, Leaving | BaseExceptionGroup)
    assert (running.state, type(running.exception)) == (CANCELLED, JobCancelledError)
    assert (waiting.state, type(waiting.exception)) == (CANCELLED, LanesClosedError)


async def test_run_whose_body_raises_a_base_exception_gets_a_job_cancelled(
    autojump_clock: MockClock,
) -> None:
    told: list[JobCancelledError] = []
    with pytest.RaisesGroup(Leaving):
        async with open_lanes() as lanes:
            try:
                await lanes.run(leaves)
            except JobCancelledError as error:
                told.append(error)
    (error,) = told
    assert isinstance(error.__cause__, Leaving)
