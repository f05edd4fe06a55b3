"""Lending: a job gives its slot away while it waits, and gets one back before it goes on."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from tests.support.bodies import this_job
from tests.support.track import Track
from trio_lanes import (
    Job,
    JobCancelledError,
    JobState,
    JobTimeoutError,
    LaneConfig,
    LaneDeadlockError,
    LaneGroup,
    Lanes,
    LanesClosedError,
    RateLimit,
    open_lanes,
)
from trio_lanes.testing import LaneRecorder

pytestmark = pytest.mark.both_doors


async def lend(seconds: float) -> float:
    """Lend the slot for that long, and return when it was back."""
    async with this_job().yield_slot():
        await trio.sleep(seconds)
    return trio.current_time()


# ---- the slots that are lent


async def test_a_parent_and_its_child_on_a_lane_of_one_both_finish(
    autojump_clock: MockClock,
) -> None:
    async def child(number: int) -> int:
        await trio.sleep(1)
        return number

    async def parent() -> int:
        return await lanes.run(child, 7, yield_slot=True) + await lanes.run(
            child, 1, yield_slot=True
        )

    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        assert await lanes.run(parent) == 8
    recorder.check()
    assert trio.current_time() == 2.0
    assert recorder.peak("main") == 1


@pytest.mark.many_seeds(5)
@pytest.mark.parametrize("yield_slot", [False, True])
async def test_four_parents_on_a_lane_of_four_that_each_run_a_child_on_it(
    autojump_clock: MockClock, yield_slot: bool
) -> None:
    errors: list[LaneDeadlockError] = []

    async def child() -> str:
        await trio.sleep(1)
        return "child"

    async def parent() -> str:
        await trio.sleep(1)
        try:
            return await lanes.run(child, yield_slot=yield_slot)
        except LaneDeadlockError as error:
            errors.append(error)
            return "error"

    async with open_lanes({"main": 4}) as lanes:
        jobs = [lanes.submit_nowait(parent) for _ in range(4)]
    results = [await job.wait() for job in jobs]
    assert sorted(results) == ["child"] * (4 - len(errors)) + ["error"] * len(errors)
    assert len(errors) == (0 if yield_slot else 1)  # the last one; its slot is enough for the rest


async def test_lending_gives_the_tokens_of_lane_and_group_away_and_keeps_the_session(
    autojump_clock: MockClock,
) -> None:
    group = LaneGroup(["main", "cron"], concurrency=1)
    async with open_lanes({"main": 2, "cron": 2}, groups={"all": group}) as lanes:
        track = Track()
        job = lanes.submit_nowait(lend, 10, session="alice")
        lanes.submit_nowait(track.sleep, "alice", session="alice")
        await wait_all_tasks_blocked()
        assert lanes.lane("main").limiter.borrowed_tokens == 0
        assert lanes.session("alice").active == lanes.lane("main").active == 1
        for lane in ("main", "cron"):  # one after the other
            lanes.submit_nowait(track.sleep, lane, lane=lane)
        await trio.sleep(5)
        assert track.ended == ["main", "cron"]
        assert lanes.jobs()[0] is job
        assert job.state is JobState.RUNNING
    assert track.started == ["main", "cron", "alice"]
    assert track.peak == 1
    assert await job.wait() == 10.0


async def test_a_slot_that_is_free_is_back_at_once(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        assert await lanes.run(lend, 3) == 3.0


async def test_others_have_their_turn_when_a_block_is_left_and_not_when_it_is_entered(
    autojump_clock: MockClock,
) -> None:
    async def lends() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, "other task")
            async with this_job().yield_slot():
                async with this_job().yield_slot():
                    order.append("inside")
            order.append("outside")

    async def note(what: str) -> None:
        order.append(what)

    order: list[str] = []
    async with open_lanes({"main": 1}) as lanes:
        await lanes.run(lends)
        assert order == ["inside", "other task", "outside"]
        order.clear()
        job = lanes.submit_nowait(lend, 0)
        lanes.submit_nowait(note, "next job")
        await job.wait()


@pytest.mark.trio_only("its threads are Trio's")
@pytest.mark.parametrize("where", ["outside", "in another job", "in a thread"])
@pytest.mark.parametrize("verb", ["yield_slot", "readmit"])
async def test_a_task_that_is_not_inside_a_job_cannot_give_its_slot_away(
    autojump_clock: MockClock, verb: str, where: str
) -> None:
    track = Track()
    gate = trio.Event()

    async def give_away() -> None:
        with pytest.raises(RuntimeError):
            if verb == "readmit":
                await job.readmit()
            async with job.yield_slot():
                raise AssertionError

    async with open_lanes({"main": 1, "side": 1}) as lanes:
        job = lanes.submit_nowait(track.hold, "first", gate)
        lanes.submit_nowait(track.hold, "second", gate)
        await wait_all_tasks_blocked()
        if where == "outside":
            await give_away()
        elif where == "in another job":
            await lanes.run(give_away, lane="side")
        else:
            await trio.to_thread.run_sync(trio.run, give_away)
        assert lanes.lane("main").limiter.borrowed_tokens == 1
        gate.set()
    assert track.peak == 1
    assert track.ended == ["first", "second"]


async def test_a_job_of_lanes_inside_a_job_is_inside_that_too_and_can_lend_its_slot(
    autojump_clock: MockClock,
) -> None:
    async def lends(outer_job: Job[Any]) -> None:
        async with outer_job.yield_slot():
            await trio.sleep(3)

    async def outer() -> None:
        async with open_lanes({"main": 1}) as inner:
            await inner.run(lends, this_job())

    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(outer)
        await lanes.run(trio.sleep, 2)
        assert trio.current_time() == 2
    assert trio.current_time() == 3


async def test_only_a_job_that_has_started_can_lend_and_no_other_task_can(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 0}) as lanes:
        job = lanes.submit_nowait(trio.sleep, 1)
        with pytest.raises(RuntimeError, match="has no slot to lend"):
            async with job.yield_slot():
                raise AssertionError
        with pytest.raises(RuntimeError, match="not inside a job"):
            await lanes.run(trio.sleep, 1, yield_slot=True)
        assert lanes.jobs() == [job]
        job.cancel()


async def test_several_tasks_lend_from_the_first_to_the_last(autojump_clock: MockClock) -> None:
    track = Track()

    async def later(delay: float, seconds: float) -> None:
        await trio.sleep(delay)
        times.append(await lend(seconds))

    async def lends() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(later, 0, 3)
            nursery.start_soon(later, 1, 1)
            nursery.start_soon(later, 2, 5)
        await track.sleep("lender")

    times: list[float] = []
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(lends)
        for i in range(7):
            lanes.submit_nowait(track.sleep, i)
    assert times == [2.0, 3.0, 7.0]  # only the last task waits for the slot
    assert track.started == [0, 1, 2, 3, 4, 5, 6, "lender"]
    assert track.peak == 1


async def test_a_task_that_wants_the_slot_back_need_not_when_another_lends(
    autojump_clock: MockClock,
) -> None:
    track = Track()

    async def first() -> None:
        times.append(await lend(1))

    async def second() -> None:
        await trio.sleep(2)
        times.append(await lend(4))

    async def lends() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            nursery.start_soon(second)

    times: list[float] = []
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(lends)
        lanes.submit_nowait(track.sleep, "long", 5)
        lanes.submit_nowait(track.sleep, "short", 1)
    assert times == [2.0, 6.0]
    assert track.end_times == {"long": 5.0, "short": 6.0}


async def test_nested_blocks_of_one_task_lend_once(autojump_clock: MockClock) -> None:
    track = Track()

    async def lends() -> None:
        async with this_job().yield_slot():
            await lend(2)
            await track.sleep("inner", 2)

    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(lends)
        lanes.submit_nowait(track.sleep, "other", 3)
    assert track.end_times == {"other": 3.0, "inner": 4.0}


# ---- taking it back


async def test_taking_back_goes_before_all_that_waits(autojump_clock: MockClock) -> None:
    track = Track()

    async def lends(label: str, seconds: float) -> None:
        await lend(seconds)
        await track.sleep(label)

    async with open_lanes({"main": 2}) as lanes:
        for label, seconds in (("second", 2), ("first", 1)):
            lanes.submit_nowait(lends, label, seconds)
        for i in range(2):
            lanes.submit_nowait(track.sleep, f"blocker{i}", 3 + i)
        await wait_all_tasks_blocked()
        for i in range(2):
            lanes.submit_nowait(track.sleep, f"urgent{i}", priority=9)
    assert track.start_times == {
        "blocker0": 0.0,
        "blocker1": 0.0,
        "first": 3.0,
        "second": 4.0,
        "urgent0": 4.0,
        "urgent1": 5.0,
    }


async def test_taking_back_goes_before_all_that_waits_in_the_group(
    autojump_clock: MockClock,
) -> None:
    track = Track()

    async def lends() -> None:
        await lend(1)
        await track.sleep("lender")

    group = LaneGroup(["main", "cron"], concurrency=1)
    async with open_lanes({"main": 2, "cron": 2}, groups={"all": group}) as lanes:
        lanes.submit_nowait(lends)
        lanes.submit_nowait(track.sleep, "blocker", 3, lane="cron")
        await wait_all_tasks_blocked()
        for lane in ("cron", "main"):
            lanes.submit_nowait(track.sleep, lane, lane=lane, priority=9)
    assert track.started == ["blocker", "lender", "cron", "main"]
    assert track.peak == 1


async def test_taking_back_ignores_pauses_and_rates(autojump_clock: MockClock) -> None:
    rate = RateLimit(1, per=60, algorithm="sliding")
    async with open_lanes({"main": LaneConfig(rate=rate)}) as lanes:
        job = lanes.submit_nowait(lend, 1)
        await wait_all_tasks_blocked()
        lanes.pause("main")
        assert await job.wait() == 1.0
        lanes.resume()


async def test_taking_back_ignores_the_reservation_but_not_the_budget(
    autojump_clock: MockClock,
) -> None:
    group = LaneGroup(["main", "hooks"], concurrency=2, reserve={"hooks": 1})
    async with open_lanes({"main": 5, "hooks": 5}, groups={"all": group}) as lanes:
        first = lanes.submit_nowait(lend, 1)
        lanes.submit_nowait(trio.sleep, 3)  # has the only token that is not reserved
        assert await first.wait() == 1.0
        await trio.sleep(2)
        second = lanes.submit_nowait(lend, 1)
        for seconds in (5, 9):
            lanes.submit_nowait(trio.sleep, seconds, lane="hooks")
        assert await second.wait() == 8.0  # when the shorter hook has ended


@pytest.mark.parametrize("narrowed", [0, 1])
async def test_taking_back_respects_a_limit_that_was_lowered_meanwhile(
    autojump_clock: MockClock, narrowed: int
) -> None:
    async with open_lanes({"main": 2}) as lanes:
        lanes.submit_nowait(trio.sleep, 5)
        job = lanes.submit_nowait(lend, 1)
        await wait_all_tasks_blocked()
        lane = lanes.lane("main")
        lane.concurrency = narrowed
        await trio.sleep(10)
        if narrowed:
            assert await job.wait() == 5.0
        else:
            assert job.state is JobState.RUNNING
            assert lane.statistics().active == 1
            lane.concurrency = 1
            assert await job.wait() == 10.0


async def test_nothing_starts_in_the_lane_while_a_lent_slot_is_wanted_back(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 2}) as lanes:
        lanes.submit_nowait(track.sleep, "blocker", 5)
        lanes.submit_nowait(lend, 1)
        await wait_all_tasks_blocked()
        lanes.lane("main").concurrency = 1
        lanes.submit_nowait(track.sleep, "waiting", priority=5)
        await trio.sleep(2)
        with pytest.raises(trio.TooSlowError):
            await lanes.run(track.sleep, "full", queue_timeout=0)
    assert track.started == ["blocker", "waiting"]
    assert track.start_times["waiting"] == 5.0


async def test_a_job_that_is_cancelled_while_it_lends_cleans_up_with_its_slot(
    autojump_clock: MockClock,
) -> None:
    track = Track()

    async def lends() -> None:
        async with this_job().yield_slot():
            await trio.sleep_forever()

    async def cleans_up() -> None:
        try:
            await lends()
        finally:
            track.started.append("cleanup")
            track.start_times["cleanup"] = trio.current_time()
            with trio.CancelScope(shield=True):
                await trio.sleep(2)

    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(cleans_up)
        lanes.submit_nowait(track.sleep, "borrower", 5)
        await trio.sleep(1)
        lanes.submit_nowait(track.sleep, "waiting", priority=5)
        job.cancel()
        job.cancel()
        with pytest.raises(JobCancelledError):
            await job.wait()
    assert track.start_times == {"borrower": 0.0, "cleanup": 5.0, "waiting": 7.0}


async def test_a_parent_that_is_cancelled_meanwhile_ends_after_its_child(
    autojump_clock: MockClock,
) -> None:
    async def child() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(3)

    async def parent() -> None:
        await lanes.run(child, name="child", yield_slot=True)

    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        job = lanes.submit_nowait(parent, name="parent")
        await trio.sleep(1)
        job.cancel()
        await job.wait_done()
    recorder.check()
    assert [(one.name, one.state, one.finished_at) for one in recorder.finished] == [
        ("child", JobState.CANCELLED, 4.0),
        ("parent", JobState.CANCELLED, 4.0),
    ]


async def test_a_cancelled_parent_gets_the_value_of_a_child_that_returns_one(
    autojump_clock: MockClock,
) -> None:
    async def child() -> str:
        try:
            await trio.sleep_forever()
        finally:
            return "value"  # noqa: B012

    async def parent() -> str:
        return await lanes.run(child, yield_slot=True)

    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(parent)
        await trio.sleep(1)
        job.cancel()
        assert await job.wait() == "value"


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_lane_that_gets_its_lenders_slot_from_the_group_then_starts_its_best_head(
    autojump_clock: MockClock, at_once: bool
) -> None:
    track, back = Track(), trio.Event()

    async def lender() -> None:
        async with this_job().yield_slot():
            await back.wait()
        await jobs[-1].wait()

    group = LaneGroup(["main", "cron"], concurrency=2)
    async with open_lanes({"main": 2, "cron": 2}, groups={"all": group}) as lanes:
        job = lanes.submit_nowait(lender)
        await wait_all_tasks_blocked()
        jobs = [lanes.submit_nowait(trio.sleep_forever, lane="cron") for _ in range(2)]
        back.set()
        await wait_all_tasks_blocked()
        assert [blocker.kind for blocker in job.blocked_by()] == ["group"]
        lanes.submit_nowait(track.sleep, "worse", lane="cron")
        jobs.append(lanes.submit_nowait(track.sleep, "better", priority=1))
        if at_once:
            lanes.reset("cron")
        else:
            for running in jobs[:2]:
                running.cancel()
                await wait_all_tasks_blocked()
        assert jobs[-1].state is JobState.RUNNING
        await job.wait()
    assert track.started == ["better", "worse"]
    assert trio.current_time() == 2.0


# ---- resets and ends


@pytest.mark.parametrize("back", [False, True])
async def test_a_reset_of_a_job_that_lends_leaves_the_slot_to_others(
    autojump_clock: MockClock, back: bool
) -> None:
    track = Track()
    later: list[float] = []

    async def stuck() -> None:
        with trio.CancelScope(shield=True):
            later.append(await lend(2 if back else 10))
            later.append(await lend(1))  # what it does later is its own affair

    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(stuck)
        await wait_all_tasks_blocked()
        lanes.submit_nowait(track.sleep, "borrower", 5)
        await trio.sleep(3)
        assert lanes.reset() == 2
        assert job.done
        lanes.submit_nowait(track.sleep, "next", 2)
        assert lanes.statistics().active == 1
        assert lanes.lane("main").limiter.borrowed_tokens == 1
        await lanes.wait_idle()
        assert lanes.lane("main").limiter.borrowed_tokens == 0
    assert track.end_times == {"next": 5.0}
    assert later == ([3.0, 4.0] if back else [10.0, 11.0])


async def test_a_job_that_has_ended_has_nothing_to_lend_and_nothing_to_take_back(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(trio.sleep, 1)
        await job.wait()
        lanes.submit_nowait(trio.sleep, 5)
        async with job.yield_slot():
            assert lanes.lane("main").limiter.borrowed_tokens == 1
        assert trio.current_time() == 1.0


async def test_the_end_of_a_job_that_never_took_its_slot_back_lets_others_go_on(
    autojump_clock: MockClock,
) -> None:
    """The block in which it lent is left after its end, elsewhere."""
    blocks = []

    async def lend_and_end() -> None:
        blocks.append(this_job().yield_slot())
        await blocks[0].__aenter__()
        await trio.sleep(1)

    async with open_lanes({"main": 1, "sub:*": 1}) as lanes:
        job = lanes.submit_nowait(lend_and_end, lane="sub:a")
        await job.wait()
        assert list(lanes.statistics().lanes) == ["main"]
        await blocks[0].__aexit__(None, None, None)


async def test_lanes_that_are_left_let_a_lender_take_its_slot_back(
    autojump_clock: MockClock,
) -> None:
    track = Track()

    async def lends() -> None:
        await lend(1)
        await lanes.run(track.sleep, "child", yield_slot=True)
        await track.sleep("after")

    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(lends)
        lanes.submit_nowait(track.sleep, "other", 3)
    assert track.end_times == {"other": 3.0, "child": 4.0, "after": 5.0}


async def test_lanes_that_are_cancelled_let_a_lender_clean_up(autojump_clock: MockClock) -> None:
    cleaned: list[float] = []

    async def lends() -> None:
        try:
            await lend(10)
        finally:
            cleaned.append(trio.current_time())

    async def stuck() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)

    with trio.CancelScope() as scope:
        async with open_lanes({"main": 1}) as lanes:
            lanes.submit_nowait(lends)
            lanes.submit_nowait(stuck)
            await trio.sleep(1)
            scope.cancel()
            await trio.sleep_forever()
    assert cleaned == [5.0]


async def test_a_lane_in_which_a_job_lends_cannot_be_removed(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        job = lanes.submit_nowait(lend, 5, lane="cron")
        await wait_all_tasks_blocked()
        with pytest.raises(ValueError, match="'cron' cannot be removed"):
            lanes.configure({"cron": None})
        await job.wait()
        lanes.configure({"cron": None})


# ---- time


async def test_the_timeout_goes_on_while_the_slot_is_lent(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(JobTimeoutError, match="timeout of 2"):
            await lanes.run(lend, 10, timeout=2)
        assert trio.current_time() == 2.0


async def test_the_idle_timeout_stops_meanwhile_and_begins_anew_with_the_slot(
    autojump_clock: MockClock,
) -> None:
    async def lends() -> None:
        await trio.sleep(1.5)
        await lend(10)
        await trio.sleep(1.5)  # not idle for as long as that in one go
        await trio.sleep(1.5)

    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(JobTimeoutError) as caught:
            await lanes.run(lends, idle_timeout=2)
        assert caught.value.kind == "idle_timeout"
        assert trio.current_time() == 13.5


async def test_progress_while_the_slot_is_lent_does_not_start_the_idle_clock(
    autojump_clock: MockClock,
) -> None:
    async def lends() -> None:
        async with this_job().yield_slot():
            this_job().progress()
            await trio.sleep(10)
            this_job().progress()
            await trio.sleep(10)

    async with open_lanes({"main": 1}) as lanes:
        await lanes.run(lends, idle_timeout=2)
        assert trio.current_time() == 20.0


# ---- run(yield_slot=True)


async def test_a_nested_run_takes_its_place_before_the_slot_is_lent(
    autojump_clock: MockClock,
) -> None:
    track = Track()

    async def parent() -> None:
        await lanes.run(track.sleep, "child", yield_slot=True, priority=1)

    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(parent)
        lanes.submit_nowait(track.sleep, "other")
        await job.wait()
    assert track.started == ["child", "other"]


async def test_the_slot_is_lent_also_while_a_nested_run_waits_for_room(
    autojump_clock: MockClock,
) -> None:
    track = Track()

    async def parent() -> str:
        value: str = await lanes.run(track.sleep, "child", yield_slot=True)
        track.started.append("parent")
        return value

    async with open_lanes({"main": LaneConfig(max_waiting=1)}) as lanes:
        job = lanes.submit_nowait(parent)
        lanes.submit_nowait(track.sleep, "other")
        assert await job.wait() == "child"
    assert track.started == ["other", "child", "parent"]
    assert trio.current_time() == 2.0


async def test_a_nested_run_that_finds_room_by_lending_does_not_wait_for_it(
    autojump_clock: MockClock,
) -> None:
    async def parent() -> str:
        return await lanes.run(child, yield_slot=True)

    async def child() -> str:
        return "child"

    async with open_lanes({"main": LaneConfig(max_waiting=0)}) as lanes:
        assert await lanes.run(parent) == "child"


async def test_a_nested_run_that_fails_at_the_call_has_lent_nothing(
    autojump_clock: MockClock,
) -> None:
    async def parent() -> None:
        with pytest.raises(ValueError, match="timeout"):
            await lanes.run(trio.sleep, 1, yield_slot=True, timeout=-1)
        assert lanes.lane("main").limiter.borrowed_tokens == 1

    async with open_lanes({"main": 1}) as lanes:
        await lanes.run(parent)


async def test_a_nested_run_that_is_refused_meanwhile_takes_its_slot_back(
    autojump_clock: MockClock,
) -> None:
    async def parent() -> None:
        with pytest.raises(JobCancelledError):
            await lanes.run(trio.sleep, 1, lane="cron", yield_slot=True)
        assert lanes.lane("main").limiter.borrowed_tokens == 1

    async with open_lanes({"main": 1, "cron": 0}) as lanes:
        job = lanes.submit_nowait(parent)
        await wait_all_tasks_blocked()
        assert lanes.clear("cron") == 1
        await job.wait()


# ---- readmit


async def readmitted(lanes: Lanes, pause: float = 0, **kwargs: Any) -> float:
    """Be readmitted, after a pause of the lane, and return when that was."""
    if pause:
        lanes.pause_for(this_job().lane, pause)
    await this_job().readmit(**kwargs)
    return trio.current_time()


async def test_a_job_is_readmitted_when_the_pause_is_over(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        assert await lanes.run(readmitted, lanes, 30) == 30.0


async def test_a_job_that_nothing_stops_is_readmitted_at_once_and_that_is_a_checkpoint(
    autojump_clock: MockClock,
) -> None:
    async def body() -> float:
        with assert_checkpoints():
            return await readmitted(lanes)

    async with open_lanes({"main": 1}) as lanes:
        assert await lanes.run(body) == 0.0


@pytest.mark.many_seeds(5)
async def test_readmitted_jobs_go_before_their_priority_in_the_order_in_which_they_asked(
    autojump_clock: MockClock,
) -> None:
    track = Track()

    async def turned_away(label: str, delay: float) -> None:
        await trio.sleep(delay)
        await readmitted(lanes, 30)
        await track.sleep(label)

    async with open_lanes({"main": 3}) as lanes:
        for label, delay in (("second", 2), ("first", 1), ("third", 3)):
            lanes.submit_nowait(turned_away, label, delay)
        await trio.sleep(5)
        for label in ("new1", "new2"):
            lanes.submit_nowait(track.sleep, label)
        lanes.submit_nowait(track.sleep, "better", priority=1)
        lanes.lane("main").concurrency = 1
    assert track.started == ["better", "first", "second", "third", "new1", "new2"]
    assert track.start_times["better"] == 33.0


async def test_a_readmitted_job_goes_before_its_priority_in_its_group(
    autojump_clock: MockClock,
) -> None:
    track = Track()

    async def turned_away() -> None:
        await trio.sleep(1)
        await readmitted(lanes, 30)
        await track.sleep("again")

    group = LaneGroup(["main", "cron"], concurrency=1)
    async with open_lanes({"main": 2, "cron": 2}, groups={"all": group}) as lanes:
        lanes.submit_nowait(trio.sleep, 0, lane="cron")
        lanes.submit_nowait(turned_away)
        lanes.submit_nowait(track.sleep, "cron0", 40, lane="cron")
        for lane in ("cron", "main"):
            lanes.submit_nowait(track.sleep, lane, lane=lane)
    assert track.started == ["cron0", "again", "cron", "main"]


async def test_a_readmitted_job_takes_nobodys_turn_in_a_fair_lane(
    autojump_clock: MockClock,
) -> None:
    track = Track()

    async def turned_away(label: str) -> None:
        await readmitted(lanes, 30)
        await track.sleep(label)

    async with open_lanes({"main": LaneConfig(concurrency=2, fair=True)}) as lanes:
        for label in ("again1", "again2"):
            lanes.submit_nowait(turned_away, label, owner="a")
        await wait_all_tasks_blocked()
        for i in range(2):
            for owner in "bac":
                lanes.submit_nowait(track.sleep, f"{owner}{i}", owner=owner)
        lanes.lane("main").concurrency = 1
    assert track.started == ["again1", "again2", "b0", "a0", "c0", "b1", "a1", "c1"]


async def test_in_a_lane_with_aging_a_readmitted_job_has_waited_since_it_asked(
    autojump_clock: MockClock,
) -> None:
    track = Track()

    async def turned_away() -> None:
        await trio.sleep(100)
        await readmitted(lanes, 10)
        await track.sleep("again")

    async with open_lanes({"main": LaneConfig(aging=20)}) as lanes:
        lanes.submit_nowait(turned_away)
        await trio.sleep(99)
        lanes.submit_nowait(track.sleep, "better", priority=1)
    assert track.started == ["better", "again"]


async def test_what_waits_may_use_the_slot_until_the_job_is_readmitted(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    rate = RateLimit(10, per=60, unit="tokens", algorithm="sliding")
    async with open_lanes({"main": LaneConfig(rate=rate)}) as lanes:
        job = lanes.submit_nowait(readmitted, lanes, cost={"tokens": 6}, priority=-1)
        await wait_all_tasks_blocked()
        lanes.submit_nowait(track.sleep, "cheap", cost={"tokens": 4})
        assert await job.wait() == 60.0
    assert track.end_times == {"cheap": 1.0}


async def test_the_slot_of_the_session_is_kept_meanwhile(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 2}) as lanes:
        job = lanes.submit_nowait(readmitted, lanes, 30, session="alice")
        await wait_all_tasks_blocked()
        lanes.submit_nowait(track.sleep, "alice", session="alice")
        assert lanes.session("alice").active == 1
        assert lanes.lane("main").limiter.borrowed_tokens == 0
        await job.wait()
    assert track.start_times == {"alice": 30.0}


async def test_readmission_respects_the_limit_and_the_budget(autojump_clock: MockClock) -> None:
    group = LaneGroup(["main", "hooks"], concurrency=2)
    async with open_lanes({"main": 1, "hooks": 2}, groups={"all": group}) as lanes:
        job = lanes.submit_nowait(readmitted, lanes, 1)
        await wait_all_tasks_blocked()
        for seconds in (5, 9):
            lanes.submit_nowait(trio.sleep, seconds, lane="hooks")
        assert await job.wait() == 5.0
        job = lanes.submit_nowait(readmitted, lanes, 1)
        await wait_all_tasks_blocked()
        lanes.lane("main").concurrency = 0
        await trio.sleep(5)
        lanes.lane("main").concurrency = 1
        assert await job.wait() == 10.0


async def test_readmission_respects_the_reservation(autojump_clock: MockClock) -> None:
    group = LaneGroup(["main", "hooks"], concurrency=2, reserve={"hooks": 1})
    config = {"main": LaneConfig(concurrency=5, rate=SLIDING), "hooks": 5}
    async with open_lanes(config, groups={"all": group}) as lanes:
        job = lanes.submit_nowait(readmitted, lanes, cost={"tokens": 60})
        await wait_all_tasks_blocked()
        lanes.submit_nowait(trio.sleep, 100, priority=1)
        assert await job.wait() == 100.0  # the rate would have let it go on at 60


SLIDING = RateLimit(100, per=60, unit="tokens", algorithm="sliding")


async def ready_after(lanes: Lanes, tokens: float) -> float:
    """Seconds until a job of that many tokens starts."""
    before = trio.current_time()
    job = lanes.submit_nowait(trio.sleep, 0, cost={"tokens": tokens})
    await job.wait()
    return trio.current_time() - before


@pytest.mark.parametrize("where", ["lane", "group", "session"])
async def test_the_cost_is_charged_again(autojump_clock: MockClock, where: str) -> None:
    config = LaneConfig(concurrency=5, rate=SLIDING if where == "lane" else ())
    group = LaneGroup(["main"], rate=SLIDING if where == "group" else ())
    sessions = LaneConfig(concurrency=5, rate=SLIDING if where == "session" else ())
    async with open_lanes({"main": config}, groups={"all": group}, sessions=sessions) as lanes:
        alice = lanes.session("alice")
        assert await alice.run(readmitted, lanes, 1, cost={"tokens": 40}) == 1.0
        fits = alice.submit_nowait(trio.sleep, 0, cost={"tokens": 20})
        more = alice.submit_nowait(trio.sleep, 0, cost={"tokens": 1})
        await more.wait()
        assert fits.started_at == 1.0
        assert more.started_at == 60.0


async def test_a_readmission_costs_what_the_job_costs_unless_it_says_so_itself(
    autojump_clock: MockClock,
) -> None:
    async def body() -> None:
        for cost in ({"tokens": 50}, None, {"tokens": 10}, None):
            await trio.sleep(200)
            await readmitted(lanes, cost=cost)
            assert await ready_after(lanes, 100 - (cost or {"tokens": 20})["tokens"]) == 0
            assert await ready_after(lanes, 1) == 60.0

    async with open_lanes({"main": LaneConfig(concurrency=5, rate=SLIDING)}) as lanes:
        await lanes.run(body, cost={"tokens": 20})


async def test_after_a_readmission_the_actual_use_can_be_charged_again(
    autojump_clock: MockClock,
) -> None:
    async def body() -> None:
        job = this_job()
        job.charge(tokens=0)  # the first try was refused and used nothing
        with pytest.raises(RuntimeError, match="this start was corrected before"):
            job.charge(tokens=0)
        await readmitted(lanes, 10, cost={"tokens": 80})
        job.charge(tokens=30)
        with pytest.raises(RuntimeError, match="this start was corrected before"):
            job.charge(tokens=30)
        assert await ready_after(lanes, 70) == 0
        assert await ready_after(lanes, 1) == 60.0

    async with open_lanes({"main": LaneConfig(concurrency=2, rate=SLIDING)}) as lanes:
        await lanes.run(body, cost={"tokens": 100})


async def test_a_readmission_that_was_cancelled_does_not_change_the_charge(
    autojump_clock: MockClock,
) -> None:
    async def body() -> None:
        with trio.move_on_after(5):
            await readmitted(lanes, 10, cost={"tokens": 90})
        this_job().charge(tokens=10)  # instead of the 30 of its start

    async with open_lanes({"main": LaneConfig(concurrency=2, rate=SLIDING)}) as lanes:
        lanes.submit_nowait(trio.sleep, 0, cost={"tokens": 70})
        await lanes.run(body, cost={"tokens": 30})
        assert trio.current_time() == 5.0
        lanes.resume()
        assert await ready_after(lanes, 20) == 0
        assert await ready_after(lanes, 1) == 55.0


async def test_a_cost_that_is_no_cost_is_refused_before_anything_has_changed(
    autojump_clock: MockClock,
) -> None:
    refused: list[tuple[Any, type[Exception], str]] = [
        ({"tokenz": 5}, ValueError, "'tokenz'"),
        ({"tokens": -5}, ValueError, "tokens"),
        ({"tokens": "5"}, TypeError, "tokens"),
        (-1, ValueError, "cost"),
        ("1", TypeError, "cost"),
    ]

    async def body() -> None:
        for bad, error, words in refused:
            with pytest.raises(error, match=words):
                await this_job().readmit(cost=bad)
        assert lanes.lane("main").limiter.borrowed_tokens == 1

    async with open_lanes({"main": LaneConfig(rate=SLIDING)}) as lanes:
        await lanes.run(body, cost={"tokens": 60})
        assert await ready_after(lanes, 40) == 0


@pytest.mark.trio_only("the state is looked at in the next pass of Trio's")
async def test_only_a_job_that_runs_and_has_its_slot_can_be_readmitted(
    autojump_clock: MockClock,
) -> None:
    async def body() -> None:
        async with this_job().yield_slot():
            with pytest.raises(RuntimeError, match="has lent its slot"):
                await this_job().readmit()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readmitted, lanes, 5)
            await wait_all_tasks_blocked()
            with pytest.raises(RuntimeError, match="has lent its slot"):
                await this_job().readmit()

    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(body)
        waiting = lanes.submit_nowait(trio.sleep, 0)
        with pytest.raises(RuntimeError, match="does not run"):
            await waiting.readmit()
        await job.wait()
        with pytest.raises(RuntimeError, match="does not run"):
            await job.readmit()


async def test_a_job_may_be_readmitted_again_and_again(autojump_clock: MockClock) -> None:
    async def body() -> list[float]:
        return [await readmitted(lanes, 10) for _ in range(5)]

    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        assert await lanes.run(body) == [10.0, 20.0, 30.0, 40.0, 50.0]
    recorder.check()
    assert len(recorder.started) == 1


async def test_a_cancelled_readmission_waits_for_a_slot_to_clean_up_with(
    autojump_clock: MockClock,
) -> None:
    times: list[float] = []

    async def body() -> None:
        try:
            await readmitted(lanes, 30)
        finally:
            times.append(trio.current_time())
            with trio.CancelScope(shield=True):
                await trio.sleep(1)

    recorder = LaneRecorder()
    async with open_lanes({"main": 2}, instruments=[recorder]) as lanes:
        lanes.submit_nowait(trio.sleep, 8)
        job = lanes.submit_nowait(body)
        await wait_all_tasks_blocked()
        lanes.lane("main").concurrency = 1
        await trio.sleep(2)
        job.cancel()
        await job.wait_done()
        assert times == [8.0]  # in spite of the pause, but not of the limit
        assert job.finished_at == 9.0
    recorder.check()


async def test_a_readmission_that_is_cancelled_lets_the_jobs_behind_it_start(
    autojump_clock: MockClock,
) -> None:
    track = Track()

    async def body() -> None:
        with trio.move_on_after(5):
            await readmitted(lanes, cost={"tokens": 90})
        await trio.sleep(100)

    async with open_lanes({"main": LaneConfig(concurrency=2, rate=SLIDING)}) as lanes:
        lanes.submit_nowait(body, cost={"tokens": 20})
        await wait_all_tasks_blocked()
        lanes.submit_nowait(track.sleep, "next", cost={"tokens": 5})
        await trio.sleep(10)
    assert track.start_times == {"next": 5.0}


@pytest.mark.parametrize("session", [None, "alice"])
@pytest.mark.parametrize("grouped", [False, True])
async def test_a_cancelled_readmission_gets_its_slot_before_the_jobs_that_stood_behind_it(
    autojump_clock: MockClock, session: str | None, grouped: bool
) -> None:
    groups = {"all": LaneGroup(["main"], concurrency=1)} if grouped else {}
    recorder = LaneRecorder()
    config = LaneConfig(concurrency=2 if grouped else 1, rate=SLIDING)
    async with open_lanes({"main": config}, groups=groups, instruments=[recorder]) as lanes:
        job = lanes.submit_nowait(readmitted, lanes, session=session, cost={"tokens": 90})
        await wait_all_tasks_blocked()
        behind = lanes.submit_nowait(trio.sleep, 100, cost={"tokens": 5})
        await trio.sleep(5)
        assert job.blocked_by()[0].kind == "rate"
        job.cancel()
        with pytest.raises(JobCancelledError):
            await job.wait()
        assert trio.current_time() == 5.0
        await behind.wait()
        assert behind.started_at == 5.0
    recorder.check()


async def test_a_cancelled_readmission_without_any_slot_to_come_is_over_at_once(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(readmitted, lanes, 30)
        await wait_all_tasks_blocked()
        lanes.lane("main").concurrency = 0
        job.cancel()
        with pytest.raises(JobCancelledError):
            await job.wait()
        assert trio.current_time() == 0.0


@pytest.mark.many_seeds(10)
async def test_a_readmission_may_be_cancelled_in_the_tick_in_which_it_comes(
    autojump_clock: MockClock,
) -> None:
    async def body() -> None:
        await readmitted(lanes, 5)
        await trio.sleep_forever()

    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        job = lanes.submit_nowait(body)
        await trio.sleep(5)
        job.cancel()
        with pytest.raises(JobCancelledError):
            await job.wait()
        assert lanes.lane("main").limiter.borrowed_tokens == 0
    recorder.check()
    assert trio.current_time() == 5.0


@pytest.mark.parametrize("shielded", [False, True])
async def test_a_reset_ends_a_readmission(autojump_clock: MockClock, shielded: bool) -> None:
    times: list[float] = []

    async def body() -> None:
        with trio.CancelScope(shield=shielded):
            try:
                await readmitted(lanes, 30)
            finally:
                times.append(trio.current_time())

    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(body)
        await trio.sleep(1)
        assert lanes.reset() == 1
        assert job.done
        await trio.sleep(1)
        assert times == [1.0]
        assert lanes.statistics().active == lanes.statistics().abandoned == 0
        lanes.resume()
        await lanes.run(trio.sleep, 1)


async def test_the_idle_timeout_stops_until_the_job_is_readmitted(
    autojump_clock: MockClock,
) -> None:
    async def body() -> None:
        await readmitted(lanes, 30)
        await trio.sleep(5)

    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(JobTimeoutError, match="idle_timeout of 2"):
            await lanes.run(body, idle_timeout=2)
        assert trio.current_time() == 32.0


async def test_the_timeout_goes_on_until_the_job_is_readmitted(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(JobTimeoutError, match="its timeout of 7"):
            await lanes.run(readmitted, lanes, 30, timeout=7)
        assert trio.current_time() == 7.0


async def test_a_lender_that_is_done_before_the_readmission_waits_for_that(
    autojump_clock: MockClock,
) -> None:
    track = Track()

    async def lender() -> None:
        await trio.sleep(1)
        assert await lend(1) == 30.0

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lender)
            await readmitted(lanes, 30)
            await track.sleep("again")

    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        await lanes.run(body)
        assert lanes.lane("main").limiter.borrowed_tokens == 0
    recorder.check()
    assert track.start_times == {"again": 30.0}


async def test_a_lender_that_is_done_before_a_readmission_that_is_cancelled_gets_the_slot_back(
    autojump_clock: MockClock,
) -> None:
    times: list[float] = []

    async def lender() -> None:
        await trio.sleep(1)
        times.append(await lend(1))

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lender)
            with trio.move_on_after(5):
                await readmitted(lanes, 30)
            times.append(trio.current_time())

    async with open_lanes({"main": 1}) as lanes:
        await lanes.run(body)
        assert lanes.lane("main").limiter.borrowed_tokens == 0
    assert times == [5.0, 5.0]


async def test_a_readmission_that_is_cancelled_while_a_task_of_the_job_lends_waits_for_no_slot(
    autojump_clock: MockClock,
) -> None:
    times: list[float] = []

    async def lender() -> None:
        await trio.sleep(1)
        times.append(await lend(9))

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lender)
            with trio.move_on_after(5):
                await readmitted(lanes, 30)
            times.append(trio.current_time())
            assert lanes.lane("main").limiter.borrowed_tokens == 0

    async with open_lanes({"main": 1}) as lanes:
        await lanes.run(body)
    assert times == [5.0, 10.0]


async def test_a_job_that_is_readmitted_while_a_task_of_it_lends_goes_on_without_its_slot(
    autojump_clock: MockClock,
) -> None:
    track = Track()

    async def child_of_lender() -> None:
        await trio.sleep(1)
        await lanes.run(track.sleep, "child", 60, yield_slot=True)

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child_of_lender)
            track.start_times["again"] = await readmitted(lanes, 30)
            assert lanes.lane("main").limiter.borrowed_tokens <= 1

    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        await lanes.run(body, priority=5)
        assert lanes.lane("main").limiter.borrowed_tokens == 0
    recorder.check()
    assert track.start_times == {"again": 30.0, "child": 30.0}
    assert trio.current_time() == 90.0


async def test_lanes_may_be_left_while_a_job_waits_for_its_readmission(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(readmitted, lanes, 30)
        await wait_all_tasks_blocked()
    assert await job.wait() == 30.0


async def test_lanes_that_are_cancelled_end_a_readmission(autojump_clock: MockClock) -> None:
    with trio.CancelScope() as scope:
        async with open_lanes({"main": 1}) as lanes:
            job = lanes.submit_nowait(readmitted, lanes, 30)
            waiting = lanes.submit_nowait(trio.sleep, 1)
            await wait_all_tasks_blocked()
            scope.cancel()
            await trio.sleep_forever()
    assert job.state is JobState.CANCELLED
    assert isinstance(waiting.exception, LanesClosedError)
    assert trio.current_time() == 0.0


async def test_no_reference_to_a_lending_job_is_kept_when_it_has_ended(
    autojump_clock: MockClock,
) -> None:
    gc.collect()
    others = {id(thing) for thing in gc.get_objects() if isinstance(thing, Job)}
    async with open_lanes({"main": 1}) as lanes:
        for _ in range(50):
            await lanes.run(lend, 1)
            await lanes.run(readmitted, lanes, 1)
        await wait_all_tasks_blocked()
        gc.collect()
        left = [thing for thing in gc.get_objects() if isinstance(thing, Job)]
        assert len([job for job in left if id(job) not in others]) == 0


async def test_a_slot_that_is_taken_back_while_the_head_waits_for_a_rate_is_kept(
    autojump_clock: MockClock,
) -> None:
    async def lends() -> float:
        async with this_job().yield_slot():
            await trio.sleep(5)
        await trio.sleep(15)
        return trio.current_time()

    async with open_lanes({"main": LaneConfig(rate=RateLimit(1, per=10))}) as lanes:
        job = lanes.submit_nowait(lends)
        head = lanes.submit_nowait(trio.sleep, 0)
        await job.wait()  # at 10 the rate lets the head start, and the lane has no slot for it
        await head.wait()
        assert head.started_at == job.finished_at == 20.0
