"""Several `open_lanes` in one run: their jobs wait for each other, and for each other's lanes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.bodies import this_job
from trio_lanes import (
    Job,
    LaneConfig,
    LaneDeadlockError,
    LaneError,
    Lanes,
    open_lanes,
)


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
async def test_of_jobs_that_wait_for_the_lanes_of_each_other_the_later_gets_an_error(
    autojump_clock: MockClock, verb: str
) -> None:
    async def first() -> None:
        await trio.sleep(1)
        await getattr(there, verb)()

    async def second() -> None:
        await trio.sleep(2)
        await getattr(here, verb)()

    async with open_two() as (here, there):
        jobs = [here.submit_nowait(first), there.submit_nowait(second)]
        here.start_soon(trio.sleep, 5)
    assert isinstance(jobs[1].exception, LaneDeadlockError)
    assert [job.finished_at for job in jobs] == [2.0, 2.0]


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


async def overtaken(here: Lanes, there: Lanes, told: list[str]) -> Job[None]:
    """A job of ``there`` waits for room in ``here``, whose only job waits for one of ``there``.

    That one waits in a session, before which another job may come that needs the slot of the first.
    """

    async def waits_for_that() -> None:
        await awaited.wait()

    async def enters() -> None:
        await trio.sleep(1)
        try:
            await here.submit(trio.sleep, 1)
        except LaneError as error:
            told.append(type(error).__name__)

    there.submit_nowait(trio.sleep, 5, lane="cron")
    awaited = there.submit_nowait(trio.sleep, 1, lane="cron", session="alice")
    here.start_soon(waits_for_that)
    await wait_all_tasks_blocked()
    here.start_soon(trio.sleep, 1)
    stuck = there.submit_nowait(enters)
    await trio.sleep(2)
    return stuck


def open_bounded(instrument: object) -> AbstractAsyncContextManager[Lanes]:
    return open_lanes({"main": LaneConfig(max_waiting=1)}, instruments=[instrument])


async def test_a_wait_of_one_lanes_for_room_in_others_leaves_the_lines_of_both_in_order(
    autojump_clock: MockClock,
) -> None:
    told: list[str] = []
    async with (
        open_lanes({"main": 1, "cron": 1, "full": LaneConfig(max_waiting=0)}) as there,
        open_bounded(object()) as here,
    ):
        stuck = await overtaken(here, there, told)
        there.session("alice").submit_nowait(trio.sleep, 1, priority=1)
        await stuck.wait()
        assert trio.current_time() == 2.0
        there.submit_nowait(trio.sleep, 1, lane="full")
        with trio.fail_after(100):
            await there.submit(trio.sleep, 1, lane="full")
            await here.wait_empty()
            await here.submit(trio.sleep, 1)
    assert told == ["LaneDeadlockError"]


async def test_a_request_for_room_that_lanes_refuse_as_they_close_is_no_deadlock_meanwhile(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Hooks are called before the task is woken that waits for room."""

    class Overtakes:
        def job_rejected(self, lane: object, reason: str) -> None:
            there.session("alice").submit_nowait(trio.sleep, 1, priority=1)

    told: list[str] = []
    async with (
        open_lanes({"main": 1, "cron": 1}) as there,
        open_bounded(Overtakes()) as here,
    ):
        stuck = await overtaken(here, there, told)
        here.close()
        await stuck.wait()
    assert told == ["LanesClosedError"]
    assert not [record for record in caplog.records if record.exc_info]
