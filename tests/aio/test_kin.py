"""Which waits are waits of a job: those for which its body waits, and no others."""

import asyncio
import gc
import math
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import anyio
import outcome
import pytest
import trio

from tests.support.loops import EAGER
from trio_lanes import (
    Job,
    JobState,
    LaneConfig,
    LaneDeadlockError,
    LaneInstrument,
    current_job,
)
from trio_lanes.aio import open_durable_lanes, open_lanes
from trio_lanes.durable import MemoryStore

pytestmark = pytest.mark.asyncio_only


def plain_factory(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    return asyncio.Task(coro, loop=loop, **options)


with_tasks_of_all_kinds = pytest.mark.parametrize("factory", [None, plain_factory, *EAGER])


SILENT = {
    "main": LaneConfig(concurrency=4, warn_after=math.inf),
    "cron": LaneConfig(concurrency=4, warn_after=math.inf),
}
"""Lanes that tell of no long wait, and so do not look at waits then."""


def use(factory: Any) -> None:
    asyncio.get_running_loop().set_task_factory(factory)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# ---- ways to wait for a task


async def task(coro: Coroutine[Any, Any, Any]) -> None:
    await asyncio.create_task(coro)


async def gather(coro: Coroutine[Any, Any, Any]) -> None:
    await asyncio.gather(asyncio.sleep(0), coro, asyncio.sleep(1000))


async def wait(coro: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.create_task(coro), asyncio.create_task(asyncio.sleep(1000))]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for one in done:
        one.result()
    await asyncio.gather(*tasks)


async def wait_for_the_only_one(coro: Coroutine[Any, Any, Any]) -> None:
    one = asyncio.create_task(coro)
    await asyncio.wait([one], return_when=asyncio.FIRST_COMPLETED)
    one.result()


async def shield(coro: Coroutine[Any, Any, Any]) -> None:
    await asyncio.shield(coro)


async def wait_for(coro: Coroutine[Any, Any, Any]) -> None:
    await asyncio.wait_for(coro, 1000)


async def timeout(coro: Coroutine[Any, Any, Any]) -> None:
    async with asyncio.timeout(1000):
        await asyncio.create_task(coro)


async def task_group(coro: Coroutine[Any, Any, Any]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(coro)


async def task_group_in_its_block(coro: Coroutine[Any, Any, Any]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(coro)
        await asyncio.get_running_loop().create_future()


async def anyio_group(coro: Coroutine[Any, Any, Any]) -> None:
    async def awaits() -> None:
        await coro

    async with anyio.create_task_group() as group:
        group.start_soon(awaits)


async def nested(coro: Coroutine[Any, Any, Any]) -> None:
    await asyncio.gather(task_group(gather(shield(coro))), asyncio.sleep(0))


WAITS = [
    task,
    gather,
    wait,
    wait_for_the_only_one,
    shield,
    wait_for,
    timeout,
    task_group,
    task_group_in_its_block,
    anyio_group,
    nested,
]


def only(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    return error


@with_tasks_of_all_kinds
@pytest.mark.parametrize("way", WAITS)
async def test_a_wait_that_the_body_waits_for_is_one_of_its_job(factory: Any, way: Any) -> None:
    use(factory)
    async with open_lanes() as lanes:

        async def body() -> str:
            with pytest.raises((LaneDeadlockError, ExceptionGroup)) as caught:
                await way(lanes.run(asyncio.sleep, 0, session="ann"))
            error = only(caught.value)
            assert isinstance(error, LaneDeadlockError)
            assert "holds session 'ann'" in str(error)
            return "refused"

        assert await lanes.run(body, session="ann") == "refused"
        assert asyncio.get_running_loop().time() == 0
        assert [job.name for job in lanes.jobs()] == []


# ---- ways not to wait


async def forget(coro: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.create_task(coro)


async def by_a_callback(coro: Coroutine[Any, Any, Any]) -> Any:
    loop = asyncio.get_running_loop()
    made = loop.create_future()

    def make() -> None:
        made.set_result(loop.create_task(coro))

    loop.call_soon(make)
    return await made


async def with_a_callback(coro: Coroutine[Any, Any, Any]) -> Any:
    task, parent = asyncio.create_task(coro), asyncio.current_task()
    assert parent is not None
    task.add_done_callback(lambda _: parent.cancelled())
    for callback in (print_nothing, partial(print_nothing), [task].remove, parent.cancel):
        task.add_done_callback(callback)
    return task


def print_nothing(task: object) -> None:
    pass


async def the_first_of_two(coro: Coroutine[Any, Any, Any]) -> Any:
    tasks = [asyncio.create_task(coro), asyncio.create_task(asyncio.sleep(1))]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return tasks[0]


async def as_completed(coro: Coroutine[Any, Any, Any]) -> Any:
    tasks = [asyncio.create_task(coro), asyncio.create_task(asyncio.sleep(1))]
    await next(iter(asyncio.as_completed(tasks)))
    return tasks[0]


async def gave_up(coro: Coroutine[Any, Any, Any]) -> Any:
    task = asyncio.create_task(coro)
    await turns()
    return task


@with_tasks_of_all_kinds
@pytest.mark.parametrize(
    "way", [forget, by_a_callback, with_a_callback, the_first_of_two, as_completed, gave_up]
)
async def test_a_wait_that_ends_after_the_body_gets_no_error(factory: Any, way: Any) -> None:
    """Fire and forget: a follow-up of the same session."""
    use(factory)
    tasks: list[asyncio.Task[str]] = []
    async with open_lanes({"main": 1}) as lanes:

        async def body() -> None:
            tasks.append(await way(lanes.run(asyncio.sleep, 1, "followed up", session="ann")))
            await asyncio.sleep(0.1)

        await lanes.run(body, session="ann")
        assert await tasks[0] == "followed up"
        assert lanes.statistics().waiting == 0


@with_tasks_of_all_kinds
@pytest.mark.parametrize("verb", ["run", "submit", "wait", "wait_started", "map"])
async def test_each_verb_may_be_awaited_in_a_task_that_is_forgotten(
    factory: Any, verb: str
) -> None:
    use(factory)
    tasks: list[asyncio.Task[Any]] = []
    config = {"main": LaneConfig(concurrency=1, max_waiting=1)}
    async with open_lanes(config) as lanes:

        async def calls() -> Any:
            if verb == "map":
                async with lanes.map(asyncio.sleep, [0, 0]) as results:
                    return [one async for one in results]
            if verb == "run":
                return await lanes.run(asyncio.sleep, 1, session="ann")
            if verb == "submit":
                lanes.submit_nowait(asyncio.sleep, 1)
                return await (await lanes.submit(asyncio.sleep, 1)).wait()
            job = lanes.submit_nowait(asyncio.sleep, 1, session="ann")
            return await (job.wait() if verb == "wait" else job.wait_started())

        async def body() -> None:
            tasks.append(asyncio.create_task(calls()))
            await asyncio.sleep(0.1)

        await lanes.run(body, session="ann")
        await tasks[0]


# ---- when it is looked at


@with_tasks_of_all_kinds
async def test_a_wait_is_looked_at_when_it_begins_and_in_the_next_turn(factory: Any) -> None:
    use(factory)
    async with open_lanes(SILENT) as lanes:

        async def body(later: int) -> float:
            task = asyncio.create_task(lanes.run(asyncio.sleep, 0, session="ann"))
            await turns(later)
            with pytest.raises(LaneDeadlockError):
                await task
            return asyncio.get_running_loop().time()

        # the wait begins some turns after its task, which is one turn earlier if that is eager
        for later in range(3 if factory in EAGER else 4):
            assert await lanes.run(body, later, session="ann") == 0


@with_tasks_of_all_kinds
async def test_a_wait_is_looked_at_again_when_another_of_its_job_begins_or_ends(
    factory: Any,
) -> None:
    use(factory)
    async with open_lanes(SILENT) as lanes:

        async def body(other: Callable[[], Awaitable[object]]) -> object:
            task = asyncio.create_task(lanes.run(asyncio.sleep, 0, session="ann"))
            another = asyncio.create_task(lanes.run(other, lane="cron"))
            await asyncio.sleep(1)
            assert not task.done()
            with pytest.raises(LaneDeadlockError):
                await task
            await another
            return asyncio.get_running_loop().time()

        async def ends() -> None:
            await asyncio.sleep(5)

        assert await lanes.run(body, ends, session="ann") == 5


@with_tasks_of_all_kinds
async def test_a_wait_is_looked_at_again_when_a_limit_changes(factory: Any) -> None:
    use(factory)
    async with open_lanes(SILENT) as lanes:

        async def body() -> object:
            task = asyncio.create_task(lanes.run(asyncio.sleep, 0, session="ann"))
            await asyncio.sleep(1)
            with pytest.raises(LaneDeadlockError):
                await task
            return asyncio.get_running_loop().time()

        job = lanes.submit_nowait(body, session="ann")
        await asyncio.sleep(5)
        lanes.lane("cron").concurrency = 2
        assert await job.wait() == 5


@with_tasks_of_all_kinds
async def test_a_wait_is_looked_at_again_when_the_log_tells_that_it_is_long(
    factory: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A body starts a task early, and awaits it later."""
    use(factory)
    async with open_lanes() as lanes:

        async def body(seconds: float) -> float:
            task = asyncio.create_task(lanes.run(asyncio.sleep, 0, session="ann"))
            await asyncio.sleep(seconds)
            with pytest.raises(LaneDeadlockError):
                await task
            return asyncio.get_running_loop().time()

        assert await lanes.run(body, 1, session="ann") == 2
        assert len(caplog.records) == 1
        assert await lanes.run(body, 3, session="ann") == 6  # when it is twice as long
        assert len(caplog.records) == 3


@with_tasks_of_all_kinds
async def test_a_wait_that_a_body_gave_up_is_looked_at_before_another_is_refused(
    factory: Any,
) -> None:
    """Job 1 has waited for job 2, whose session it holds, and does so no more."""
    use(factory)
    async with open_lanes() as lanes:
        first: list[Job[Any]] = []
        tasks: list[asyncio.Task[Any]] = []

        async def waits_for_the_first() -> object:
            await asyncio.sleep(2)
            return await first[0].wait()

        async def body() -> str:
            other = lanes.submit_nowait(waits_for_the_first, lane="cron")
            tasks.append(asyncio.create_task(other.wait()))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(tasks[0]), 1)
            await asyncio.sleep(5)
            return "value"

        first.append(lanes.submit_nowait(body))
        assert await first[0].wait() == "value"
        assert await tasks[0] == "value"


@with_tasks_of_all_kinds
async def test_an_act_that_closes_a_cycle_looks_at_what_the_body_waits_for(factory: Any) -> None:
    use(factory)
    async with open_lanes() as lanes:
        tasks: list[asyncio.Task[Any]] = []

        async def body() -> str:
            behind = lanes.submit_nowait(asyncio.sleep, 0, "behind", session="bob")
            tasks.append(asyncio.create_task(behind.wait()))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(tasks[0]), 1)
            # this job comes before the one that is waited for, and waits for the slot of this body
            lanes.submit_nowait(asyncio.sleep, 0, session="bob", priority=1, lane="cron")
            await asyncio.sleep(1)
            return "value"

        lanes.pause("session:bob")
        job = lanes.submit_nowait(body, lane="cron")
        await asyncio.sleep(1.5)
        lanes.resume("session:bob")
        assert await job.wait() == "value"
        assert await tasks[0] == "behind"


@with_tasks_of_all_kinds
async def test_a_wait_of_a_shared_task_is_one_of_the_job_whose_body_awaits_it(
    factory: Any,
) -> None:
    """A task that the first job has started is awaited by the body of the second."""
    use(factory)
    async with open_lanes() as lanes:
        shared: list[asyncio.Task[Any]] = []

        async def starts() -> None:
            shared.append(asyncio.create_task(lanes.run(asyncio.sleep, 0, session="bob")))
            await asyncio.sleep(5)

        async def awaits() -> str:
            with pytest.raises(LaneDeadlockError, match="holds session 'bob'"):
                await asyncio.gather(shared[0], lanes.run(asyncio.sleep, 0, lane="cron"))
            return "refused"

        async def second() -> str:
            await asyncio.sleep(1)
            return await awaits()

        bob = lanes.submit_nowait(second, session="bob")
        first = lanes.submit_nowait(starts)
        await asyncio.sleep(1)
        lanes.lane("cron").concurrency = 2
        await asyncio.sleep(1)
        lanes.lane("cron").concurrency = 3
        assert await bob.wait() == "refused"
        await first.wait()


# ---- tasks that outlive their bodies


@with_tasks_of_all_kinds
async def test_a_task_that_outlives_its_body_waits_for_itself(factory: Any) -> None:
    use(factory)
    tasks: list[asyncio.Task[str]] = []
    async with open_lanes() as lanes:

        async def body() -> None:
            tasks.append(asyncio.create_task(late.wait()))
            await asyncio.wait(tasks)

        late = lanes.submit_nowait(asyncio.sleep, 5, "late", lane="cron")
        job = lanes.submit_nowait(body, session="ann", timeout=1)
        await job.wait_done()
        assert job.state is JobState.FAILED
        ended = weakref.ref(job)
        assert job.exception is not None
        del job
        await turns()
        gc.collect()
        assert ended() is None  # nor is its job kept alive
        await lanes.run(asyncio.sleep, 0, session="ann")
        assert await tasks[0] == "late"


@with_tasks_of_all_kinds
async def test_the_current_job_of_a_task_that_is_forgotten_is_the_one_that_started_it(
    factory: Any,
) -> None:
    use(factory)
    seen: list[object] = []
    async with open_lanes({"main": 2}) as lanes:

        async def calls() -> None:
            child = lanes.submit_nowait(asyncio.sleep, 0)
            seen.append((current_job(), child.parent))
            await child.wait()
            await lanes.wait_idle()  # but for the job that this is inside of
            seen.append(current_job())

        async def body() -> None:
            tasks.append(asyncio.create_task(calls()))
            await asyncio.sleep(1)

        tasks: list[asyncio.Task[None]] = []
        job = lanes.submit_nowait(body)
        await job.wait()
        await tasks[0]
        assert seen == [(job, job), job]


class Refusals(LaneInstrument):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def deadlock_refused(self, error: LaneDeadlockError) -> None:
        self.seen.append(str(error))


@with_tasks_of_all_kinds
@pytest.mark.parametrize("waits", [True, False])
async def test_waits_for_lanes_that_hold_up_each_other_are_refused_if_bodies_wait_for_them(
    factory: Any, waits: bool
) -> None:
    use(factory)
    refusals = Refusals()
    async with open_lanes({"main": 1, "cron": 1}, instruments=[refusals]) as lanes:
        tasks: list[asyncio.Task[None]] = []

        async def body(other: str) -> None:
            await asyncio.sleep(0)
            if waits:
                await asyncio.gather(lanes.wait_idle(other))
            tasks.append(asyncio.create_task(lanes.wait_idle(other)))
            await asyncio.sleep(1)

        async def all_end(*jobs: Job[Any]) -> list[type | None]:
            for job in jobs:
                await job.wait_done()
            return [None if job.exception is None else type(job.exception) for job in jobs]

        ended = await all_end(
            lanes.submit_nowait(body, "cron"), lanes.submit_nowait(body, "main", lane="cron")
        )
        assert len(refusals.seen) == waits
        assert sorted(map(str, ended)) == sorted(
            map(str, [None, LaneDeadlockError] if waits else [None, None])
        )
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_stray_wait_that_is_cancelled_is_forgotten() -> None:
    async with open_lanes() as lanes:

        async def body() -> None:
            task = asyncio.create_task(lanes.run(asyncio.sleep, 0, session="ann"))
            other = asyncio.create_task(lanes.run(asyncio.sleep, 0, session="ann"))
            await turns()
            task.cancel()
            await turns()
            assert task.cancelled()
            with pytest.raises(LaneDeadlockError):
                await asyncio.gather(other, lanes.run(asyncio.sleep, 1, lane="cron"))
            assert lanes.session("ann").waiting == 0

        await lanes.run(body, session="ann")


async def test_lanes_inside_a_body_wait_for_its_job() -> None:
    async with open_lanes() as lanes:

        async def body() -> str:
            async with open_lanes() as inner, lanes.open_nursery() as nursery:
                nursery.start_soon(asyncio.sleep, 0, lane="cron")
                with pytest.raises(LaneDeadlockError):
                    await inner.run(partial(lanes.run, asyncio.sleep, 0, session="ann"))
            return "refused"

        assert await lanes.run(body, session="ann") == "refused"


async def test_a_task_of_trios_is_waited_for_by_its_job_as_always() -> None:
    async with open_lanes({"main": 2, "cron": 1}) as lanes:

        async def waits() -> None:
            await lanes.trio.run(trio.sleep, 0, session="ann")

        async def body() -> str:
            with pytest.RaisesGroup(LaneDeadlockError):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(waits)
            return "refused"

        job = lanes.trio.submit_nowait(body, session="ann")
        await lanes.wait_idle()
        assert job.outcome == outcome.Value("refused")


async def test_a_handler_of_durable_lanes_may_forget_a_task_that_waits_for_other_lanes() -> None:
    tasks: list[asyncio.Task[str]] = []
    async with open_lanes() as lanes:

        async def outer() -> str:
            return await lanes.run(asyncio.sleep, 1, "value")

        async def handler(payload: str) -> str:
            tasks.append(asyncio.create_task(outer()))
            inside = asyncio.create_task(outer()) if payload == "waits" else None
            return await asyncio.gather(inside) if inside else "forgot"  # type: ignore[return-value]

        async with open_durable_lanes(MemoryStore(), {"it": handler}) as durable:
            assert await (await durable.submit("it", "waits")).wait() == ["value"]
            assert await (await durable.submit("it", "forgets")).wait() == "forgot"
            assert await asyncio.gather(*tasks) == ["value", "value"]
