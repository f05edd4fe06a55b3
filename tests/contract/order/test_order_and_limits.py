"""One lane as a queue: who starts when, and how many run at once."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.track import Track
from trio_lanes import JobState, LaneClearedError, open_lanes

pytestmark = pytest.mark.both_doors


async def test_a_job_on_an_unlimited_lane_runs_at_the_next_checkpoint(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": float("inf")}) as lanes:
        job = lanes.submit_nowait(track.sleep, "a")
        assert job.state is JobState.RUNNING
        assert track.started == []
        await wait_all_tasks_blocked()
        assert track.started == ["a"]
        assert lanes.lane("main").waiting == 0
        assert lanes.lane("main").active == 1
        assert await job.wait() == "a"


async def test_the_third_job_of_a_lane_of_two_waits(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 2}) as lanes:
        jobs = [lanes.submit_nowait(track.sleep, i) for i in range(3)]
        await wait_all_tasks_blocked()
        assert [job.state for job in jobs] == [
            JobState.RUNNING,
            JobState.RUNNING,
            JobState.WAITING,
        ]
        assert (lanes.lane("main").active, lanes.lane("main").waiting) == (2, 1)
    assert track.peak == 2
    assert track.start_times == {0: 0.0, 1: 0.0, 2: 1.0}


async def test_results_of_a_lane_of_one_come_in_order_of_input_though_later_jobs_are_shorter(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        jobs = [lanes.submit_nowait(track.sleep, ms, ms / 1000) for ms in (300, 200, 100)]
        assert [await job.wait() for job in jobs] == [300, 200, 100]
        assert trio.current_time() == pytest.approx(0.6)
    assert track.ended == [300, 200, 100]
    assert track.peak == 1


@pytest.mark.many_seeds(5)
async def test_of_a_hundred_jobs_never_more_than_five_run_at_once(
    autojump_clock: MockClock, scheduler_seed: int
) -> None:
    durations = random.Random(scheduler_seed)
    track = Track()
    async with open_lanes({"main": 5}) as lanes:
        for i in range(100):
            lanes.start_soon(track.sleep, i, durations.random())
    assert track.peak == 5
    assert track.started == list(range(100))
    assert sorted(track.ended, key=str) == sorted(range(100), key=str)


@pytest.mark.many_seeds(10)
async def test_raising_the_concurrency_starts_waiting_jobs_at_once(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        jobs = [lanes.submit_nowait(track.sleep, i) for i in range(5)]
        lane = lanes.lane("main")
        lane.concurrency = 3
        assert [job.state for job in jobs].count(JobState.RUNNING) == 3
        assert lane.limiter.total_tokens == lane.concurrency == 3
        await wait_all_tasks_blocked()
        assert sorted(track.started, key=str) == [0, 1, 2]


async def test_lowering_the_concurrency_stops_no_running_job(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 3}) as lanes:
        lane = lanes.lane("main")
        for i in range(3):
            lanes.start_soon(track.sleep, i, 1 + i)
        lanes.start_soon(track.sleep, 3, 1)
        await wait_all_tasks_blocked()
        lane.concurrency = 1
        assert lane.active == 3
        assert lane.limiter.borrowed_tokens == 3
        await trio.sleep(2.5)  # two have ended, and one still runs
        assert lane.active == 1
        assert track.started == [0, 1, 2]
    assert track.start_times[3] == 3.0
    assert len(track.ended) == 4


async def test_a_limit_lowered_and_raised_again_while_jobs_run_lets_no_more_start_than_allowed(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 3}) as lanes:
        lane = lanes.lane("main")
        jobs = [lanes.submit_nowait(track.sleep, i, 10) for i in range(6)]
        await wait_all_tasks_blocked()
        lane.concurrency = 1
        lane.concurrency = 3
        await wait_all_tasks_blocked()
        assert track.started == [0, 1, 2]
        assert [job.state for job in jobs[:3]] == [JobState.RUNNING] * 3
    assert track.peak == 3


async def test_a_concurrency_of_0_admits_nothing_until_it_is_raised(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 0}) as lanes:
        job = lanes.submit_nowait(track.sleep, "a")
        await trio.sleep(100)
        assert job.state is JobState.WAITING
        lanes.lane("main").concurrency = 1
        assert job.state is JobState.RUNNING
    assert track.start_times == {"a": 100.0}


async def test_opening_to_5_and_closing_in_one_tick_starts_exactly_the_first_5(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 0}) as lanes:
        lane = lanes.lane("main")

        def add(n: int, priority: int) -> None:
            for _ in range(n):
                i = len(lanes.jobs()) + lane.statistics().started - lane.active
                lanes.start_soon(track.sleep, (priority, i), priority=priority)

        add(20, 0)
        lane.concurrency = 5
        lane.concurrency = 0
        await wait_all_tasks_blocked()
        assert sorted(track.started) == [(0, i) for i in range(5)]
        await lanes.wait_active()
        assert (lane.active, lane.waiting) == (0, 15)

        track.started.clear()
        add(20, 0)
        add(18, -1)
        add(18, 1)
        lane.concurrency = 1
    priorities = [priority for priority, _ in track.started]
    assert priorities == [1] * 18 + [0] * 35 + [-1] * 18
    for each in (1, 0, -1):
        numbers = [i for priority, i in track.started if priority == each]
        assert numbers == sorted(numbers)


@pytest.mark.many_seeds(10)
async def test_jobs_of_one_session_start_in_order_of_submission_and_never_overlap(
    autojump_clock: MockClock, scheduler_seed: int
) -> None:
    durations = random.Random(scheduler_seed)
    track = Track()
    async with open_lanes({"main": 4}) as lanes:
        jobs = [
            lanes.submit_nowait(track.sleep, i, durations.random(), session="alice")
            for i in range(10)
        ]
        assert [await job.wait() for job in jobs] == list(range(10))
    assert track.started == track.ended == list(range(10))
    assert track.peak == 1


@pytest.mark.many_seeds(10)
async def test_two_sessions_take_turns_in_a_lane_however_much_waits_in_one(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        for i in range(50):
            lanes.start_soon(track.sleep, f"a{i}", session="alice")
        lanes.start_soon(track.sleep, "b0", session="bob")
        lanes.start_soon(track.sleep, "b1", session="bob")
    assert track.started[:5] == ["a0", "b0", "a1", "b1", "a2"]


@pytest.mark.many_seeds(10)
async def test_a_session_whose_job_never_ends_does_not_hold_up_another(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 2}) as lanes:
        stuck = lanes.submit_nowait(track.sleep, "stuck", float("inf"), session="alice")
        lanes.start_soon(track.sleep, "never", session="alice")
        for i in range(3):
            lanes.start_soon(track.sleep, i, session="bob")
        await trio.sleep(10)
        assert track.ended == [0, 1, 2]
        lanes.clear()
        stuck.cancel()


async def test_jobs_without_a_session_share_nothing_but_the_limit(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 4}) as lanes:
        for i in range(4):
            lanes.start_soon(track.sleep, i)
        assert lanes.sessions() == []
    assert track.peak == 4


async def test_each_lane_has_a_limit_of_its_own(autojump_clock: MockClock) -> None:
    tracks = {"main": Track(), "cron": Track(), "subagent": Track()}
    async with open_lanes() as lanes:
        for lane, track in tracks.items():
            for i in range(20):
                lanes.start_soon(track.sleep, i, lane=lane)
    assert {lane: track.peak for lane, track in tracks.items()} == {
        "main": 4,
        "cron": 1,
        "subagent": 8,
    }


# ---- cancelling what waits


async def test_a_job_cancelled_while_it_waits_is_gone_at_once_and_its_waiter_told(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(track.sleep, "first")
        job = lanes.submit_nowait(track.sleep, "second")
        told: list[BaseException] = []

        async def wait() -> None:
            try:
                await job.wait()
            except Exception as error:
                told.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            assert job.cancel("no more") is True
            assert (job.state, job.done) == (JobState.CANCELLED, True)
            assert job.finished_at == 0.0
            assert job.started_at is None
            assert lanes.lane("main").waiting == 0
        assert str(told[0]) == "the job was cancelled: no more"
        assert trio.current_time() == 0.0
    assert track.started == ["first"]
    assert caplog.records == []


async def test_a_job_cancelled_while_its_slot_is_taken_is_never_called(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(track.sleep, "first")
        job = lanes.submit_nowait(track.sleep, "second")
        lanes.start_soon(track.sleep, "third")
        job.cancel()
    assert track.started == ["first", "third"]


async def test_cancelling_a_job_twice_or_after_its_end_says_false(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(trio.sleep, 1)
        job = lanes.submit_nowait(trio.sleep, 1)
        assert job.cancel("first") is True
        assert job.cancel("second") is False
        assert str(job.exception) == "the job was cancelled: first"
        ended = lanes.submit_nowait(trio.sleep, 1)
        await ended.wait()
        assert ended.cancel() is False
        assert ended.state is JobState.SUCCEEDED


async def test_a_job_cancelled_in_a_paused_lane_is_gone_and_the_others_stay(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.pause("main")
        jobs = [lanes.submit_nowait(track.sleep, i) for i in range(3)]
        jobs[1].cancel()
        assert [job.state for job in jobs] == [
            JobState.WAITING,
            JobState.CANCELLED,
            JobState.WAITING,
        ]
        assert lanes.lane("main").paused
        await trio.sleep(1)
        assert track.started == []
        lanes.resume("main")
    assert track.started == [0, 2]


async def test_cancelling_one_of_several_jobs_of_the_same_name_cancels_that_one(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(track.sleep, "blocker")
        jobs = [lanes.submit_nowait(track.sleep, i, name="same") for i in range(3)]
        jobs[1].cancel()
        assert [job.name for job in jobs] == ["same"] * 3
        assert [job.done for job in jobs] == [False, True, False]
    assert track.started == ["blocker", 0, 2]


@pytest.mark.parametrize("session", [None, "alice"])
async def test_ten_thousand_cancels_in_a_row_leave_an_empty_lane(
    autojump_clock: MockClock, session: str | None
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        blocker = lanes.submit_nowait(track.sleep, "blocker")
        jobs = [lanes.submit_nowait(track.sleep, i, session=session) for i in range(10_000)]
        for job in jobs:
            job.cancel()
        assert lanes.jobs() == [blocker]
        assert lanes.sessions() == []
        assert lanes.lane("main").waiting == 0
    assert track.started == ["blocker"]


async def test_a_running_and_a_waiting_job_cancelled_together_both_settle(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        jobs = [lanes.submit_nowait(track.sleep, i, session="alice") for i in range(2)]
        await wait_all_tasks_blocked()
        for job in jobs:
            job.cancel()
        assert [job.state for job in jobs] == [JobState.RUNNING, JobState.CANCELLED]
        await lanes.wait_idle()
        assert [job.state for job in jobs] == [JobState.CANCELLED] * 2
        assert trio.current_time() == 0.0
        assert lanes.jobs() == []
        assert lanes.sessions() == []
    assert (track.started, track.ended) == ([0], [])


@pytest.mark.parametrize("session", [None, "alice"])
async def test_cancels_at_head_middle_and_tail_in_all_priorities_leave_the_order_of_the_rest(
    autojump_clock: MockClock, session: str | None
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.pause()

        def add(label: str) -> None:
            for priority in (-1, 0, 1):
                lanes.submit_nowait(
                    track.sleep, f"{label}{priority}", session=session, priority=priority
                )

        for label in "abcde":
            add(label)
        cancelled = {f"{label}{priority}" for label in "ace" for priority in (-1, 0, 1)}
        waiting = lanes.jobs()
        labels = [f"{label}{priority}" for label in "abcde" for priority in (-1, 0, 1)]
        for job, label in zip(waiting, labels, strict=True):
            if label in cancelled:
                job.cancel()
        for label in "fg":
            add(label)
        lanes.resume()
    assert track.started == [f"{label}{p}" for p in (1, 0, -1) for label in "bdfg"]


async def test_clearing_between_two_submissions_leaves_the_order_of_what_comes_later(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(track.sleep, "running", session="alice")
        cleared = lanes.submit_nowait(track.sleep, "cleared", session="alice")
        assert lanes.clear() == 1
        for i in range(3):
            lanes.start_soon(track.sleep, i, session="alice")
    assert track.started == ["running", 0, 1, 2]
    assert isinstance(cleared.exception, LaneClearedError)


# ---- failing


@pytest.mark.parametrize("session", [None, "alice"])
@pytest.mark.parametrize("first_sleeps", [True, False])
async def test_after_a_job_that_fails_the_next_starts_at_once(
    autojump_clock: MockClock, session: str | None, first_sleeps: bool
) -> None:
    track = Track()

    async def fail() -> None:
        if first_sleeps:
            await trio.sleep(1)
        raise ValueError("broken")

    async with open_lanes({"main": 1}) as lanes:
        failing = lanes.submit_nowait(fail, session=session)
        following = lanes.submit_nowait(track.sleep, "next", session=session)
        with pytest.raises(ValueError, match="broken"):
            await failing.wait()
        assert failing.state is JobState.FAILED
        assert await following.wait() == "next"
    assert track.start_times["next"] == (1.0 if first_sleeps else 0.0)


@pytest.mark.trio_only("asyncio has no shields")
async def test_a_base_exception_of_a_body_leaves_the_lanes_and_the_other_jobs_settle(
    autojump_clock: MockClock,
) -> None:
    class Stop(BaseException):
        pass

    async def stop() -> None:
        await trio.sleep(1)
        raise Stop

    told: dict[str, BaseException] = {}
    with pytest.RaisesGroup(Stop):
        async with open_lanes({"main": 2}) as lanes:
            jobs = {
                "running": lanes.submit_nowait(trio.sleep_forever),
                "stop": lanes.submit_nowait(stop),
                "waiting": lanes.submit_nowait(trio.sleep_forever),
            }

            async def wait(name: str) -> None:
                try:
                    await jobs[name].wait()
                except Exception as error:
                    told[name] = error

            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    for name in jobs:
                        nursery.start_soon(wait, name)
    assert {name: type(error).__name__ for name, error in told.items()} == {
        "running": "JobCancelledError",
        "stop": "JobCancelledError",
        "waiting": "LanesClosedError",
    }
    assert isinstance(told["stop"].__cause__, Stop)
    assert jobs["stop"].state is JobState.FAILED


# ---- pushing to an idle lane


@pytest.mark.many_seeds(5)
async def test_of_many_pushes_to_an_idle_lane_each_runs_exactly_once(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 3}) as lanes:

        async def push(i: int) -> None:
            lanes.start_soon(track.sleep, i, session=f"s{i % 5}")
            await lanes.run(track.sleep, 100 + i, session=f"s{i % 5}")

        for _ in range(3):
            async with trio.open_nursery() as nursery:
                for i in range(20):
                    nursery.start_soon(push, i)
            await lanes.wait_idle()
            assert lanes.sessions() == []
            assert sorted(track.ended) == sorted([*range(20), *range(100, 120)])
            track.ended.clear()
    assert track.peak == 3


@pytest.mark.many_seeds(10)
@pytest.mark.parametrize("session", [None, "alice"])
async def test_a_push_in_the_moment_in_which_the_last_job_ends_is_not_lost(
    autojump_clock: MockClock, session: str | None
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(track.sleep, "a", session=session)

        async def push_at_its_end() -> None:
            await job.wait()
            lanes.start_soon(track.sleep, "b", session=session)

        async def push_when_the_lane_is_idle() -> None:
            await lanes.wait_idle("main")
            lanes.start_soon(track.sleep, "c", session=session)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(push_at_its_end)
            nursery.start_soon(push_when_the_lane_is_idle)
            await trio.sleep(1)
            lanes.start_soon(track.sleep, "d", session=session)
    assert sorted(track.ended, key=str) == ["a", "b", "c", "d"]
    assert track.peak == 1


@pytest.mark.parametrize("first_sleeps", [True, False])
async def test_a_job_submitted_by_the_last_job_of_its_session_runs_in_that_session(
    autojump_clock: MockClock, first_sleeps: bool
) -> None:
    track = Track()
    async with open_lanes({"main": 4}) as lanes:

        async def last() -> None:
            if first_sleeps:
                await trio.sleep(1)
            lanes.start_soon(track.sleep, "successor", session="alice")
            assert track.started == []

        await lanes.run(last, session="alice")
        assert lanes.sessions() == ["alice"]
        await lanes.wait_idle()
        assert lanes.sessions() == []
    assert track.ended == ["successor"]
