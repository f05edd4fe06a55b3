"""Waits that could end when they began, and later could not, though no other wait began."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.bodies import this_job
from trio_lanes import (
    Blocker,
    Job,
    JobState,
    LaneConfig,
    LaneDeadlockError,
    LaneGroup,
    Lanes,
    RateLimit,
    current_job,
    open_lanes,
)


async def hold_on(what: Callable[[], Awaitable[object]], told: list[str]) -> None:
    """Wait for that, and note it if that would have been for ever."""
    try:
        await what()
    except LaneDeadlockError as error:
        told.append(str(error))


async def lend(job: Job[None], seconds: float) -> None:
    """Lend the slot for that long."""
    async with job.yield_slot():
        await trio.sleep(seconds)


async def overtaken(
    lanes: Lanes, how: Callable[[Job[None], Job[None]], None], told: list[str]
) -> None:
    """A job of "cron" waits for a job of a session, before which comes another that needs "cron".

    ``how`` is given that one, and a job of the session for "cron" that comes later.
    """
    lanes.submit_nowait(trio.sleep, 5)
    awaited = lanes.submit_nowait(trio.sleep, 1, session="alice")
    later = lanes.submit_nowait(trio.sleep, 1, session="alice", lane="cron", delay=1)
    stuck = lanes.submit_nowait(hold_on, awaited.wait_done, told, lane="cron", name="stuck")
    await trio.sleep(2)
    how(awaited, later)
    assert (await stuck.wait(), trio.current_time()) == (None, 2.0)
    assert [job.state for job in (awaited, later)] == [JobState.WAITING, JobState.RUNNING]


@pytest.mark.parametrize("first", [0, 1])
async def test_a_waiting_job_overtaken_by_a_job_that_can_never_start_is_not_waited_for(
    autojump_clock: MockClock, first: int
) -> None:
    def change(awaited: Job[None], later: Job[None]) -> None:
        assert not told
        (later, awaited)[first].priority = (1, -1)[first]

    told: list[str] = []
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        await overtaken(lanes, change, told)
    assert len(told) == 1
    assert "'stuck' holds a slot of lane 'cron', and waits for job 2 'sleep', which" in told[0]


@pytest.mark.parametrize("delay", [0, 1])
async def test_a_job_that_comes_before_the_target_of_a_wait_may_close_a_cycle(
    autojump_clock: MockClock, delay: float
) -> None:
    told: list[str] = []
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 5)
        awaited = lanes.submit_nowait(trio.sleep, 1, session="alice")
        stuck = lanes.submit_nowait(hold_on, awaited.wait_done, told, lane="cron")
        await wait_all_tasks_blocked()
        lanes.session("alice").submit_nowait(trio.sleep, 1, lane="cron", priority=1, delay=delay)
        await stuck.wait()
        assert trio.current_time() == delay
    assert len(told) == 1


async def test_a_job_that_comes_before_a_request_for_room_may_close_a_cycle(
    autojump_clock: MockClock,
) -> None:
    told: list[str] = []
    async with open_lanes({"main": LaneConfig(max_waiting=0), "cron": 1}) as lanes:
        enter = partial(lanes.submit, trio.sleep, 1, session="alice")
        lanes.submit_nowait(trio.sleep, 5)
        stuck = lanes.submit_nowait(hold_on, enter, told, lane="cron")
        await wait_all_tasks_blocked()
        lanes.submit_nowait(trio.sleep, 1, session="alice", lane="cron")
        await stuck.wait()
    assert "waits for room in lane 'main'" in told[0]
    assert trio.current_time() == 5.0


async def test_room_that_was_there_and_is_taken_may_close_a_knot(
    autojump_clock: MockClock,
) -> None:
    """A request learns only after its session has room whether its lane has room."""
    told: list[str] = []
    lanes_of_both = {"main": LaneConfig(max_waiting=1), "cron": 1}
    async with open_lanes(lanes_of_both, sessions=LaneConfig(max_waiting=1)) as lanes:
        enter = partial(lanes.submit, trio.sleep, 1, session="alice")
        stuck = lanes.submit_nowait(hold_on, enter, told)
        lanes.submit_nowait(trio.sleep, 5, lane="cron")
        lanes.submit_nowait(trio.sleep, 1, lane="cron", session="alice")
        await wait_all_tasks_blocked()
        assert not told
        lanes.submit_nowait(trio.sleep, 1)
        await stuck.wait()
    assert "waits for room in lane 'session:alice'" in told[0]


async def test_a_request_that_is_admitted_may_make_a_deadlock_of_a_wait_for_room(
    autojump_clock: MockClock,
) -> None:
    """The loop admits it in a batch: no other job is touched by that."""
    told: list[str] = []
    sessions = LaneConfig(max_waiting=2)
    lanes_of_all = {"main": 1, "other": 1, "unrelated": 1}
    async with open_lanes(lanes_of_all, sessions=sessions) as lanes, trio.open_nursery() as nursery:
        unrelated = lanes.submit_nowait(trio.sleep, 5, lane="unrelated")
        lanes.submit_nowait(trio.sleep, 1, lane="other")
        lanes.submit_nowait(trio.sleep, 1, lane="other", session="alice")
        lanes.submit_nowait(trio.sleep, 1, lane="other", session="alice", priority=-1)
        enter = partial(lanes.submit, trio.sleep, 1, session="alice")
        nursery.start_soon(enter)  # comes first, and needs the slot of the job
        await wait_all_tasks_blocked()
        stuck = lanes.submit_nowait(hold_on, enter, told)
        await stuck.wait()
        assert trio.current_time() == 1.0
        await unrelated.wait()
    assert len(told) == 1


async def test_a_job_that_is_readmitted_may_make_a_deadlock_of_its_own_wait_for_room(
    autojump_clock: MockClock,
) -> None:
    async def outer() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(this_job().readmit)
            await wait_all_tasks_blocked()
            await hold_on(partial(lanes.submit, trio.sleep, 1), told)

    told: list[str] = []
    async with open_lanes({"main": LaneConfig(max_waiting=1), "other": 1}) as lanes:
        unrelated = lanes.submit_nowait(trio.sleep, 5, lane="other")
        stuck = lanes.submit_nowait(outer)
        lanes.submit_nowait(trio.sleep, 1)
        lanes.pause("main")  # which may end: until then the other job could start
        await trio.sleep(1)
        assert not told
        lanes.resume("main")
        await stuck.wait()
        assert trio.current_time() == 1.0
        await unrelated.wait()
    assert len(told) == 1


@pytest.mark.parametrize("by", ["callback", "hook"])
async def test_room_that_a_callback_or_a_hook_takes_may_close_a_knot(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    def take_room(job: Job[None]) -> None:
        if job is ends:
            lanes.submit_nowait(trio.sleep, 1)

    class Hook:
        job_finished = staticmethod(take_room)

    told: list[str] = []
    lanes_of_all = {"main": LaneConfig(max_waiting=1), "cron": 1, "other": 1}
    async with open_lanes(
        lanes_of_all,
        sessions=LaneConfig(max_waiting=1),
        instruments=[Hook()] if by == "hook" else (),
    ) as lanes:
        enter = partial(lanes.submit, trio.sleep, 1, session="alice")
        ends = lanes.submit_nowait(trio.sleep, 1, lane="other")
        stuck = lanes.submit_nowait(hold_on, enter, told)
        lanes.submit_nowait(trio.sleep, 5, lane="cron")
        lanes.submit_nowait(trio.sleep, 1, lane="cron", session="alice")
        await wait_all_tasks_blocked()
        if by == "callback":
            ends.on_settled(take_room)
        with trio.fail_after(100):
            await stuck.wait()
            assert trio.current_time() == 1.0
            await lanes.submit(trio.sleep, 1, session="alice")  # there is room again
    assert "waits for room in lane 'session:alice'" in told[0]
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_job_that_takes_its_slot_back_comes_before_all_waiting_jobs_of_its_group(
    autojump_clock: MockClock,
) -> None:
    async def outer() -> None:
        job = current_job()
        assert job is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lend, job, 1)
            await trio.sleep(2)
            await hold_on(partial(lanes.run, trio.sleep, 1), told)
            assert trio.current_time() == 2.0

    told: list[str] = []
    group = LaneGroup(["main", "cron"], concurrency=1)
    async with open_lanes({"main": 1, "cron": 1}, groups={"key": group}) as lanes:
        stuck = lanes.submit_nowait(outer, lane="cron")
        lanes.submit_nowait(trio.sleep, 5, lane="cron")
        await stuck.wait()
    assert len(told) == 1


async def test_a_slot_that_is_taken_back_while_another_task_waits_may_close_a_knot(
    autojump_clock: MockClock,
) -> None:
    async def outer() -> None:
        job = current_job()
        assert job is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lend, job, 1)
            await wait_all_tasks_blocked()
            lanes.submit_nowait(trio.sleep, 5)
            inner = lanes.submit_nowait(trio.sleep, 1)
            await hold_on(inner.wait_done, told)
            assert trio.current_time() == 1.0
            await trio.sleep(3)
        assert trio.current_time() == 5.0

    told: list[str] = []
    async with open_lanes({"main": 1}) as lanes:
        await lanes.run(outer)
    assert "waits for job 3 'sleep', which waits for lane 'main' and a slot of" in told[0]


async def test_a_readmission_that_is_held_up_by_a_reservation_may_close_a_knot(
    autojump_clock: MockClock,
) -> None:
    """It gives back a token that a job had taken back in spite of the reservation."""

    async def lender() -> None:
        job = current_job()
        assert job is not None
        async with job.yield_slot():
            await trio.sleep(1)
        await hold_on(again.wait_done, told)

    async def readmitted() -> None:
        job = current_job()
        assert job is not None
        await trio.sleep(2)
        await job.readmit()

    told: list[str] = []
    group = LaneGroup(["main", "cron"], concurrency=2, reserve={"cron": 1})
    async with open_lanes({"main": 2, "cron": 1}, groups={"key": group}) as lanes:
        first = lanes.submit_nowait(lender)
        again = lanes.submit_nowait(readmitted)
        await first.wait()
        assert trio.current_time() == 2.0
    assert "a slot of lane 'main' again" in told[0]


async def test_where_ending_one_wait_is_not_enough_the_latest_wait_ends_first(
    autojump_clock: MockClock,
) -> None:
    async def outer() -> None:
        async with trio.open_nursery() as nursery:
            for job in awaited:
                nursery.start_soon(hold_on, job.wait_done, told)

    told: list[str] = []
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 5)
        awaited = [lanes.submit_nowait(trio.sleep, 1, session=name) for name in ("alice", "bob")]
        awaited.append(lanes.submit_nowait(trio.sleep, 1, session="alice"))
        stuck = lanes.submit_nowait(outer, lane="cron")
        await wait_all_tasks_blocked()
        lanes.submit_nowait(trio.sleep, 1, session="alice", lane="cron", priority=1)
        await wait_all_tasks_blocked()
        assert sorted(error.count("waits for session 'alice'") for error in told) == [1, 2]
        await stuck.wait()
        assert trio.current_time() == 6.0  # that of "bob" came


async def test_only_a_wait_whose_end_breaks_the_cycle_ends_in_an_error(
    autojump_clock: MockClock,
) -> None:
    told: list[str] = []
    others: list[str] = []
    async with open_lanes({"main": 2, "cron": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 5)
        lanes.submit_nowait(trio.sleep, 5)
        awaited = lanes.submit_nowait(trio.sleep, 1, session="alice")
        stuck = lanes.submit_nowait(hold_on, awaited.wait_done, told, lane="cron")
        await wait_all_tasks_blocked()
        lanes.configure({"sub": 1})
        later = lanes.submit_nowait(hold_on, stuck.wait_done, others, lane="sub")
        await wait_all_tasks_blocked()
        lanes.session("alice").submit_nowait(trio.sleep, 1, lane="cron", priority=1)
        await later.wait()
        assert trio.current_time() == 0.0
    assert (len(told), others) == (1, [])


async def test_a_nested_run_that_lends_the_slot_which_another_needs_is_no_deadlock(
    autojump_clock: MockClock,
) -> None:
    """The job takes its place before the slot is lent, which is soon enough."""

    async def outer() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(awaited.wait_done)
            await wait_all_tasks_blocked()
            await lanes.session("alice").run(
                trio.sleep, 1, lane="cron", priority=1, yield_slot=True
            )

    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 5)
        awaited = lanes.submit_nowait(trio.sleep, 1, session="alice")
        await lanes.run(outer, lane="cron")
    assert trio.current_time() == 6.0


async def test_a_nested_run_that_can_never_end_any_more_withdraws_its_job(
    autojump_clock: MockClock,
) -> None:
    async def outer() -> None:
        await hold_on(partial(lanes.run, trio.sleep, 1, session="alice"), told)

    told: list[str] = []
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 5)
        stuck = lanes.submit_nowait(outer, lane="cron")
        await wait_all_tasks_blocked()
        better = lanes.session("alice").submit_nowait(trio.sleep, 1, lane="cron", priority=1)
        await stuck.wait()
        await wait_all_tasks_blocked()
        assert lanes.jobs()[1:] == [better]
    assert len(told) == 1


async def test_a_map_that_can_never_go_on_any_more_is_told(autojump_clock: MockClock) -> None:
    async def no_op(item: int) -> None:
        raise AssertionError("never starts")

    async def outer() -> None:
        async with lanes.map(no_op, [1, 2], session=lambda item: "alice") as results:
            await hold_on(partial(anext, results), told)

    told: list[str] = []
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 5)
        stuck = lanes.submit_nowait(outer, lane="cron")
        await wait_all_tasks_blocked()
        lanes.session("alice").submit_nowait(trio.sleep, 1, lane="cron", priority=1)
        await stuck.wait()
        assert trio.current_time() == 0.0
    assert len(told) == 1


async def test_the_priority_of_a_job_without_a_session_closes_no_knot(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        first = lanes.submit_nowait(trio.sleep, 1)
        second = lanes.submit_nowait(trio.sleep, 1)
        waits = lanes.submit_nowait(first.wait, lane="cron")
        await wait_all_tasks_blocked()
        second.priority = 1
        await waits.wait()
    assert trio.current_time() == 3.0


async def test_a_better_job_that_is_charged_before_a_readmission_may_close_a_knot(
    autojump_clock: MockClock,
) -> None:
    """A session with a rate forwards one job at a time, which needs the slot of the waiting job."""

    async def again() -> None:
        job = current_job()
        assert job is not None
        await trio.sleep(1)
        lanes.pause("main")
        await job.readmit()

    told: list[str] = []
    sessions = LaneConfig(concurrency=2, rate=RateLimit(99, algorithm="sliding"))
    async with open_lanes({"main": 1, "cron": 1}, sessions=sessions) as lanes:
        job = lanes.submit_nowait(again, session="alice")
        stuck = lanes.submit_nowait(hold_on, job.wait_done, told, lane="cron")
        await trio.sleep(2)
        better = lanes.session("alice").submit_nowait(trio.sleep, 1, lane="cron", priority=1)
        assert job.blocked_by() == (Blocker("order", "session:alice", (better,)),)
        lanes.resume("main")
        await stuck.wait()
        assert trio.current_time() == 2.0
        await job.wait()
    assert len(told) == 1


async def test_a_lane_for_which_reservations_leave_nothing_takes_jobs_while_others_wait(
    autojump_clock: MockClock,
) -> None:
    async def waits() -> None:
        await target.wait_done()

    group = LaneGroup(["own", "other"], concurrency=1, reserve={"own": 1})
    async with open_lanes({"main": 2, "own": 1, "other": 1}, groups={"g": group}) as lanes:
        target = lanes.submit_nowait(trio.sleep, 5)
        waiter = lanes.submit_nowait(waits)
        await wait_all_tasks_blocked()
        jobs = [  # the second stands before the first, which can never start
            lanes.submit_nowait(trio.sleep, 0, lane="other", session="s", priority=priority)
            for priority in (0, 1)
        ]
        await waiter.wait()
        assert [job.state for job in jobs] == [JobState.WAITING] * 2
        lanes.clear()
