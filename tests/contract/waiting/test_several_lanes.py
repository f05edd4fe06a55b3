"""Several `open_lanes` in one run: their jobs wait for each other, and for each other's lanes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from tests.support.bodies import this_job
from trio_lanes import LaneDeadlockError, Lanes, open_lanes


@asynccontextmanager
async def open_two() -> AsyncIterator[tuple[Lanes, Lanes]]:
    """Two lanes of two slots, which do not hang for ever."""
    with trio.fail_after(100):
        async with open_lanes({"main": 2}) as here, open_lanes({"main": 2}) as there:
            yield here, there


async def test_a_deadlock_over_the_jobs_of_several_lanes_is_found(
    autojump_clock: MockClock,
) -> None:
    async def outer() -> None:
        await there.run(middle)

    async def middle() -> None:
        await here.run(trio.sleep, 1)

    async with open_lanes({"main": 1}) as here, open_lanes({"main": 1}) as there:
        with pytest.raises(LaneDeadlockError, match=r"(?s)'.*middle'.*'.*outer'"):
            await here.run(outer)


async def test_a_slot_is_lent_while_a_job_of_other_lanes_is_waited_for(
    autojump_clock: MockClock,
) -> None:
    async def outer() -> None:
        await there.run(middle, yield_slot=True)

    async def middle() -> None:
        await here.run(trio.sleep, 1)

    async with open_lanes({"main": 1}) as here, open_lanes({"main": 1}) as there:
        await here.run(outer)
    assert trio.current_time() == 1.0


@pytest.mark.parametrize("verb", ["wait_idle", "wait_active"])
async def test_jobs_that_wait_for_the_lanes_of_each_other_leave_each_other_out(
    autojump_clock: MockClock, verb: str
) -> None:
    ended: list[float] = []

    async def first() -> None:
        await trio.sleep(1)
        await getattr(there, verb)()
        ended.append(trio.current_time())

    async def second() -> None:
        await trio.sleep(2)
        await getattr(here, verb)()
        ended.append(trio.current_time())

    async with open_two() as (here, there):
        here.start_soon(first)
        there.start_soon(second)
        here.start_soon(trio.sleep, 5)
    assert ended == [2.0, 5.0]


async def test_a_job_that_waits_for_lanes_leaves_out_jobs_that_wait_for_it_through_other_lanes(
    autojump_clock: MockClock,
) -> None:
    ended: list[float] = []

    async def waits_for_lanes() -> None:
        await there.wait_idle()
        ended.append(trio.current_time())

    async def waits_at_last() -> None:
        await trio.sleep(2)
        await first.wait()

    async def waits_for_that() -> None:
        await last.wait()

    async with open_two() as (here, there):
        last = here.submit_nowait(waits_at_last)
        there.start_soon(waits_for_that)
        first = here.submit_nowait(waits_for_lanes)
    assert ended == [2.0]


async def test_a_cancelled_job_goes_on_without_its_slot_when_jobs_of_other_lanes_wait_for_it(
    autojump_clock: MockClock,
) -> None:
    cleaned_up: list[float] = []

    async def lends() -> None:
        try:
            async with this_job().yield_slot():
                try:
                    await trio.sleep_forever()
                finally:
                    here.start_soon(holds)
        finally:
            cleaned_up.append(trio.current_time())

    async def holds() -> None:
        await other.wait()

    async def waits() -> None:
        await trio.sleep(2)
        await lender.wait_done()

    async with open_two() as (here, there):
        here.lane("main").concurrency = 1
        lender = here.submit_nowait(lends)
        other = there.submit_nowait(waits)
        await trio.sleep(1)
        lender.cancel()
    assert cleaned_up == [2.0]
