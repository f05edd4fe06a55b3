"""Bodies as asyncio tasks: what works in them, and what they hold until they have ended."""

import asyncio
import contextvars
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
import trio

import trio_lanes
from tests.support.doors import VirtualLoop
from tests.support.loops import EAGER
from trio_lanes import (
    JobCancelledError,
    JobState,
    JobTimeoutError,
    LaneConfig,
    LaneDeadlockError,
    LaneFullError,
    LaneInstrument,
    current_job,
)
from trio_lanes.aio import Lanes, open_lanes

pytestmark = pytest.mark.asyncio_only


async def stays(seconds: float) -> None:
    """Go on that long after a cancellation."""
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        await asyncio.sleep(seconds)
        raise


async def test_a_body_has_all_of_asyncio() -> None:
    async def body() -> list[Any]:
        task = asyncio.current_task()
        assert task is not None
        assert task.get_name() == "the job"
        async with asyncio.TaskGroup() as group:
            children = [group.create_task(asyncio.sleep(n, n)) for n in (2, 1)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.sleep(10)
        return [child.result() for child in children]

    async with open_lanes() as lanes:
        assert await lanes.run(body, name="the job") == [2, 1]
        assert asyncio.get_running_loop().time() == 3


async def test_a_body_runs_in_a_copy_of_the_submitters_context() -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name")
    name.set("alice")
    seen = []

    async def body() -> None:
        seen.append(name.get())
        name.set("changed")
        await asyncio.sleep(1)
        seen.append(name.get())

    async with open_lanes() as lanes:
        job = lanes.submit_nowait(body)
        name.set("bob")
        await job.wait()
    assert (seen, name.get()) == (["alice", "changed"], "bob")


async def test_the_current_job_is_that_of_a_bodys_tasks_and_of_no_thread_or_later_task() -> None:
    async def which() -> object:
        await asyncio.sleep(2)
        return current_job()

    later: list[asyncio.Task[object]] = []

    async def body() -> list[object]:
        own = current_job()
        child = await asyncio.create_task(asyncio.sleep(0, current_job()))
        thread = await asyncio.to_thread(current_job)
        later.append(asyncio.create_task(which()))
        return [own, child, thread]

    async with open_lanes() as lanes:
        job = lanes.submit_nowait(body)
        assert await job.wait() == [job, job, None]
        assert await later[0] is None
        assert current_job() is None
        assert job.parent is None


async def test_what_outlives_a_body_does_not_keep_its_job_alive() -> None:
    outlives: list[object] = []

    async def body() -> bytearray:
        loop = asyncio.get_running_loop()
        outlives.append(loop.call_later(60, print))
        outlives.append(loop.create_task(asyncio.sleep(60)))
        outlives.append(contextvars.copy_context())
        assert current_job() is not None
        return bytearray(10)

    async with open_lanes() as lanes:
        job = lanes.submit_nowait(body)
        assert await job.wait() == bytearray(10)
        ended = weakref.ref(job)
        del job
        gc.collect()
        assert ended() is None
    assert len(outlives) == 3


@pytest.mark.parametrize("ends", ["a timeout", "a cancellation"])
async def test_the_slot_is_held_until_the_task_has_ended(ends: str) -> None:
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(stays, 5, timeout=1 if ends == "a timeout" else float("inf"))
        behind = lanes.submit_nowait(asyncio.sleep, 0)
        await asyncio.sleep(1)
        if ends == "a cancellation":
            assert job.cancel("enough")
        await asyncio.sleep(0.5)
        assert job.cancel_called
        assert (job.state, behind.state) == (JobState.RUNNING, JobState.WAITING)
        await behind.wait()
        assert (job.finished_at, behind.started_at) == (6, 6)
        with pytest.raises(JobTimeoutError if ends == "a timeout" else JobCancelledError):
            await job.wait()


async def test_an_idle_timeout_counts_from_the_last_progress() -> None:
    async def body() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            job = current_job()
            assert job is not None
            job.progress()
        await asyncio.sleep(10)

    async with open_lanes() as lanes:
        with pytest.raises(JobTimeoutError) as caught:
            await lanes.run(body, idle_timeout=2)
        assert caught.value.kind == "idle_timeout"
        assert asyncio.get_running_loop().time() == 5


async def test_a_body_that_is_cancelled_though_no_call_asked_has_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    async with open_lanes() as lanes:
        job = lanes.submit_nowait(cancels_itself)
        with pytest.raises(JobCancelledError):
            await job.wait()
        assert job.state is JobState.FAILED
        lanes.start_soon(cancels_itself)  # leaves nothing but a line in the log
        await lanes.wait_idle()
    assert "its task was cancelled" in caplog.text


async def test_of_a_group_that_also_holds_a_cancellation_the_rest_is_given() -> None:
    async def body() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError as error:
            raise BaseExceptionGroup("both", [error, KeyError("lost")]) from None

    async with open_lanes() as lanes:
        job = lanes.submit_nowait(body)
        await asyncio.sleep(1)
        job.cancel()
        with pytest.RaisesGroup(KeyError):
            await job.wait()
        assert job.state is JobState.FAILED


async def test_a_group_of_nothing_but_cancellations_is_one() -> None:
    async def body() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError as error:
            raise BaseExceptionGroup("all", [error]) from None

    async with open_lanes() as lanes:
        job = lanes.submit_nowait(body)
        await asyncio.sleep(1)
        job.cancel()
        with pytest.raises(JobCancelledError):
            await job.wait()
        assert job.state is JobState.CANCELLED


async def test_a_base_exception_of_a_body_leaves_the_block() -> None:
    class Leaving(BaseException):
        pass

    async def leaves() -> None:
        raise Leaving

    with pytest.RaisesGroup(Leaving):
        async with open_lanes() as lanes:
            job = lanes.submit_nowait(leaves)
            await asyncio.sleep(10)
    assert isinstance(job.exception, JobCancelledError)


async def test_a_wait_inside_a_body_is_a_wait_of_its_job_also_in_a_task_that_it_starts() -> None:
    async def outer(lanes: Lanes) -> None:
        await asyncio.create_task(lanes.run(asyncio.sleep, 0, session="alice"))

    async with open_lanes() as lanes:
        with pytest.raises(LaneDeadlockError, match="session 'alice'"):
            await lanes.run(outer, lanes, session="alice")


async def test_calls_of_a_body_at_the_same_time_keep_their_order() -> None:
    order: list[int] = []

    async def child(n: int) -> None:
        order.append(n)

    async def outer() -> None:
        await asyncio.gather(*(lanes.run(child, n, session="alice") for n in range(20)))

    async with open_lanes({"main": 4}) as lanes:
        await lanes.run(outer)
    assert order == list(range(20))


async def test_calls_of_a_body_at_the_same_time_wait_for_room_in_their_order() -> None:
    order: list[int] = []

    async def child(n: int) -> None:
        order.append(n)

    async def outer() -> None:
        await asyncio.gather(*(lanes.run(child, n, lane="cron") for n in range(20)))

    async with open_lanes({"main": 1, "cron": LaneConfig(max_waiting=1)}) as lanes:
        await lanes.run(outer)
    assert order == list(range(20))


async def test_lanes_inside_a_body_are_inside_its_job() -> None:
    async def inner() -> None:
        job = current_job()
        assert job is not None
        await outer.run(asyncio.sleep, 0, session="alice")

    async def body() -> None:
        async with open_lanes() as lanes:
            await lanes.run(inner)

    async with open_lanes() as outer:
        with pytest.raises(LaneDeadlockError):
            try:
                await outer.run(body, session="alice")
            except ExceptionGroup as group:
                raise group.exceptions[0] from None


async def test_lending_lets_a_job_wait_for_one_that_needs_its_slot() -> None:
    async def outer() -> str:
        value = await lanes.run(asyncio.sleep, 1, "by run", yield_slot=True)
        job = current_job()
        assert job is not None
        async with job.yield_slot():
            assert await lanes.run(asyncio.sleep, 1, "by hand") == "by hand"
        await job.readmit()
        return value

    async with open_lanes({"main": 1}) as lanes:
        assert await lanes.run(outer) == "by run"


async def test_a_wrap_is_asyncios_and_runs_around_the_body() -> None:
    seen: list[str] = []

    async def wrap(job: trio_lanes.Job[Any], body: Callable[[], Awaitable[str]]) -> str:
        seen.append(f"before {job.name}")
        await asyncio.sleep(1)
        value = await body()
        seen.append(f"after {value}")
        return value.upper()

    async with open_lanes({"main": LaneConfig(wrap=wrap)}) as lanes:
        value: str = await lanes.run(asyncio.sleep, 1, "value", name="it")
        assert value == "VALUE"
    assert seen == ["before it", "after value"]


def test_a_task_factory_makes_the_tasks_of_bodies() -> None:
    made: list[asyncio.Task[Any]] = []

    def factory(
        loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=loop, **options)
        made.append(task)
        return task

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(factory)  # type: ignore[arg-type]
        async with open_lanes({"main": 1}) as lanes:
            jobs = [lanes.submit_nowait(asyncio.sleep, 1, n, name=f"job {n}") for n in range(3)]
            assert [await job.wait() for job in jobs] == [0, 1, 2]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
    names = [task.get_name() for task in made]
    assert [name for name in names if name[:3] == "job"] == ["job 0", "job 1", "job 2"]


def plain_factory(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    return asyncio.Task(coro, loop=loop, **options)


FACTORIES = [None, plain_factory, *EAGER]


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_body_may_cancel_its_own_job_in_its_first_step(factory: Any) -> None:
    async def body() -> None:
        job = current_job()
        assert job is not None
        assert job.cancel("enough")
        await asyncio.sleep(1)

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(factory)
        async with open_lanes({"main": 1}) as lanes:
            with pytest.raises(JobCancelledError):
                await lanes.run(body)
            with pytest.raises(JobTimeoutError):
                await lanes.run(asyncio.sleep, 5, timeout=1)
            assert await lanes.run(asyncio.sleep, 1, "value") == "value"

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def old_factory(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any]
) -> asyncio.Task[Any]:
    return asyncio.Task(coro, loop=loop)


class FactoryError(BaseException):
    pass


def failing_factory(error: BaseException) -> Callable[..., asyncio.Task[Any]]:
    """A task factory that makes no tasks of bodies."""

    def factory(
        loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        if any(name in repr(coro) for name in ("AsyncioBody", "in_asyncio")):
            raise error
        return asyncio.Task(coro, loop=loop, **options)

    return factory


@pytest.mark.parametrize(
    ("factory", "error"),
    [
        (old_factory, TypeError),
        (lambda loop, coro, **options: SimpleNamespace(set_name=str), AttributeError),
        (failing_factory(RuntimeError("refused")), RuntimeError),
    ],
)
def test_a_job_whose_task_cannot_be_made_fails_and_others_go_on(factory: Any, error: Any) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with open_lanes({"main": 1}) as lanes:
            loop.set_task_factory(factory)
            job = lanes.submit_nowait(asyncio.sleep, 1, session="ann", timeout=5)
            behind = lanes.submit_nowait(asyncio.sleep, 1, "value", session="ann", delay=1)
            loop.set_task_factory(None)
            with pytest.raises(error):
                await job.wait()
            assert job.state is JobState.FAILED
            assert await behind.wait() == "value"
            assert lanes.lane("main").limiter.borrowed_tokens == 0

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def test_a_base_exception_of_a_task_factory_leaves_the_block() -> None:
    async def main() -> None:
        async with open_lanes({"main": 1}) as lanes:
            factory: Any = failing_factory(FactoryError())
            asyncio.get_running_loop().set_task_factory(factory)
            job = lanes.submit_nowait(asyncio.sleep, 1)
            asyncio.get_running_loop().set_task_factory(None)
            with pytest.raises(JobCancelledError, match="FactoryError"):
                await job.wait()
            await asyncio.sleep(1)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner, pytest.raises(BaseExceptionGroup):
        runner.run(main())


@pytest.mark.parametrize("verb", ["cancel", "reset"])
def test_a_job_that_a_hook_ends_though_its_task_cannot_be_made_settles_once(verb: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with open_lanes({"main": 1}, instruments=[Acts(verb)]) as lanes:
            factory: Any = failing_factory(RuntimeError("refused"))
            loop.set_task_factory(factory)
            job = lanes.submit_nowait(asyncio.sleep, 1)
            loop.set_task_factory(None)
            assert job.done
            with pytest.raises(RuntimeError if verb == "cancel" else JobCancelledError):
                await job.wait()
            assert lanes.statistics().abandoned == 0
            assert await lanes.run(asyncio.sleep, 0, "next") == "next"

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def test_items_of_a_map_whose_task_cannot_be_made_are_its_error() -> None:
    async def items() -> AsyncIterator[int]:
        yield 1

    async def main() -> None:
        async with open_lanes({"main": 1}) as lanes:
            factory: Any = failing_factory(RuntimeError("refused"))
            asyncio.get_running_loop().set_task_factory(factory)
            with pytest.raises(RuntimeError, match="refused"):
                async with lanes.map(asyncio.sleep, items()) as results:
                    await anext(results)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


class Acts(LaneInstrument):
    """Cancels, or resets, the first job as it starts."""

    def __init__(self, verb: str) -> None:
        self.verb = verb

    def job_started(self, job: trio_lanes.Job[Any]) -> None:
        if job.id == 1:
            job.cancel() if self.verb == "cancel" else self.lanes.reset()

    def lanes_opened(self, lanes: trio_lanes.Lanes) -> None:
        self.lanes = lanes


@pytest.mark.parametrize("verb", ["cancel", "reset"])
@pytest.mark.parametrize("factory", FACTORIES)
def test_a_job_that_a_hook_ends_as_it_starts_ends(factory: Any, verb: str) -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(factory)
        async with open_lanes({"main": 1}, instruments=[Acts(verb)]) as lanes:
            with pytest.raises(JobCancelledError):
                await lanes.run(asyncio.sleep, 100)
            assert await lanes.run(asyncio.sleep, 0, "next") == "next"
            assert asyncio.get_running_loop().time() == 0
            assert lanes.statistics().abandoned == 0

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_body_that_a_task_of_trios_lets_start_begins_in_asyncio(factory: Any) -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(factory)
        async with open_lanes({"main": 1, "cron": 1}) as lanes:

            async def body(n: int) -> int:
                return await lanes.run(asyncio.sleep, 0, n, lane="cron")

            async with lanes.map(body, range(6)) as results:
                assert [result async for result in results] == [*range(6)]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


async def test_submit_nowait_is_refused_at_the_call_when_a_lane_is_full() -> None:
    async with open_lanes({"main": LaneConfig(max_waiting=1)}) as lanes:
        lanes.submit_nowait(asyncio.sleep, 1)
        lanes.submit_nowait(asyncio.sleep, 1)
        with pytest.raises(LaneFullError):
            lanes.submit_nowait(asyncio.sleep, 1)


async def test_submits_that_wait_for_room_are_served_in_their_order() -> None:
    order: list[int] = []

    async def body(n: int) -> None:
        order.append(n)
        await asyncio.sleep(1)

    async with open_lanes({"main": LaneConfig(max_waiting=1)}) as lanes:
        jobs = await asyncio.gather(*(lanes.submit(body, n) for n in range(10)))
        await asyncio.gather(*(lanes.run(body, n) for n in range(10, 20)))
        assert all(job.done for job in jobs)
    assert order == list(range(20))


async def test_a_map_of_an_async_iterable_reads_it_in_asyncio_and_closes_it() -> None:
    closed = []

    async def items() -> AsyncIterator[int]:
        try:
            for n in range(100):
                await asyncio.sleep(1)
                yield n
        finally:
            closed.append(asyncio.current_task() is not None)

    async def double(n: int) -> int:
        await asyncio.sleep(1)
        return 2 * n

    async with open_lanes({"main": 3}) as lanes:
        async with lanes.map(double, items()) as results:
            found = [await anext(results) for _ in range(5)]
    assert (found, closed) == ([0, 2, 4, 6, 8], [True])


async def test_the_frames_of_a_body_are_shown() -> None:
    async def deeper() -> None:
        await asyncio.sleep(10)

    async def body() -> None:
        await deeper()

    async with open_lanes() as lanes:
        job = lanes.submit_nowait(body)
        await asyncio.sleep(1)
        names = [frame.f_code.co_name for frame, _ in job.iter_await_frames()]
        assert names[:3] == ["body", "deeper", "sleep"]
        job.cancel()


class Overdue(LaneInstrument):
    def __init__(self) -> None:
        self.overdue: list[str] = []

    def job_overdue(self, job: trio_lanes.Job[Any], seconds: float) -> None:
        self.overdue.append(job.name)


async def test_a_body_that_swallows_its_cancellation_is_overdue_and_reset_gives_it_up() -> None:
    async def swallows() -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(30)

    instrument = Overdue()
    async with open_lanes({"main": 1}, instruments=[instrument]) as lanes:
        job = lanes.submit_nowait(swallows, name="deaf")
        await asyncio.sleep(1)
        job.cancel()
        await asyncio.sleep(20)
        assert (job.state, instrument.overdue) == (JobState.RUNNING, ["deaf"])
        assert lanes.reset() == 1
        assert await lanes.run(asyncio.sleep, 0, "next") == "next"
        assert lanes.statistics().abandoned == 1
    assert asyncio.get_running_loop().time() == 31


async def test_a_hook_that_raises_is_removed_and_nothing_else_happens() -> None:
    class Raises(LaneInstrument):
        def job_started(self, job: trio_lanes.Job[Any]) -> None:
            raise ValueError

    async with open_lanes(instruments=[Raises()]) as lanes:
        assert await lanes.run(asyncio.sleep, 1, "value") == "value"
        assert await lanes.run(asyncio.sleep, 1, "value") == "value"


async def test_a_map_refuses_a_second_taker_and_one_after_its_block_by_a_runtime_error() -> None:
    async with open_lanes({"main": 1}) as lanes:
        async with lanes.map(asyncio.sleep, [5, 5]) as results:
            takes = asyncio.ensure_future(anext(results))
            await asyncio.sleep(1)
            with pytest.raises(RuntimeError, match="another task is taking a result"):
                await anext(results)
        for taken in (takes, anext(results)):
            with pytest.raises(RuntimeError, match="the block of this map was left"):
                await taken


async def test_an_error_of_trios_that_a_body_raises_is_left_as_it_is() -> None:
    async def body(n: int) -> None:
        raise trio.BusyResourceError("of its own")

    async def outer() -> None:
        with pytest.raises(trio.BusyResourceError):
            await lanes.run(body, 1, yield_slot=True)

    async with open_lanes({"main": 1}) as lanes:
        await lanes.run(outer)
        async with lanes.map(body, [1]) as results:
            with pytest.raises(trio.BusyResourceError):
                await anext(results)


class Numbers:
    """An async iterator of asyncio's that cannot be closed."""

    def __init__(self) -> None:
        self.left = [3, 2, 1]

    def __aiter__(self) -> "Numbers":
        return self

    async def __anext__(self) -> int:
        await asyncio.sleep(1)
        if not self.left:
            raise StopAsyncIteration
        return self.left.pop()


async def test_a_map_takes_any_iterator_of_asyncios_and_works_in_a_task_of_trios() -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(1)
        return 2 * number

    async def of_trio() -> list[int]:
        async with lanes.map(double, [4, 5], lane="cron") as results:
            return [result async for result in results]

    async with open_lanes() as lanes:
        async with lanes.map(double, Numbers()) as results:
            assert [result async for result in results] == [2, 4, 6]
        job = lanes.trio.submit_nowait(of_trio)
        await lanes.wait_idle()
        assert job.outcome is not None
        assert job.outcome.unwrap() == [8, 10]
