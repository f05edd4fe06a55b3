"""Waiting for lanes (`wait_active`, `wait_idle`, `wait_empty`, `wait_room`) and for one job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from tests.support.track import Track
from trio_lanes import (
    JobCancelledError,
    JobState,
    LaneClearedError,
    LaneConfig,
    LaneDeadlockError,
    LaneGroup,
    Lanes,
    LanesClosedError,
    QueueTimeoutError,
    current_job,
    open_lanes,
)

pytestmark = pytest.mark.both_doors

Times = dict[str, float]


async def note(times: Times, name: str, wait: Callable[[], Awaitable[object]]) -> None:
    """Write down when that wait is over."""
    await wait()
    times[name] = trio.current_time()


# ---- nothing to wait for


@pytest.mark.parametrize("name", [None, "main", " main ", "session:alice"])
async def test_with_nothing_to_wait_for_every_wait_is_just_a_checkpoint(
    autojump_clock: MockClock, name: str | None
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        with assert_checkpoints():
            await lanes.wait_idle(name)
        with assert_checkpoints():
            await lanes.wait_empty(name)
        with assert_checkpoints():
            await lanes.wait_room(1, name)
        with assert_checkpoints():
            assert await lanes.wait_active(name) is True
        with assert_checkpoints():
            assert await lanes.wait_active(name, timeout=0) is True
        assert lanes.sessions() == []
        lane = lanes.lane("main")
        with assert_checkpoints():
            await lane.wait_idle()
        with assert_checkpoints():
            await lane.wait_empty()
        with assert_checkpoints():
            await lane.wait_room(1)
        with assert_checkpoints():
            assert await lane.wait_active() is True
    assert trio.current_time() == 0.0


async def test_a_wait_for_a_job_that_has_ended_is_just_a_checkpoint(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes() as lanes:
        job = lanes.submit_nowait(trio.sleep, 1)
        await job.wait()
        with assert_checkpoints():
            await job.wait()
        with assert_checkpoints():
            await job.wait_done()
        with assert_checkpoints():
            await job.wait_started()


# ---- wait_empty, wait_idle, wait_room


@pytest.mark.many_seeds(5)
@pytest.mark.parametrize("name", [None, "main", "session:alice"])
async def test_wait_empty_ends_when_nothing_waits_and_wait_idle_when_nothing_runs_either(
    autojump_clock: MockClock, name: str | None
) -> None:
    times: Times = {}
    async with open_lanes({"main": 1}) as lanes:
        for _ in range(3):
            lanes.start_soon(trio.sleep, 1, session="alice")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, times, "empty", lambda: lanes.wait_empty(name))
            nursery.start_soon(note, times, "idle", lambda: lanes.wait_idle(name))
    assert times == {"empty": 2.0, "idle": 3.0}


@pytest.mark.many_seeds(5)
async def test_wait_room_ends_as_soon_as_fewer_than_that_many_wait(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lane = lanes.lane("main")
        for _ in range(6):  # one runs and five wait
            lanes.start_soon(trio.sleep, 1)
        waited: list[tuple[int, int]] = []
        for n in (4, 2, 10, 1):
            await lanes.wait_room(n, "main")
            waited.append((n, lane.waiting))
        assert waited == [(4, 3), (2, 1), (10, 1), (1, 0)]
        assert trio.current_time() == 5.0


@pytest.mark.many_seeds(5)
async def test_waiters_for_5_4_and_3_all_return_when_what_waits_drops_to_2(
    autojump_clock: MockClock,
) -> None:
    times: Times = {}
    async with open_lanes({"main": 1}) as lanes:
        lanes.pause()
        jobs = [lanes.submit_nowait(trio.sleep, 0) for _ in range(6)]
        async with trio.open_nursery() as nursery:
            for n in (5, 4, 3):
                nursery.start_soon(note, times, str(n), lambda n=n: lanes.wait_room(n, "main"))
            await trio.sleep(1)
            assert times == {}
            for job in jobs[:4]:
                job.cancel()
        assert times == {"5": 1.0, "4": 1.0, "3": 1.0}
        lanes.resume()


async def test_wait_room_without_a_name_counts_the_jobs_of_all_lanes(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.start_soon(trio.sleep, 1)
        lanes.start_soon(trio.sleep, 1, lane="cron")
        lanes.start_soon(trio.sleep, 1)
        lanes.start_soon(trio.sleep, 1, lane="cron")
        lanes.lane("cron").concurrency = 0
        await lanes.wait_room(2)
        assert trio.current_time() == 1.0
        assert lanes.lane("cron").waiting == 1
        lanes.clear()


async def test_clear_ends_wait_empty_now_and_wait_idle_when_the_running_job_has_ended(
    autojump_clock: MockClock,
) -> None:
    times: Times = {}
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(trio.sleep, 10)
        lanes.start_soon(trio.sleep, 10)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, times, "empty", lanes.wait_empty)
            nursery.start_soon(note, times, "idle", lanes.wait_idle)
            await trio.sleep(1)
            lanes.clear()
    assert times == {"empty": 1.0, "idle": 10.0}


async def test_a_wait_for_one_lane_ignores_other_lanes(autojump_clock: MockClock) -> None:
    times: Times = {}
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.start_soon(trio.sleep, 1, session="alice")
        lanes.start_soon(trio.sleep, 9, lane="cron", session="bob")
        async with trio.open_nursery() as nursery:
            for name in ("main", "cron", "session:alice", "session:bob", "session:nobody", None):
                nursery.start_soon(note, times, str(name), lambda name=name: lanes.wait_idle(name))
    assert times == {
        "main": 1.0,
        "session:alice": 1.0,
        "cron": 9.0,
        "session:bob": 9.0,
        "session:nobody": 0.0,
        "None": 9.0,
    }


async def test_a_lane_that_is_idle_for_a_moment_only_was_idle(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(trio.sleep, 1)
        done = trio.Event()

        async def wait() -> None:
            await lanes.wait_idle()
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            await lanes.wait_active()
            lanes.start_soon(trio.sleep, 100)  # in the very moment in which the other has ended
            await done.wait()
            assert trio.current_time() == 1.0


@pytest.mark.many_seeds(5)
async def test_all_of_many_waiters_return_and_a_cancelled_waiter_leaves_nothing_behind(
    autojump_clock: MockClock,
) -> None:
    times: Times = {}
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(trio.sleep, 5)
        lanes.start_soon(trio.sleep, 1)
        async with trio.open_nursery() as nursery:
            for i in range(50):
                nursery.start_soon(note, times, f"idle{i}", lanes.wait_idle)
                nursery.start_soon(note, times, f"empty{i}", lanes.wait_empty)
            for wait in (lanes.wait_idle, lanes.wait_empty, lanes.wait_active):
                with trio.move_on_after(1) as cancelled:
                    await wait()
                assert cancelled.cancelled_caught
            with trio.move_on_after(1) as cancelled:
                await lanes.wait_room(1)
            assert cancelled.cancelled_caught
    assert times == {f"idle{i}": 6.0 for i in range(50)} | {f"empty{i}": 5.0 for i in range(50)}


async def test_of_two_waits_for_one_busy_lane_one_may_be_cancelled_and_the_other_goes_on(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(trio.sleep, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lanes.wait_idle)
            with trio.move_on_after(0.5):
                async with trio.open_nursery() as cancelled:
                    cancelled.start_soon(lanes.wait_idle, "main")
                    await wait_all_tasks_blocked()
                    lanes.start_soon(trio.sleep, 1)  # both are checked, and wait for the lane
        assert trio.current_time() == 2


async def test_a_lane_removed_in_the_moment_in_which_it_is_idle_was_idle(
    autojump_clock: MockClock,
) -> None:
    class RemoveIdle:
        lanes: Lanes

        def lane_idle(self, lane: object) -> None:
            self.lanes.configure({"cron": None})

    remove_idle = RemoveIdle()
    async with open_lanes({"main": 1, "cron": 1}, instruments=[remove_idle]) as lanes:
        remove_idle.lanes = lanes
        lanes.start_soon(trio.sleep, 1, lane="cron")
        await lanes.wait_idle("cron")
        assert trio.current_time() == 1.0
        assert list(lanes.statistics().lanes) == ["main"]


async def test_wait_empty_ends_when_what_waits_gets_the_slot_of_a_sibling(
    autojump_clock: MockClock,
) -> None:
    times: Times = {}
    group = LaneGroup(["main", "cron"], concurrency=2)
    async with open_lanes({"main": 2, "cron": 1, "other": 1}, groups={"g": group}) as lanes:
        lanes.start_soon(trio.sleep, 0.5, lane="other")  # whose end does not matter
        lanes.start_soon(trio.sleep, 1, lane="cron")
        for _ in range(2):
            lanes.start_soon(trio.sleep, 3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, times, "main", lambda: lanes.wait_empty("main"))
    assert times == {"main": 1.0}


async def test_a_lane_that_leaves_its_template_is_not_waited_for_any_more(
    autojump_clock: MockClock,
) -> None:
    times: Times = {}
    async with open_lanes({"model-*": 1}) as lanes:
        for _ in range(2):
            lanes.start_soon(trio.sleep, 2, lane="model-x")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, times, "template", lambda: lanes.wait_idle("model-*"))
            nursery.start_soon(note, times, "lane", lambda: lanes.wait_idle("model-x"))
            await trio.sleep(0.5)
            lanes.start_soon(trio.lowlevel.checkpoint, lane="model-y")  # here, too, they are
            await trio.sleep(0.5)
            lanes.configure({"model-x": 1})
    assert times == {"template": 1.0, "lane": 4.0}


@pytest.mark.trio_only("its instrument is Trio's")
async def test_an_instrument_of_trio_may_use_the_lanes_when_it_is_told_of_a_woken_task(
    autojump_clock: MockClock,
) -> None:
    class Submits(trio.abc.Instrument):
        def task_scheduled(self, task: trio.lowlevel.Task) -> None:
            if task.name == "woken" and trio.current_time() == 1 and not lanes.lane("cron").active:
                lanes.start_soon(trio.sleep, 1, lane="cron")

    times: Times = {}
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.start_soon(trio.sleep, 1)
        async with trio.open_nursery() as nursery:
            for name in ("main", None):
                wait = partial(lanes.wait_idle, name)
                nursery.start_soon(note, times, str(name), wait, name="woken")
                await wait_all_tasks_blocked()
            trio.lowlevel.add_instrument(Submits())
    assert times == {"main": 1.0, "None": 2.0}


# ---- wait_active


@pytest.mark.many_seeds(5)
async def test_wait_active_waits_for_the_jobs_that_run_now_and_for_no_later_jobs(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2}) as lanes:
        for seconds in (1, 3, 10, 10):
            lanes.start_soon(trio.sleep, seconds)
        assert await lanes.wait_active() is True
        assert trio.current_time() == 3.0
        assert lanes.lane("main").active == 2


async def test_wait_active_says_at_its_timeout_that_they_have_not_ended(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2}) as lanes:
        lanes.start_soon(trio.sleep, 1)
        lanes.start_soon(trio.sleep, 10)
        assert await lanes.wait_active(timeout=0) is False
        assert trio.current_time() == 0.0
        assert await lanes.wait_active(timeout=5) is False
        assert trio.current_time() == 5.0
        assert await lanes.lane("main").wait_active(timeout=2) is False
        assert trio.current_time() == 7.0
        assert await lanes.wait_active("main", timeout=4) is True
        assert trio.current_time() == 10.0


async def test_wait_active_counts_a_job_that_was_granted_its_slot_in_this_tick(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(trio.sleep, 2)
        assert await lanes.wait_active() is True
        assert trio.current_time() == 2.0


async def test_wait_active_for_a_session_waits_for_its_jobs_only(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 4}) as lanes:
        lanes.start_soon(trio.sleep, 1, session="alice")
        lanes.start_soon(trio.sleep, 1, session="alice")
        lanes.start_soon(trio.sleep, 9, session="bob")
        assert await lanes.wait_active("session:alice") is True
        assert trio.current_time() == 1.0


async def test_wait_active_in_a_paused_lane_waits_for_what_runs_and_leaves_what_waits(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2}) as lanes:
        for _ in range(4):
            lanes.start_soon(trio.sleep, 1)
        lanes.pause("main")
        assert await lanes.wait_active("main") is True
        assert (lanes.lane("main").active, lanes.lane("main").waiting) == (0, 2)
        lanes.resume("main")


@pytest.mark.parametrize("end", ["cancel", "reset", "fail"])
async def test_wait_active_takes_any_end_for_an_end(autojump_clock: MockClock, end: str) -> None:
    async def body() -> None:
        await trio.sleep(1)
        raise ValueError

    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(body if end == "fail" else trio.sleep_forever)

        async def act() -> None:
            await trio.sleep(1)
            if end == "cancel":
                job.cancel()
            elif end == "reset":
                lanes.reset()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(act)
            assert await lanes.wait_active() is True
        assert trio.current_time() == 1.0
        assert job.exception is not None


# ---- inside a job: it leaves out itself, and the jobs that wait for it


@pytest.mark.parametrize("session", [None, "alice"])
async def test_a_job_that_waits_for_its_lanes_leaves_out_itself(
    autojump_clock: MockClock, session: str | None
) -> None:
    async with open_lanes({"main": 2}) as lanes:

        async def body() -> None:
            assert await lanes.wait_active() is True
            assert await lanes.wait_active(timeout=0) is True
            await lanes.wait_idle()
            await lanes.wait_idle("main")
            await lanes.wait_idle("session:alice")
            await lanes.lane("main").wait_idle()
            await lanes.wait_empty()
            await lanes.wait_room(1)

        await lanes.run(body, session=session)
        assert trio.current_time() == 0.0


async def test_a_job_that_waits_for_its_lanes_still_waits_for_the_others(
    autojump_clock: MockClock,
) -> None:
    times: Times = {}
    async with open_lanes({"main": 2}) as lanes:

        async def body() -> None:
            assert await lanes.wait_active() is True
            times["active"] = trio.current_time()
            await lanes.wait_idle()
            times["idle"] = trio.current_time()

        lanes.start_soon(trio.sleep, 1)
        lanes.start_soon(body)
        lanes.start_soon(trio.sleep, 2)
    assert times == {"active": 1.0, "idle": 3.0}


async def test_a_task_below_a_job_counts_as_that_job(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:

        async def body() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lanes.wait_idle)

        await lanes.run(body)
        assert trio.current_time() == 0.0


async def test_a_job_that_waits_for_its_lanes_leaves_out_its_parent_that_waits_for_it(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 4}) as lanes:

        async def child() -> float:
            await lanes.wait_idle()
            return trio.current_time()

        async def parent() -> float:
            return await lanes.run(child)

        async def grandparent() -> float:
            return await lanes.submit_nowait(parent).wait()

        lanes.start_soon(trio.sleep, 1)
        assert await lanes.run(grandparent) == 1.0


@pytest.mark.many_seeds(5)
@pytest.mark.parametrize("wait", ["wait_idle", "wait_active", "drain"])
async def test_of_two_jobs_that_wait_for_their_lanes_the_later_gets_an_error(
    autojump_clock: MockClock, wait: str
) -> None:
    errors: list[LaneDeadlockError] = []

    class Hears:
        def deadlock_refused(self, error: LaneDeadlockError) -> None:
            errors.append(error)

    async with open_lanes({"main": 3}, instruments=[Hears()]) as lanes:

        async def body(seconds: float) -> float:
            await trio.sleep(seconds)
            await getattr(lanes, wait)()
            return trio.current_time()

        first = lanes.submit_nowait(body, 1, name="first")
        later = lanes.submit_nowait(body, 2, name="later", session="alice")
        lanes.start_soon(trio.sleep, 3)
        with pytest.raises(
            LaneDeadlockError, match=r"(?s)'first' holds a slot.*'later' holds sess"
        ):
            await later.wait()
        assert trio.current_time() == 2.0
        assert await first.wait() == 3.0
    assert errors == [later.exception]


@pytest.mark.many_seeds(5)
async def test_of_any_number_of_jobs_that_wait_for_their_lanes_the_first_gets_no_error(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 3}) as lanes:
        jobs = [lanes.submit_nowait(lanes.wait_idle) for _ in range(3)]
        with trio.fail_after(9):
            for job in jobs:
                await job.wait_done()
    ended = [type(job.exception) for job in jobs]
    assert sorted(ended, key=str) == [type(None), LaneDeadlockError, LaneDeadlockError]


@pytest.mark.many_seeds(5)
@pytest.mark.parametrize("wait", ["wait_idle", "wait_active"])
async def test_a_job_that_waits_for_its_lanes_leaves_out_jobs_that_begin_to_wait_for_it_later(
    autojump_clock: MockClock, wait: str
) -> None:
    async with open_lanes({"main": 2}) as lanes:

        async def waits_for_lanes() -> float:
            await getattr(lanes, wait)()
            return trio.current_time()

        async def waits_for_the_first() -> float:
            await trio.sleep(1)
            return await first.wait()

        first = lanes.submit_nowait(waits_for_lanes)
        second = lanes.submit_nowait(waits_for_the_first)
        with trio.move_on_after(10):
            assert await second.wait() == 1.0
        state = second.state
        lanes.reset()
    assert state is JobState.SUCCEEDED


async def test_a_job_that_waits_for_lanes_in_which_a_job_waits_for_its_session_gets_an_error(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 3}) as lanes:

        async def a() -> float:
            assert await lanes.wait_active("session:b") is True
            return trio.current_time()

        async def b() -> None:
            await trio.sleep(1)
            await lanes.wait_active()

        first = lanes.submit_nowait(a, session="a")
        second = lanes.submit_nowait(b, session="b")
        lanes.start_soon(trio.sleep, 5)
        assert await first.wait() == 1.0
        assert isinstance(second.exception, LaneDeadlockError)


async def test_a_job_of_other_lanes_is_no_reason_to_leave_out_anything(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as outer:

        async def body() -> float:
            async with open_lanes({"main": 1}) as inner:
                inner.start_soon(trio.sleep, 1)
                await inner.wait_idle()
                return trio.current_time()

        assert await outer.run(body) == 1.0


# ---- inside a job: jobs that cannot start or end before it


async def wait_for(lanes: Lanes, verb: str) -> None:
    if verb == "drain":
        await lanes.drain()
    elif verb == "wait_room":
        await lanes.wait_room(1)
    elif verb == "wait_active":
        assert await lanes.wait_active() is True
    else:
        await getattr(lanes, verb)()


@pytest.mark.parametrize("verb", ["drain", "wait_idle", "wait_empty", "wait_room"])
@pytest.mark.parametrize("needs", ["its session", "its slot", "its token", "its group"])
async def test_a_job_that_waits_for_its_lanes_leaves_out_jobs_that_need_its_slot_or_session(
    autojump_clock: MockClock, verb: str, needs: str
) -> None:
    track = Track()
    shared = trio.CapacityLimiter(1)
    main: int | LaneConfig = 1 if needs == "its slot" else 4
    if needs == "its token":
        main = LaneConfig(limiter=shared)
    groups = {"g": LaneGroup(["main", "cron"], concurrency=1)} if needs == "its group" else {}
    session = "alice" if needs == "its session" else None
    cron: int | LaneConfig = LaneConfig(limiter=shared) if needs == "its token" else 1
    async with open_lanes({"main": main, "cron": cron, "side": 1}, groups=groups) as lanes:

        async def body() -> float:
            await wait_for(lanes, verb)
            return trio.current_time()

        job = lanes.submit_nowait(body, session=session)
        lane = "main" if needs in ("its session", "its slot") else "cron"
        behind = [lanes.submit_nowait(track.sleep, n, session=session, lane=lane) for n in (1, 2)]
        lanes.submit_nowait(trio.sleep, 3, lane="side")
        lanes.submit_nowait(trio.sleep, 2, lane="side")
        end = 3 if verb in ("wait_empty", "wait_room") else 5
        assert await job.wait() == end
        await behind[1].wait()
    assert track.ended == [1, 2]


@pytest.mark.parametrize("verb", ["drain", "wait_idle", "wait_active"])
async def test_a_job_that_waits_for_its_lanes_leaves_out_jobs_that_wait_for_a_job_behind_it(
    autojump_clock: MockClock, verb: str
) -> None:
    async with open_lanes({"main": 3, "full": LaneConfig(max_waiting=0), "side": 1}) as lanes:

        async def body() -> float:
            await trio.sleep(1)
            await wait_for(lanes, verb)
            return trio.current_time()

        async def waits_for_it() -> None:
            await behind.wait()

        async def waits_for_room() -> None:
            await trio.sleep(2)  # the other waits for the lanes by then
            await lanes.run(trio.sleep, 0, lane="full")

        job = lanes.submit_nowait(body, session="alice")
        behind = lanes.submit_nowait(trio.sleep, 0, session="alice", lane="side")
        waits = lanes.submit_nowait(waits_for_it)
        lanes.submit_nowait(waits_for_it, lane="full")
        others = lanes.submit_nowait(waits_for_room)
        assert await job.wait() == 2
        await others.wait()
        assert waits.done


async def test_a_job_that_waits_for_its_lanes_leaves_out_a_job_that_wants_its_slot_back(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:

        async def lends() -> float:
            job = current_job()
            assert job is not None
            async with job.yield_slot():
                await trio.sleep(1)
            return trio.current_time()

        async def body() -> float:
            await trio.sleep(2)
            await lanes.wait_idle()
            return trio.current_time()

        lender = lanes.submit_nowait(lends)
        assert await lanes.run(body) == 2
        assert await lender.wait() == 2


async def test_of_two_jobs_that_wait_for_lanes_in_which_jobs_wait_for_the_other_one_gets_an_error(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 4, "a": 1, "b": 1}) as lanes:

        async def first() -> float:
            await lanes.wait_empty("b")
            return trio.current_time()

        async def second() -> None:
            await trio.sleep(1)
            await lanes.wait_idle("a")

        jobs = [lanes.submit_nowait(first, lane="a"), lanes.submit_nowait(second, lane="b")]
        for lane in ("a", "b"):
            lanes.submit_nowait(trio.sleep, 0, lane=lane)
        assert await jobs[0].wait() == 1
        assert isinstance(jobs[1].exception, LaneDeadlockError)


async def test_of_jobs_whose_waits_for_lanes_hold_up_each_other_only_together_one_gets_an_error(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 3}) as lanes:

        async def lend() -> None:
            job = current_job()
            assert job is not None
            async with job.yield_slot():
                await trio.sleep(1)

        lender = lanes.submit_nowait(lend, session="a")
        waiters = [lanes.submit_nowait(lanes.wait_idle, f"session:{key}") for key in "abc"]
        behind = [lanes.submit_nowait(trio.sleep, 1, session=key) for key in "bc"]
        with trio.fail_after(9):
            for job in waiters:
                await job.wait_done()
    assert [type(job.exception) for job in waiters[:2]] == [type(None), type(None)]
    assert isinstance(waiters[2].exception, LaneDeadlockError)
    assert all(job.done for job in (lender, *behind))


async def test_a_submission_may_let_waits_for_lanes_hold_up_each_other_and_ends_one_of_these(
    autojump_clock: MockClock,
) -> None:
    errors: list[LaneDeadlockError] = []

    async def wait() -> None:
        try:
            await lanes.wait_idle("main")
        except LaneDeadlockError as error:
            errors.append(error)

    async def two_tasks_wait() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(wait)

    async with open_lanes({"main": 2, "side": 2, "other": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 3, lane="side")
        first = lanes.submit_nowait(lanes.wait_idle, "side")
        await wait_all_tasks_blocked()
        second = lanes.submit_nowait(two_tasks_wait, session="b")
        await wait_all_tasks_blocked()
        outsider = lanes.submit_nowait(lanes.wait_idle, "main", lane="other")
        await trio.sleep(1)
        lanes.submit_nowait(trio.sleep, 1, lane="side", session="b")
    assert len(errors) == 2
    assert (first.finished_at, second.finished_at, outsider.finished_at) == (3.0, 1.0, 3.0)
    assert first.exception is outsider.exception is None


async def test_a_job_that_waits_for_a_job_may_let_waits_for_lanes_hold_up_each_other(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2, "side": 1}) as lanes:

        async def waits_for_the_first() -> None:
            await trio.sleep(1)
            await first.wait_done()

        lanes.submit_nowait(waits_for_the_first, lane="side")
        first = lanes.submit_nowait(lanes.wait_idle)
        await wait_all_tasks_blocked()
        second = lanes.submit_nowait(lanes.wait_idle, "side")
    assert isinstance(second.exception, LaneDeadlockError)
    assert (first.finished_at, second.finished_at) == (1.0, 1.0)


async def test_a_wait_for_lanes_inside_a_job_that_was_cancelled_holds_up_no_other(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 3}) as lanes:

        async def cancels_the_other() -> None:
            other.cancel()
            await lanes.wait_idle()

        lanes.submit_nowait(trio.sleep, 5)
        other = lanes.submit_nowait(lanes.wait_idle)
        await wait_all_tasks_blocked()
        job = lanes.submit_nowait(cancels_the_other)
        await job.wait()
        assert trio.current_time() == 5.0
        assert other.state is JobState.CANCELLED


@pytest.mark.parametrize("session", [None, "b"])
async def test_a_job_that_needs_the_slot_of_a_job_whose_wait_for_lanes_will_end_is_not_left_out(
    autojump_clock: MockClock, session: str | None
) -> None:
    wide = LaneConfig(concurrency=2)
    async with open_lanes({"main": 2, "sub": 1}, sessions=wide) as lanes:
        waiter = lanes.submit_nowait(lanes.wait_idle, "session:a")
        other = lanes.submit_nowait(lanes.session("b").wait_idle, session=session)
        lanes.submit_nowait(trio.sleep, 2, session="b", lane="sub")
        follower = lanes.submit_nowait(trio.sleep, 1, session="a")
    assert (other.finished_at, follower.finished_at, waiter.finished_at) == (2.0, 3.0, 3.0)


async def test_of_a_wide_session_only_what_cannot_start_yet_is_left_out(
    autojump_clock: MockClock,
) -> None:
    sessions = LaneConfig(concurrency=3)
    track = Track()
    async with open_lanes({"main": 1, "side": 1}, sessions=sessions) as lanes:

        async def body() -> float:
            await lanes.wait_idle()
            return trio.current_time()

        job = lanes.submit_nowait(body, session="alice")
        lanes.submit_nowait(track.sleep, "needs its slot", session="alice")
        lanes.submit_nowait(track.sleep, "need not wait", session="alice", lane="side")
        lanes.submit_nowait(track.sleep, "needs its slot", session="alice")
        lanes.submit_nowait(track.sleep, "comes behind both", session="alice", lane="side")
        lanes.submit_nowait(track.sleep, "has another session", 3, session="bob", lane="side")
        assert await job.wait() == 4
    assert track.started[:3] == ["need not wait", "has another session", "needs its slot"]
    assert "comes behind both" in track.ended


async def test_a_job_of_lanes_inside_a_job_leaves_the_outer_job_out_too(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2}) as outer:

        async def body() -> float:
            async with open_lanes({"main": 1}) as inner:
                await inner.run(outer.wait_idle)
                await inner.run(outer.wait_active)
                return trio.current_time()

        outer.start_soon(trio.sleep, 1)
        assert await outer.run(body, session="alice") == 1


async def test_jobs_in_lanes_that_are_paused_or_have_a_limit_of_0_are_waited_for(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2, "none": 0}) as lanes:

        async def body() -> float:
            await lanes.wait_empty()
            return trio.current_time()

        lanes.pause("session:alice")
        job = lanes.submit_nowait(body)
        lanes.submit_nowait(trio.sleep, 0, session="alice")
        lanes.submit_nowait(trio.sleep, 0, lane="none")
        await trio.sleep(1)
        lanes.resume("session:alice")
        await trio.sleep(1)
        lanes.lane("none").concurrency = 1
        assert await job.wait() == 2


# ---- one job


async def test_cancelling_a_waiter_does_not_cancel_the_job(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes() as lanes:
        job = lanes.submit_nowait(track.sleep, "a", 2)
        for wait in (job.wait, job.wait_done):
            with trio.move_on_after(0.5) as cancelled:
                await wait()
            assert cancelled.cancelled_caught
        assert job.state is JobState.RUNNING
        assert not job.cancel_called
        assert await job.wait() == "a"


@pytest.mark.many_seeds(5)
async def test_wait_started_ends_when_the_job_starts(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(trio.sleep, 1)
        job = lanes.submit_nowait(trio.sleep, 1)
        times: Times = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, times, "started", job.wait_started)
            nursery.start_soon(note, times, "done", job.wait_done)
        assert times == {"started": 1.0, "done": 2.0}


async def test_wait_started_of_a_job_that_failed_after_its_start_raises_nothing(
    autojump_clock: MockClock,
) -> None:
    async def fail() -> None:
        raise ValueError

    async with open_lanes() as lanes:
        job = lanes.submit_nowait(fail)
        await job.wait_started()
        await job.wait_done()
        await job.wait_started()
        assert isinstance(job.exception, ValueError)


@pytest.mark.parametrize(
    ("end", "error"),
    [
        ("cancel", JobCancelledError),
        ("clear", LaneClearedError),
        ("queue_timeout", QueueTimeoutError),
        ("close", LanesClosedError),
    ],
)
async def test_wait_started_of_a_job_that_will_never_start_says_why(
    autojump_clock: MockClock, end: str, error: type[Exception]
) -> None:
    told: list[Exception] = []
    async with trio.open_nursery() as outside:
        with trio.CancelScope() as scope:
            async with open_lanes({"main": 1}) as lanes:
                lanes.start_soon(trio.sleep, 5)
                job = lanes.submit_nowait(trio.sleep, 1, queue_timeout=2)

                async def wait() -> None:
                    for wait in (job.wait_started, job.wait, job.wait_started):
                        try:
                            await wait()
                        except Exception as error:
                            told.append(error)
                    await job.wait_done()

                outside.start_soon(wait)
                await trio.sleep(1)
                if end == "cancel":
                    job.cancel()
                elif end == "clear":
                    lanes.clear()
                elif end == "close":
                    scope.cancel()
    assert [type(each) for each in told] == [error] * 3
    assert type(job.exception) is error
    assert job.started_at is None


async def test_waiters_for_the_start_are_told_once_and_cancelled_waiters_not_at_all(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(trio.sleep, 1)
        job = lanes.submit_nowait(trio.sleep, 5)
        with trio.move_on_after(0.5) as cancelled:
            await job.wait_started()
        assert cancelled.cancelled_caught
        await job.wait_started()
        assert trio.current_time() == 1.0
        await job.wait_started()
        assert trio.current_time() == 1.0
