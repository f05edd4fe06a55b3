"""Threads: blocking code of bodies, and portals that are made anywhere."""

import asyncio
import contextvars
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import Any

import pytest

from tests.support.programs import PATIENCE
from trio_lanes import JobCancelledError, JobState, JobTimeoutError, current_job
from trio_lanes.aio import open_lanes, to_thread

pytestmark = pytest.mark.real_processes


def in_real_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run ``test`` in asyncio: threads take real time."""

    @wraps(test)
    def in_asyncio(**arguments: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**arguments), PATIENCE))

    return in_asyncio


class Blocking:
    """A function that works in a thread until it is let go."""

    def __init__(self) -> None:
        self.began, self.gate = asyncio.Event(), threading.Event()
        self._tell = partial(asyncio.get_running_loop().call_soon_threadsafe, self.began.set)
        self.inside = self.most = 0

    def __call__(self, answer: Any = None) -> Any:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self._tell()
        assert self.gate.wait(PATIENCE)
        self.inside -= 1
        if isinstance(answer, BaseException):
            raise answer
        return answer


@in_real_time
async def test_to_thread_takes_what_asyncios_takes_and_gives_what_the_function_gives() -> None:
    name = contextvars.ContextVar("name", default="none")

    def fn(*args: int, **kwargs: int) -> Any:
        before = name.get()
        name.set("changed")
        return args, kwargs, before, threading.get_ident() != here

    here = threading.get_ident()
    name.set("alice")
    assert await to_thread(fn, 1, 2, n=3) == ((1, 2), {"n": 3}, "alice", True)
    assert name.get() == "alice"  # the context is a copy
    with pytest.raises(ZeroDivisionError):
        await to_thread(divmod, 1, 0)
    with pytest.raises(RuntimeError, match="StopIteration"):  # no future can hold one
        await to_thread(next, iter(()))
    async with open_lanes() as lanes:
        assert await lanes.run(to_thread, current_job, session="alice") is None


@pytest.mark.parametrize("ends", ["a timeout", "a cancellation", "its caller", "a drain"])
@in_real_time
async def test_a_body_holds_slot_and_session_until_its_thread_has_ended(ends: str) -> None:
    blocking = Blocking()
    async with open_lanes({"main": 4}) as lanes:

        async def run() -> None:
            await lanes.run(to_thread, blocking, "value", session="ann")

        if ends == "its caller":
            caller = asyncio.create_task(run())
            await blocking.began.wait()
            (job,) = lanes.jobs()
        else:
            timeout = 0.05 if ends == "a timeout" else float("inf")
            job = lanes.submit_nowait(to_thread, blocking, "value", session="ann", timeout=timeout)
        behind = lanes.submit_nowait(to_thread, blocking, session="ann")
        await blocking.began.wait()
        blocking.began.clear()
        if ends == "a drain":
            drain = asyncio.create_task(lanes.drain(grace=0, waiting="finish"))
        elif ends != "a timeout":
            assert caller.cancel() if ends == "its caller" else job.cancel("enough")
        while not job.cancel_called:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert (job.state, blocking.inside) == (JobState.RUNNING, 1)
        blocking.gate.set()
        with pytest.raises(JobTimeoutError if ends == "a timeout" else JobCancelledError):
            await job.wait()
        await behind.wait_done()
        if ends == "its caller":
            with pytest.raises(asyncio.CancelledError):
                await caller
        if ends == "a drain":
            await drain
    assert blocking.most == 1


@in_real_time
async def test_a_cancellation_drops_a_value_and_gives_way_to_an_exception() -> None:
    async def main(answer: object) -> None:
        blocking = Blocking()
        task = asyncio.create_task(to_thread(blocking, answer))
        await blocking.began.wait()
        assert task.cancel("first")
        assert task.cancel("again")
        await asyncio.sleep(0)
        blocking.gate.set()
        await task

    with pytest.raises(asyncio.CancelledError):
        await main("value")
    with pytest.raises(ValueError, match="of the function"):
        await main(ValueError("of the function"))


@in_real_time
async def test_a_body_that_tries_again_after_an_exception_is_cancelled_at_its_next_wait() -> None:
    blocking = Blocking()

    async def body() -> None:
        while True:
            try:
                await to_thread(blocking, ValueError("try again"))
            except ValueError:
                await asyncio.sleep(1000)

    async with open_lanes() as lanes:
        job = lanes.submit_nowait(body)
        await blocking.began.wait()
        job.cancel()
        await asyncio.sleep(0)
        blocking.gate.set()
        with pytest.raises(JobCancelledError):
            await job.wait()


@in_real_time
async def test_asyncio_timeout_around_to_thread_ends_when_the_thread_has() -> None:
    blocking = Blocking()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            asyncio.get_running_loop().call_later(0.05, blocking.gate.set)
            await to_thread(blocking)
    assert (blocking.gate.is_set(), blocking.inside) == (True, 0)
    await asyncio.sleep(0.01)  # nothing is left of the cancellation


@in_real_time
async def test_a_call_that_waits_for_a_thread_is_withdrawn() -> None:
    loop, blocking, late = asyncio.get_running_loop(), Blocking(), Blocking()
    loop.set_default_executor(ThreadPoolExecutor(1))
    async with open_lanes() as lanes:
        first = lanes.submit_nowait(to_thread, blocking, "value")
        await blocking.began.wait()
        second = lanes.submit_nowait(to_thread, late)
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(JobCancelledError):
            await second.wait()
        assert blocking.inside == 1
        blocking.gate.set()
        assert await first.wait() == "value"
        assert await to_thread(int, "5") == 5
    assert not late.began.is_set()


@in_real_time
async def test_a_call_whose_executor_drops_it_is_cancelled() -> None:
    loop, blocking, executor = asyncio.get_running_loop(), Blocking(), ThreadPoolExecutor(1)
    loop.set_default_executor(executor)
    first = asyncio.create_task(to_thread(blocking))
    await blocking.began.wait()
    second = asyncio.create_task(to_thread(print))
    await asyncio.sleep(0)
    executor.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(asyncio.CancelledError):
        await second
    blocking.gate.set()
    await first


@in_real_time
async def test_an_error_of_to_thread_keeps_nothing_alive() -> None:
    class Argument:
        pass

    async def main() -> weakref.ref[Argument]:
        argument = Argument()
        with pytest.raises(TypeError):
            await to_thread(int, argument)  # type: ignore[arg-type]
        return weakref.ref(argument)

    async with open_lanes() as lanes:
        argument = await lanes.run(main)
        for _ in range(10):
            await asyncio.sleep(0)
    assert argument() is None


@in_real_time
async def test_a_portal_may_be_made_in_any_thread() -> None:
    async with open_lanes() as lanes:

        def handler() -> int:
            return lanes.portal().run(asyncio.sleep, 0, 5)

        assert await asyncio.to_thread(handler) == 5
        portal = await asyncio.to_thread(lanes.portal)
        with pytest.raises(RuntimeError, match="own thread"):
            portal.run(asyncio.sleep, 0)
