"""A job that is cancelled while it wants its slot back, and no slot can come: limits were lowered.

It goes on without a slot, so that it can clean up, and the jobs that wait for it go on.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.bodies import this_job
from trio_lanes import (
    Blocker,
    Job,
    JobCancelledError,
    LaneConfig,
    LaneDeadlockError,
    LaneGroup,
    Lanes,
    open_lanes,
)

pytestmark = pytest.mark.both_doors


class Crash(Exception):
    """What the block of the lanes is left by."""


async def child(cleaned_up: list[float]) -> None:
    """Lend the slot for a second, and clean up when that is over."""
    try:
        async with this_job().yield_slot():
            await trio.sleep(1)
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        cleaned_up.append(trio.current_time())


async def parent(lanes: Lanes, cleaned_up: list[float]) -> None:
    await lanes.run(child, cleaned_up)


def narrow_the_group(lanes: Lanes) -> None:
    lanes.configure(groups={"key": LaneGroup(["main"], concurrency=1)})


def narrow_the_lane(lanes: Lanes) -> None:
    lanes.configure({"main": 1})


def close_the_group(lanes: Lanes) -> None:
    lanes.configure(groups={"key": LaneGroup(["main"], concurrency=0)})


def close_the_lane(lanes: Lanes) -> None:
    lanes.configure({"main": 0})


LOWERED = [narrow_the_group, narrow_the_lane, close_the_group, close_the_lane]


@pytest.mark.parametrize("lower", LOWERED)
@pytest.mark.parametrize("when", [0.5, 1.5])
async def test_lanes_that_crash_end_though_a_limit_was_lowered(
    autojump_clock: MockClock, lower: Callable[[Lanes], None], when: float
) -> None:
    cleaned_up: list[float] = []
    group = LaneGroup(["main"], concurrency=2)
    with pytest.raises(ExceptionGroup) as caught:
        async with open_lanes({"main": 2}, groups={"key": group}) as lanes:
            lanes.submit_nowait(parent, lanes, cleaned_up)
            await trio.sleep(when)
            lower(lanes)
            await trio.sleep(0.1)
            raise Crash
    assert caught.group_contains(Crash)
    assert cleaned_up == [when + 1.1]


@pytest.mark.parametrize("lower", LOWERED)
async def test_a_job_that_is_cancelled_ends_though_a_limit_is_lowered(
    autojump_clock: MockClock, lower: Callable[[Lanes], None]
) -> None:
    cleaned_up: list[float] = []
    group = LaneGroup(["main"], concurrency=2)
    async with open_lanes({"main": 2, "cron": 1}, groups={"key": group}) as lanes:
        outer = lanes.submit_nowait(parent, lanes, cleaned_up)
        await wait_all_tasks_blocked()
        (inner,) = [job for job in lanes.jobs() if job is not outer]
        blocking = lanes.submit_nowait(trio.sleep_forever)
        await trio.sleep(0.5)
        lower(lanes)
        await trio.sleep(1)
        assert not inner.done
        blocking.cancel()
        await trio.sleep(1)
        assert not inner.done  # the code that has lowered the limit may raise it again
        outer.cancel()
        with pytest.raises(JobCancelledError):
            await inner.wait()
        await outer.wait_done()
        assert cleaned_up == [3.5]
        lane = lanes.lane("main")
        assert (lane.active, lane.limiter.borrowed_tokens) == (0, 0)
        lanes.configure({"main": 1}, groups={})
        await lanes.run(trio.sleep, 0)


async def test_where_a_slot_can_come_a_cancelled_job_waits_for_it(
    autojump_clock: MockClock,
) -> None:
    cleaned_up: list[float] = []
    async with open_lanes({"main": 2}) as lanes:
        job = lanes.submit_nowait(child, cleaned_up)
        for seconds in (3, 4):
            lanes.submit_nowait(trio.sleep, seconds)
        await trio.sleep(2)
        lanes.configure({"main": 1})
        job.cancel()
        await job.wait_done()
    assert cleaned_up == [5.0]


async def test_a_limit_that_is_lowered_when_the_job_was_cancelled_is_seen(
    autojump_clock: MockClock,
) -> None:
    cleaned_up: list[float] = []
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(child, cleaned_up)
        await wait_all_tasks_blocked()
        lanes.submit_nowait(trio.sleep, 3)
        await trio.sleep(2)
        job.cancel()
        await wait_all_tasks_blocked()
        assert not cleaned_up
        lanes.configure({"main": 0})
        await job.wait_done()
        lanes.configure({"main": 1})
    assert cleaned_up == [3.0]


async def test_the_token_of_a_shared_limiter_that_never_comes_is_asked_for_no_more(
    autojump_clock: MockClock,
) -> None:
    cleaned_up: list[float] = []
    limiter = trio.CapacityLimiter(2)
    async with open_lanes({"main": LaneConfig(limiter=limiter)}) as lanes:
        outer = lanes.submit_nowait(parent, lanes, cleaned_up)
        await wait_all_tasks_blocked()
        limiter.total_tokens = 1
        await trio.sleep(2)
        assert limiter.statistics().tasks_waiting == 1
        outer.cancel()
        await outer.wait_done()
        await wait_all_tasks_blocked()
        assert limiter.statistics().tasks_waiting == limiter.borrowed_tokens == 0
    assert cleaned_up == [3.0]


async def test_a_job_that_cleans_up_without_its_slot_is_waited_for_as_any_other(
    autojump_clock: MockClock,
) -> None:
    """It may lend again what it does not have, and wants that back, too."""

    async def inner() -> None:
        job = this_job()
        try:
            async with job.yield_slot():
                await trio.sleep(1)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
                assert job.blocked_by() == ()
            async with job.yield_slot():
                pass

    async def outer() -> None:
        job = lanes.submit_nowait(inner)
        await trio.sleep(1)
        lanes.configure({"main": 1})
        job.cancel()
        await trio.sleep(0.1)
        await job.wait_done()  # no deadlock: it needs no slot any more

    async with open_lanes({"main": 2}) as lanes:
        lanes.submit_nowait(trio.sleep_forever)
        await wait_all_tasks_blocked()
        job = lanes.submit_nowait(outer)
        await trio.sleep(0.5)
        lanes.jobs()[0].cancel()
        await job.wait()
    assert trio.current_time() == pytest.approx(2.1)  # as soon as it is waited for, and a second


async def test_a_cancelled_job_goes_on_when_a_job_that_comes_before_others_takes_its_last_chance(
    autojump_clock: MockClock,
) -> None:
    cleaned_up: list[float] = []
    lent: list[Job[None]] = []

    async def holds() -> None:
        lent.append(lanes.submit_nowait(child, cleaned_up))
        await trio.sleep(0.5)
        lanes.configure({"main": 1})
        lent[0].cancel()
        await lanes.submit_nowait(trio.sleep, 1, session="alice", lane="cron").wait()

    async def waits() -> None:
        await trio.sleep(1)
        await lent[0].wait_done()

    async with open_lanes({"main": 2, "other": 1, "cron": 2}) as lanes:
        lanes.submit_nowait(trio.sleep, 5, session="alice", lane="cron")
        jobs = [lanes.submit_nowait(holds), lanes.submit_nowait(waits, lane="other")]
        await trio.sleep(2)
        assert not cleaned_up
        # It comes before the job that `holds` waits for, and waits for a slot that `waits` has.
        jobs.append(lanes.submit_nowait(trio.sleep, 1, session="alice", lane="other", priority=1))
        for job in jobs:
            await job.wait()
    assert cleaned_up == [3.0]
    assert trio.current_time() == 7.0


async def test_a_knot_that_would_be_none_the_looser_for_it_is_an_error_as_any_other(
    autojump_clock: MockClock,
) -> None:
    cleaned_up: list[float] = []

    async def outer() -> None:
        inner = lanes.submit_nowait(child, cleaned_up)
        await trio.sleep(0.5)
        lanes.configure({"main": 1})
        inner.cancel()
        await trio.sleep(0.5)
        with pytest.raises(LaneDeadlockError):  # `outer` has the session
            await lanes.run(trio.sleep, 1, session="alice")

    async with open_lanes({"main": 2}) as lanes:
        await lanes.run(outer, session="alice")
    assert cleaned_up == [2.0]  # with the slot that `outer` had


async def lends_twice() -> None:
    """Go on without a slot after the first block, since none can come, and lend again."""
    try:
        async with this_job().yield_slot():
            await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            async with this_job().yield_slot():
                await trio.sleep(1)


@pytest.mark.parametrize("close", [close_the_lane, close_the_group])
async def test_a_cancelled_job_that_lends_again_while_it_cleans_up_ends_without_a_slot(
    autojump_clock: MockClock, close: Callable[[Lanes], None]
) -> None:
    async with open_lanes({"main": 1}, groups={"key": LaneGroup(["main"])}) as lanes:
        job = lanes.submit_nowait(lends_twice)
        await wait_all_tasks_blocked()
        close(lanes)
        job.cancel()
        await job.wait_done()
    assert trio.current_time() == 1.0


async def test_a_cancelled_job_that_lends_again_while_another_waits_for_it_ends_without_a_slot(
    autojump_clock: MockClock,
) -> None:
    async def cancels() -> None:
        job.cancel()
        await trio.sleep(0.5)
        await job.wait_done()

    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(lends_twice)
        await wait_all_tasks_blocked()
        await lanes.run(cancels)
    assert trio.current_time() == 1.5


async def test_a_cancelled_job_that_lends_again_waits_for_a_slot_that_can_come(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(lends_twice)
        await wait_all_tasks_blocked()
        close_the_lane(lanes)
        job.cancel()
        await trio.sleep(0.5)
        narrow_the_lane(lanes)
        lanes.submit_nowait(trio.sleep, 3)
        await job.wait_done()
    assert trio.current_time() == 3.5


@pytest.mark.parametrize("when", [0.5, 1.5])
async def test_a_shield_around_the_block_keeps_no_cancelled_job_from_going_on_without_a_slot(
    autojump_clock: MockClock, when: float
) -> None:
    async def shielded() -> None:
        with trio.CancelScope(shield=True):
            async with this_job().yield_slot():
                await trio.sleep(1)

    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(shielded)
        await wait_all_tasks_blocked()
        close_the_lane(lanes)
        await trio.sleep(when)
        job.cancel()
        await job.wait_done()
    assert trio.current_time() == max(when, 1.0)


async def test_a_cancelled_job_leaves_a_map_that_lends_though_no_slot_can_come(
    autojump_clock: MockClock,
) -> None:
    async def maps() -> None:
        async with lanes.map(trio.sleep, [10, 10], lane="sub", yield_slot=True) as results:
            async for _ in results:
                pass

    async with open_lanes({"main": 1, "sub": 1}) as lanes:
        job = lanes.submit_nowait(maps)
        await trio.sleep(1)
        close_the_lane(lanes)
        job.cancel()
        await job.wait_done()
    assert trio.current_time() == 1.0


@pytest.mark.parametrize("lower", LOWERED)
async def test_a_job_that_waits_for_its_slot_in_vain_says_that_a_limit_was_lowered_and_who_keeps_it(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, lower: Callable[[Lanes], None]
) -> None:
    group = LaneGroup(["main"], concurrency=2)
    cleaned_up: list[float] = []
    async with open_lanes({"main": 2}, groups={"key": group}) as lanes:
        outer = lanes.submit_nowait(parent, lanes, cleaned_up)
        await trio.sleep(0.5)
        lower(lanes)
        await trio.sleep(2)
        inner = lanes.jobs()[1]
        assert inner.waiting_since == 1.0
        (blocker,) = inner.blocked_by()
        assert blocker.jobs == (outer,)
        assert blocker.reason is not None
        assert "a limit was lowered" in blocker.reason
        assert not caplog.records
        await trio.sleep(3)
        lanes.configure({"main": 2}, groups={})
        await wait_all_tasks_blocked()
        assert inner.blocked_by() == ()
        await trio.sleep(10)
        outer.cancel()
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(";")[0] for line in said] == [
        f"lane 'main': 0 waiting, lent slots wanted back: 1, the longest for {waited} s"
        for waited in ("2.0", "4.0")
    ]
    assert all("; 'child', job 2 ← " in line for line in said)


async def test_a_job_whose_slot_will_come_back_names_who_keeps_it_and_no_limit(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has one line for the jobs that wait to start and for their slots, at most."""
    cleaned_up: list[float] = []
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(child, cleaned_up)
        await wait_all_tasks_blocked()
        holder = lanes.submit_nowait(trio.sleep, 4.5)
        lanes.submit_nowait(trio.sleep, 1)  # waits from 0.0 on
        await trio.sleep(2.5)
        assert job.blocked_by() == (Blocker("concurrency", "main", (holder,)),)
        job.cancel()
    said = [record.getMessage().partition(";")[0] for record in caplog.records]
    assert said == [
        "lane 'main': 1 waiting, lent slots wanted back: 1, the longest for 2.0 s",
        "lane 'main': 1 waiting, lent slots wanted back: 1, the longest for 4.0 s",
    ]


@pytest.mark.trio_only("a cancellation is raised again and again")
async def test_a_job_that_went_on_without_its_slot_does_so_again(
    autojump_clock: MockClock,
) -> None:
    async def lends_twice() -> None:
        with trio.move_on_after(1):
            async with this_job().yield_slot():
                close_the_lane(lanes)
                await trio.sleep_forever()
        async with this_job().yield_slot():  # nothing is cancelled any more
            await trio.sleep(1)

    async with open_lanes({"main": 1}) as lanes:
        with trio.move_on_after(10):
            await lanes.run(lends_twice)
    assert trio.current_time() == 2
