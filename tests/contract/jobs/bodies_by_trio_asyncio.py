"""Bodies of asyncio, by trio-asyncio, in lanes of a Trio application.

`test_bodies_of_other_libraries.py` runs these tests in a process of their own, since importing
`trio_asyncio` changes the loops of asyncio for all of its process.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest
import trio
import trio_asyncio
from trio.testing import MockClock

from tests.support.bodies import BodyError
from trio_lanes import (
    JobCancelledError,
    JobTimeoutError,
    current_job,
    open_lanes,
)
from trio_lanes.testing import LaneRecorder

CALLER: ContextVar[str] = ContextVar("CALLER")


@pytest.mark.many_seeds(10)
async def test_asyncio_bodies_run_in_order_with_their_values_errors_and_context(
    autojump_clock: MockClock,
) -> None:
    recorder = LaneRecorder()
    order: list[tuple[str, int]] = []

    async def body(user: str, n: int) -> str:
        loop = asyncio.get_running_loop()
        await asyncio.gather(asyncio.sleep(0.1), loop.run_in_executor(None, str))
        order.append((user, n))
        if n == 2:
            raise BodyError
        return f"{CALLER.get()} {n}"

    async with trio_asyncio.open_loop(), open_lanes({"main": 2}, instruments=[recorder]) as lanes:
        jobs = []
        for n in range(4):
            for user in ("ann", "bob", "eve"):
                CALLER.set(user)
                fn = trio_asyncio.aio_as_trio(body)
                jobs.append(lanes.submit_nowait(fn, user, n, session=user))
        for number, job in enumerate(jobs):
            if number // 3 == 2:
                with pytest.raises(BodyError):
                    await job.wait()
            else:
                assert await job.wait() == f"{job.session} {number // 3}"
    for user in ("ann", "bob", "eve"):
        assert [n for name, n in order if name == user] == [0, 1, 2, 3]
    recorder.check()


async def test_a_timeout_and_a_cancellation_cancel_an_asyncio_body_which_keeps_its_slot(
    autojump_clock: MockClock,
) -> None:
    async def body() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(5)  # it cleans up
            raise

    async with trio_asyncio.open_loop(), open_lanes({"main": 1}) as lanes:
        fn = trio_asyncio.aio_as_trio(body)
        slow = lanes.submit_nowait(fn, timeout=1)
        stopped = lanes.submit_nowait(fn)
        with pytest.raises(JobTimeoutError):
            await slow.wait()
        assert trio.current_time() == 6
        await stopped.wait_started()
        stopped.cancel("enough")
        with pytest.raises(JobCancelledError, match="enough"):
            await stopped.wait()
        assert trio.current_time() == 11


async def test_what_an_asyncio_body_calls_of_trio_is_outside_of_its_job(
    autojump_clock: MockClock,
) -> None:
    async def body() -> str:
        return await trio_asyncio.trio_as_aio(inner)()

    async def inner() -> str:
        assert current_job() is None
        return await lanes.run(other, lane="cron")

    async def other() -> str:
        return "other"

    async with trio_asyncio.open_loop(), open_lanes({"main": 1, "cron": 1}) as lanes:
        assert await lanes.run(trio_asyncio.aio_as_trio(body)) == "other"
