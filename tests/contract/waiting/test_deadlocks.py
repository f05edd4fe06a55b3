"""Waits inside jobs that can never end, and similar waits that can.

`test_deadlock_search` compares random worlds of such waits with a plain search.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.bodies import returns, this_job
from trio_lanes import (
    Job,
    JobState,
    LaneConfig,
    LaneDeadlockError,
    LaneGroup,
    RateLimit,
    open_lanes,
)

pytestmark = pytest.mark.both_doors


async def test_a_job_that_runs_another_in_its_own_session_is_told_at_once(
    autojump_clock: MockClock,
) -> None:
    async def inner() -> None:
        raise AssertionError("never starts")

    async def outer() -> None:
        with pytest.raises(LaneDeadlockError, match="leave `session` out") as caught:
            await lanes.run(inner, session="alice")
        assert "holds session 'alice' and a slot of lane 'main'" in str(caught.value)
        assert lanes.statistics().waiting == 0  # the inner job is withdrawn

    async with open_lanes({"main": 2}) as lanes:
        await lanes.run(outer, session="alice")
    assert trio.current_time() == 0.0


async def test_the_latest_of_the_waits_for_each_other_ends_in_an_error(
    autojump_clock: MockClock,
) -> None:
    told = []

    async def wait_for(name: str) -> None:
        await trio.sleep(1)
        try:
            await jobs[name].wait_done()
        except LaneDeadlockError:
            told.append(name)

    async with open_lanes({"main": 3}) as lanes:
        jobs: dict[str, Job[None]] = {}
        for name, other in [("a", "b"), ("b", "c"), ("c", "a")]:
            jobs[name] = lanes.submit_nowait(wait_for, other, name=name)
    assert len(told) == 1


async def test_one_holder_that_can_go_on_is_enough(autojump_clock: MockClock) -> None:
    async def outer() -> None:
        await lanes.run(trio.sleep, 1)

    async with open_lanes({"main": 3}) as lanes:
        lanes.submit_nowait(trio.sleep, 5)
        waits = [lanes.submit_nowait(outer) for _ in range(2)]
        await wait_all_tasks_blocked()
        assert lanes.statistics().waiting == 2
    assert [job.exception for job in waits] == [None, None]


async def test_a_job_for_which_many_wait_may_wait_for_one_that_waits(
    autojump_clock: MockClock,
) -> None:
    async def waits() -> None:
        await trio.sleep(1)
        await middle.wait()

    async with open_lanes({"main": math.inf}) as lanes:
        last = lanes.submit_nowait(trio.sleep, 2)
        middle = lanes.submit_nowait(last.wait)
        job = lanes.submit_nowait(waits)
        others = [lanes.submit_nowait(job.wait) for _ in range(20)]
    assert [one.exception for one in (job, *others)] == [None] * 21
    assert trio.current_time() == 2


async def test_a_limit_of_nothing_is_no_deadlock(autojump_clock: MockClock) -> None:
    async def outer() -> None:
        await lanes.run(trio.sleep, 1, session="closed")

    config = {"main": LaneConfig(concurrency=2), "session:closed": LaneConfig(concurrency=0)}
    async with open_lanes(config) as lanes:
        job = lanes.submit_nowait(outer)
        await trio.sleep(60)
        assert not job.done
        lanes.configure({"session:closed": 1})
        await job.wait()
    assert trio.current_time() == 61.0


async def test_a_token_that_comes_back_counts_only_where_it_is_not_reserved(
    autojump_clock: MockClock,
) -> None:
    """The end of a job of a lane gives its siblings nothing that is kept for that lane."""
    group = LaneGroup(["main", "cron"], concurrency=2, reserve={"cron": 1})

    async def outer() -> None:
        with pytest.raises(LaneDeadlockError, match="a token of group 'key'"):
            await lanes.run(trio.sleep, 1)

    async with open_lanes({"main": 2, "cron": 1}, groups={"key": group}) as lanes:
        lanes.submit_nowait(trio.sleep, 5, lane="cron")
        await lanes.run(outer)
    assert trio.current_time() == 5.0


async def test_a_token_that_is_left_and_reserved_for_another_lane_is_none_to_wait_for(
    autojump_clock: MockClock,
) -> None:
    async def outer() -> None:
        with pytest.raises(LaneDeadlockError, match="a token of group 'key'"):
            await lanes.run(trio.sleep, 1)

    group = LaneGroup(["main", "cron"], concurrency=2, reserve={"cron": 1})
    async with open_lanes({"main": 2, "cron": 1}, groups={"key": group}) as lanes:
        await lanes.run(outer)


async def test_tokens_of_a_group_beyond_the_reservations_are_waited_for(
    autojump_clock: MockClock,
) -> None:
    group = LaneGroup(["main", "cron"], concurrency=2, reserve={"cron": 1})

    async def outer() -> None:
        await lanes.run(trio.sleep, 1, lane="cron")

    async with open_lanes({"main": 2, "cron": 2}, groups={"key": group}) as lanes:
        lanes.submit_nowait(trio.sleep, 5, lane="cron")
        await lanes.run(outer)
    assert trio.current_time() == 6.0


async def test_room_behind_a_request_that_can_never_enter_is_a_deadlock(
    autojump_clock: MockClock,
) -> None:
    """A request for room in the session is behind requests for room in the lane."""

    async def outer() -> None:
        await trio.sleep(1)
        with pytest.raises(LaneDeadlockError, match="room in lane 'session:alice'"):
            await lanes.submit(trio.sleep, 1, session="alice")

    sessions = LaneConfig(max_waiting=1)
    async with (
        open_lanes({"main": LaneConfig(max_waiting=1)}, sessions=sessions) as lanes,
        trio.open_nursery() as nursery,
    ):
        stuck = lanes.submit_nowait(outer)
        lanes.submit_nowait(trio.sleep, 1)
        nursery.start_soon(partial(lanes.run, trio.sleep, 1, session="alice"))
        await stuck.wait()


async def test_room_behind_a_request_that_can_enter_is_waited_for(
    autojump_clock: MockClock,
) -> None:
    async def outer() -> None:
        await trio.sleep(1)
        job = await lanes.submit(trio.sleep, 1, session="alice")
        await job.wait()

    sessions = LaneConfig(max_waiting=1)
    async with (
        open_lanes({"main": LaneConfig(concurrency=2, max_waiting=1)}, sessions=sessions) as lanes,
        trio.open_nursery() as nursery,
    ):
        stuck = lanes.submit_nowait(outer)
        lanes.submit_nowait(trio.sleep, 5)
        lanes.submit_nowait(trio.sleep, 1)
        nursery.start_soon(partial(lanes.run, trio.sleep, 1, session="alice"))
        await stuck.wait()
    assert trio.current_time() == 8.0


@pytest.mark.parametrize(
    "sessions", [LaneConfig(max_waiting=0), LaneConfig(max_waiting=1, rate=RateLimit(60))]
)
async def test_room_where_nothing_may_wait_needs_a_slot(
    autojump_clock: MockClock, sessions: LaneConfig
) -> None:
    async def outer() -> None:
        with pytest.raises(LaneDeadlockError, match="room in lane 'main'"):
            await lanes.submit(trio.sleep, 1, session="alice")

    async with open_lanes({"main": LaneConfig(max_waiting=0)}, sessions=sessions) as lanes:
        await lanes.run(outer)


async def test_a_token_of_the_group_may_come_from_a_job_that_waits_for_another_lane(
    autojump_clock: MockClock,
) -> None:
    async def holds(lane: str) -> None:
        await lanes.run(trio.sleep, 3, lane=lane)

    group = LaneGroup(["main", "cron"], concurrency=2)
    async with open_lanes({"main": 2, "cron": 1, "free": 1}, groups={"key": group}) as lanes:
        lanes.submit_nowait(holds, "free")
        await wait_all_tasks_blocked()
        await lanes.run(holds, "cron")
    assert trio.current_time() == 6.0


async def test_room_in_a_session_comes_when_what_waits_there_starts(
    autojump_clock: MockClock,
) -> None:
    async def outer() -> None:
        for _ in range(3):
            await lanes.submit(trio.sleep, 1, session="alice")

    async with open_lanes({"main": 2}, sessions=LaneConfig(max_waiting=1)) as lanes:
        await lanes.run(outer)
    assert trio.current_time() == 3.0


@pytest.mark.parametrize("raised", ["lane", "template", "group", "session"])
async def test_a_wait_that_began_under_a_limit_of_0_is_a_deadlock_when_the_limit_is_raised(
    autojump_clock: MockClock, raised: str
) -> None:
    gate = trio.Event()
    name = "sub:1" if raised == "template" else "main"
    session = "alice" if raised == "session" else None

    async def waits() -> None:
        await gate.wait()
        with pytest.raises(LaneDeadlockError):
            await behind.wait_done()

    async with open_lanes(
        {"main": 2 if raised == "session" else 1, "sub:*": 1},
        groups={"g": LaneGroup(["main"], concurrency=1)} if raised == "group" else {},
    ) as lanes:

        def set_limit(limit: int) -> None:
            if raised == "group":
                lanes.configure(groups={"g": LaneGroup(["main"], concurrency=limit)})
            elif raised == "session":
                lanes.configure({"session:alice": limit})
            else:
                lanes.lane(name).concurrency = limit

        lanes.start_soon(waits, lane=name, session=session)
        behind = lanes.submit_nowait(trio.sleep, 1, lane=name, session=session)
        await trio.sleep(1)
        set_limit(0)
        gate.set()
        await trio.sleep(1)
        set_limit(1)
    assert behind.state is JobState.SUCCEEDED
    assert trio.current_time() == 3


async def test_a_lane_that_stays_closed_has_no_wait_end_when_another_is_narrowed(
    autojump_clock: MockClock,
) -> None:
    async def waits_for(job: Job[None]) -> None:
        await job.wait_done()

    async with open_lanes({"main": 2, "closed": 0, "sub:*": 2}) as lanes:
        for lane in (lanes.lane("main"), lanes.lane("sub:1")):
            first = lane.submit_nowait(trio.sleep, 1)
            behind = lane.submit_nowait(trio.sleep, 1, delay=0.5)
            waiting = lane.submit_nowait(waits_for, behind)
            await trio.sleep(0.75)
            lane.concurrency = 1  # later changes of limits are no part of the search
            await first.wait()
            assert waiting.state is JobState.RUNNING
            lane.concurrency = 2
            await waiting.wait()


async def test_a_token_of_a_limiter_that_lanes_share_is_needed_in_all_of_them(
    autojump_clock: MockClock,
) -> None:
    async def outer() -> None:
        with pytest.raises(LaneDeadlockError):
            await lanes.run(trio.sleep, 1, lane="cron")

    limiter = trio.CapacityLimiter(1)
    both = {name: LaneConfig(limiter=limiter) for name in ("main", "cron")}
    async with open_lanes(both) as lanes:
        await lanes.run(outer)


async def test_a_wait_for_a_job_that_waits_for_room_in_the_session_of_the_caller_is_a_deadlock(
    autojump_clock: MockClock,
) -> None:
    async def enters() -> None:
        await lanes.run(trio.sleep, 1, session="alice")

    async def outer() -> None:
        job = lanes.submit_nowait(enters, lane="cron")
        await wait_all_tasks_blocked()
        with pytest.raises(LaneDeadlockError):
            await job.wait()

    main = LaneConfig(concurrency=2, max_waiting=0)
    async with open_lanes({"main": main, "cron": 1}) as lanes:
        await lanes.run(outer, session="alice")
    assert trio.current_time() == 1.0


async def test_a_wait_for_a_job_that_waits_for_room_in_the_lane_of_the_caller_is_a_deadlock(
    autojump_clock: MockClock,
) -> None:
    async def enters() -> None:
        await lanes.run(trio.sleep, 1)

    async def outer() -> None:
        job = lanes.submit_nowait(enters, lane="cron")
        await wait_all_tasks_blocked()
        with pytest.raises(LaneDeadlockError):
            await job.wait()

    async with open_lanes({"main": LaneConfig(max_waiting=0), "cron": 1}) as lanes:
        await lanes.run(outer)
    assert trio.current_time() == 1.0


async def test_a_wait_for_a_readmitted_job_behind_one_that_needs_the_slot_of_the_caller(
    autojump_clock: MockClock,
) -> None:
    """A session with a rate starts one job at a time, the best first."""

    async def again() -> None:
        await trio.sleep(1)
        lanes.pause("main")
        await this_job().readmit()

    async def outer() -> None:
        await trio.sleep(3)
        with pytest.raises(LaneDeadlockError, match="a slot of lane 'main' again"):
            await job.wait_done()

    sessions = LaneConfig(concurrency=2, rate=RateLimit(99, algorithm="sliding"))
    async with open_lanes({"main": 1, "cron": 1}, sessions=sessions) as lanes:
        job = lanes.submit_nowait(again, session="alice")
        stuck = lanes.submit_nowait(outer, lane="cron")
        await trio.sleep(2)
        lanes.session("alice").submit_nowait(trio.sleep, 1, lane="cron", priority=1)
        lanes.resume("main")
        await stuck.wait()
        assert trio.current_time() == 3.0


async def test_a_job_of_a_map_that_waits_for_the_job_which_takes_the_results_is_a_deadlock(
    autojump_clock: MockClock,
) -> None:
    async def item(number: int) -> None:
        await trio.sleep(1)
        with pytest.raises(LaneDeadlockError):
            await outer.wait()

    async def maps() -> None:
        async with lanes.map(item, [1]) as results:
            async for _ in results:
                pass

    async with open_lanes({"main": 3}) as lanes:
        outer = lanes.submit_nowait(maps)
    assert trio.current_time() == 1.0


async def test_a_wait_that_begins_for_a_job_which_a_lowered_limit_holds_up_is_an_error(
    autojump_clock: MockClock,
) -> None:
    """Though no other wait needs the job that waits, and until the limit is raised again."""

    async def lends() -> None:
        async with this_job().yield_slot():
            await trio.sleep(1)

    async def outer() -> None:
        await lanes.run(lends)

    async def waits() -> None:
        await stuck.wait()

    async with open_lanes({"main": 2, "other": 2}) as lanes:
        stuck = lanes.submit_nowait(outer)
        await trio.sleep(0.5)
        lanes.configure({"main": 1})
        await trio.sleep(1)
        late = lanes.submit_nowait(waits, lane="other")
        await late.wait_done()
        assert isinstance(late.exception, LaneDeadlockError)
        lanes.configure({"main": 2})
        again = lanes.submit_nowait(waits, lane="other")
        await again.wait()
    assert trio.current_time() == 1.5


@pytest.mark.parametrize("jobs", [1, 2, 3])
async def test_the_cure_of_a_cycle_of_ends_is_to_leave_out_a_wait(
    autojump_clock: MockClock, jobs: int
) -> None:
    """Neither a session nor a slot stands in the way: first of all for a job that awaits itself."""
    told: list[str] = []

    async def wait_for(number: int) -> None:
        await trio.sleep(number)
        try:
            await ring[number % jobs].wait_done()
        except LaneDeadlockError as error:
            told.append(str(error))

    async with open_lanes({"main": 5}) as lanes:
        ring = [lanes.submit_nowait(wait_for, number + 1) for number in range(jobs)]
    (message,) = told
    assert message.count(", and waits for job") == jobs
    assert "cure: leave one of these waits out" in message
    assert "yield_slot" not in message


async def test_the_cure_of_a_cycle_in_which_a_job_wants_its_slot_back_is_about_slots(
    autojump_clock: MockClock,
) -> None:
    async def lends() -> None:
        async with this_job().yield_slot():
            await trio.sleep(2)

    async def waits() -> None:
        with pytest.raises(LaneDeadlockError, match="cure: leave `session` out"):
            await lender.wait_done()

    async with open_lanes({"main": 1}) as lanes:
        lender = lanes.submit_nowait(lends)
        lanes.submit_nowait(waits)


@pytest.mark.many_seeds(20)
async def test_of_two_tasks_of_a_job_the_one_that_does_not_lend_is_an_error_just_if_it_is_first(
    autojump_clock: MockClock,
) -> None:
    async def wait(*, lends: bool) -> None:
        order.append(lends)
        try:
            await lanes.run(trio.sleep, 1, yield_slot=lends)
        except LaneDeadlockError:
            errors.append(lends)

    async def outer() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(wait, lends=True))
            nursery.start_soon(partial(wait, lends=False))

    order: list[bool] = []
    errors: list[bool] = []
    async with open_lanes({"main": 1}) as lanes:
        await lanes.run(outer)
    assert errors == ([] if order[0] else [False])


@pytest.mark.many_seeds(20)
@pytest.mark.parametrize("around_both", [False, True])
async def test_two_tasks_of_a_job_that_both_lend_its_slot_wait_in_any_order(
    autojump_clock: MockClock, around_both: bool
) -> None:
    async def outer() -> None:
        run = partial(lanes.run, trio.sleep, 1, yield_slot=not around_both)
        async with this_job().yield_slot() if around_both else nullcontext():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                nursery.start_soon(run)

    async with open_lanes({"main": 1}) as lanes:
        await lanes.run(outer)
    assert trio.current_time() == 2.0


async def test_a_job_that_its_own_lane_keeps_from_its_slot_takes_no_token_of_their_group(
    autojump_clock: MockClock,
) -> None:
    async def lends() -> None:
        async with this_job().yield_slot():
            await trio.sleep(1)

    async def asks() -> None:
        await trio.sleep(2)
        await lanes.run(trio.sleep, 1, lane="part")

    group = LaneGroup(["main", "part"], concurrency=2)
    async with open_lanes({"main": 1, "part": 1, "other": 1}, groups={"g": group}) as lanes:
        lender = lanes.submit_nowait(lends)
        asker = lanes.submit_nowait(asks, lane="other")
        waiter = lanes.submit_nowait(asker.wait)  # in the slot that the lender wants back
        lanes.submit_nowait(trio.sleep, 4, lane="part")
        for job in (asker, waiter, lender):
            await job.wait()
    assert trio.current_time() == 5


async def test_a_job_that_comes_before_a_delayed_one_of_its_session_is_seen_at_once(
    autojump_clock: MockClock,
) -> None:
    errors: list[float] = []

    async def waits() -> None:
        later = lanes.submit_nowait(trio.sleep, 0, lane="other", session="s", delay=5)
        with trio.move_on_after(10), pytest.raises(LaneDeadlockError):
            await later.wait()
        errors.append(trio.current_time())

    async with open_lanes({"main": 1, "other": 1}) as lanes:
        lanes.submit_nowait(waits)
        await trio.sleep(1)
        lanes.submit_nowait(trio.sleep, 0, session="s")  # needs the slot of the job that waits
    assert errors == [1.0]


@pytest.mark.parametrize("verb", ["run", "submit"])
async def test_a_child_for_which_reservations_leave_no_token_is_refused_with_the_cure(
    autojump_clock: MockClock, verb: str
) -> None:
    group = LaneGroup(["own", "other"], concurrency=1, reserve={"own": 1})
    config = {"own": 1, "other": LaneConfig(max_waiting=1)}

    async def parent() -> None:
        with pytest.raises(LaneDeadlockError) as caught:
            await (lanes.run if verb == "run" else lanes.submit)(trio.sleep, 0, lane="other")
        assert "cure: lower the reservations of the group 'g'" in str(caught.value)
        assert "no token for lane 'other'" in str(caught.value)

    async with open_lanes(config, groups={"g": group}) as lanes:
        if verb == "submit":
            lanes.submit_nowait(trio.sleep, 0, lane="other")
        await lanes.run(parent, lane="own")
        lanes.clear()
        lanes.configure(
            groups={"g": LaneGroup(["own", "other"], concurrency=2, reserve={"own": 1})}
        )
        await lanes.run(trio.sleep, 0, lane="other")


async def test_a_group_of_no_tokens_counts_as_a_pause_in_spite_of_reservations(
    autojump_clock: MockClock,
) -> None:
    async def parent() -> str:
        return await lanes.run(returns, lane="other")

    async with open_lanes({"own": 1, "other": 1, "main": 1}) as lanes:
        lanes.configure(groups={"g": LaneGroup(["own", "other"], concurrency=0)})
        job = lanes.submit_nowait(parent)
        await trio.sleep(5)
        lanes.configure(groups={})
        assert await job.wait() == "value"
