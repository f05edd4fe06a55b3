"""What the view of a session lane shows: its limiter, concurrency, statistics, generation, jobs."""

from __future__ import annotations

import math
from typing import Any

import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_lanes import Job, LaneConfig, SessionLane, current_job, open_lanes


def borrowers(limiter: trio.CapacityLimiter) -> set[Any]:
    return {*limiter.statistics().borrowers}


async def test_the_borrowers_of_a_sessions_limiter_are_its_running_jobs(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 9}, sessions=LaneConfig(concurrency=2)) as lanes:
        session = lanes.session("alice")
        jobs = [session.submit_nowait(trio.sleep, seconds) for seconds in (1, 2, 3)]
        limiter = session.limiter  # first read when two jobs run
        assert limiter is session.limiter is lanes.session("alice").limiter
        assert limiter.total_tokens == 2
        assert borrowers(limiter) == {*jobs[:2]}
        await jobs[0].wait()
        assert borrowers(limiter) == {*jobs[1:]}
        await jobs[2].wait()
        assert limiter.borrowed_tokens == 0
        jobs = [session.submit_nowait(trio.sleep, 9)]
        assert borrowers(limiter) == {*jobs}
        assert session.reset() == 1
        assert limiter.borrowed_tokens == 0


async def test_a_limiter_that_is_kept_is_true_when_the_session_comes_again(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 9}) as lanes:
        limiter = lanes.session("alice").limiter  # first read before the session is alive
        assert lanes.sessions() == []
        for _ in range(2):
            job = lanes.submit_nowait(trio.sleep, 1, session="alice")
            assert borrowers(limiter) == {job}
            await job.wait()
            assert lanes.sessions() == []
            assert limiter.borrowed_tokens == 0


async def test_a_limiter_that_is_not_kept_is_made_anew(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 9}) as lanes:
        session = lanes.session("alice")
        assert session.limiter.borrowed_tokens == 0
        job = session.submit_nowait(trio.sleep, 1)
        assert borrowers(session.limiter) == {job}


async def test_a_sessions_limiter_follows_configure(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 9}, sessions=LaneConfig(concurrency=3)) as lanes:
        alive, idle = lanes.session("alive"), lanes.session("idle")
        jobs = [alive.submit_nowait(trio.sleep, 5) for _ in range(3)]
        limiters = alive.limiter, idle.limiter
        lanes.configure({"session:idle": 7})
        lanes.configure(sessions=LaneConfig(concurrency=1))
        assert [limiter.total_tokens for limiter in limiters] == [1, 7]
        assert (alive.concurrency, idle.concurrency) == (1, 7)
        assert borrowers(limiters[0]) == {*jobs}
        lanes.configure(sessions=LaneConfig(concurrency=math.inf))
        assert limiters[0].total_tokens == alive.concurrency == math.inf


async def test_a_limiter_may_be_read_first_while_more_jobs_run_than_it_allows(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 9}, sessions=LaneConfig(concurrency=3)) as lanes:
        session = lanes.session("alice")
        jobs = [session.submit_nowait(trio.sleep, 5) for _ in range(3)]
        lanes.configure(sessions=LaneConfig(concurrency=1))
        assert borrowers(session.limiter) == {*jobs}
        assert session.limiter.total_tokens == 1


async def test_a_job_that_lends_its_slot_keeps_that_of_its_session(
    autojump_clock: MockClock,
) -> None:
    async def lends() -> None:
        job = current_job()
        assert job is not None
        async with job.yield_slot():
            await trio.sleep(1)

    async with open_lanes({"main": 1}) as lanes:
        limiter = lanes.session("alice").limiter
        job = lanes.submit_nowait(lends, session="alice")
        await wait_all_tasks_blocked()
        assert lanes.lane("main").limiter.borrowed_tokens == 0
        assert borrowers(limiter) == {job}


async def test_a_sessions_statistics_are_counted(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}, sessions=LaneConfig(concurrency=2)) as lanes:
        session = lanes.session("alice")
        empty = session.statistics()
        assert (empty.waiting, empty.forwarded, empty.active, empty.concurrency) == (0, 0, 0, 2)
        for _ in range(4):
            session.submit_nowait(trio.sleep, 5)
        full = session.statistics()
        assert (full.waiting, full.forwarded, full.active, full.concurrency) == (3, 1, 1, 2)
        assert (full.paused, full.paused_until) == (False, None)
        session.pause_for(9)
        assert (session.statistics().paused, session.statistics().paused_until) == (True, 9.0)
        session.pause()
        assert session.statistics().paused_until is None
        assert session.statistics().forwarded == 0
        session.resume()
        lanes.clear()


async def test_a_sessions_generation_counts_its_resets_since_it_came_to_life(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 9}) as lanes:
        session = lanes.session("alice")
        assert session.generation == 0
        session.submit_nowait(trio.sleep, 1)
        session.submit_nowait(trio.sleep, 1)
        session.reset()
        assert session.generation == 1
        session.reset()
        await wait_all_tasks_blocked()
        assert session.generation == 0  # it has gone


async def test_jobs_lists_the_waiting_and_running_jobs_in_the_order_of_submission(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:

        def alice(**options: Any) -> Job[Any]:
            return lanes.submit_nowait(trio.sleep, 5, session="alice", **options)

        jobs = [alice(), alice(priority=1), alice(delay=3), alice(lane="cron")]
        other = lanes.submit_nowait(trio.sleep, 5, session="bob")
        session = lanes.session("alice")
        assert isinstance(session, SessionLane)
        assert session.jobs() == jobs
        assert lanes.session("nobody").jobs() == []
        assert lanes.lane("main").jobs() == [*jobs[:3], other]
        assert lanes.lane("cron").jobs() == jobs[3:]
        assert lanes.jobs() == [*jobs, other]
        lanes.clear()
        assert session.jobs() == jobs[:1]


async def test_a_session_whose_limiter_was_never_read_has_no_limiter(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2}) as lanes:
        limiter = lanes.session("alice").limiter
        other = lanes.submit_nowait(trio.sleep, 1, session="bob")
        mine = lanes.submit_nowait(trio.sleep, 1, session="alice")
        await trio.lowlevel.checkpoint()
        assert limiter.statistics().borrowers == [mine]
        await other.wait()
