"""One lane as a queue: who starts when, and how many run at once."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.track import Track
from trio_lanes import JobState, open_lanes

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
async def test_two_thousand_cancels_in_a_row_leave_an_empty_lane(
    autojump_clock: MockClock, session: str | None
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        blocker = lanes.submit_nowait(track.sleep, "blocker")
        jobs = [lanes.submit_nowait(track.sleep, i, session=session) for i in range(2_000)]
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


# ---- failing


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
