"""A job that is readmitted asks its session again, whose slot it has kept."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.track import Track
from trio_lanes import (
    Blocker,
    Job,
    JobCancelledError,
    LaneConfig,
    LaneResetError,
    Lanes,
    RateLimit,
    current_job,
    open_lanes,
)

pytestmark = pytest.mark.both_doors

ONE_A_MINUTE = RateLimit(1, per=60, algorithm="sliding")
WIDE = LaneConfig(concurrency=5)
ONE_IN_A_SESSION = LaneConfig(concurrency=5, rate=ONE_A_MINUTE)


async def readmitted(**kwargs: Any) -> float:
    """Be readmitted, and return when that was."""
    job = current_job()
    assert job is not None
    await job.readmit(**kwargs)
    return trio.current_time()


async def readmitted_to(track: Track, label: str) -> None:
    """Be readmitted, and then go on under that label."""
    await readmitted(cost=1)
    await track.sleep(label)


async def test_a_readmission_waits_for_the_rate_of_its_session(autojump_clock: MockClock) -> None:
    sessions = LaneConfig(rate=ONE_A_MINUTE)
    async with open_lanes({"main": 2}, sessions=sessions) as lanes:
        async with trio.open_nursery() as nursery:
            for session in ("alice", "bob"):
                nursery.start_soon(partial(lanes.run, readmitted, session=session))
        assert trio.current_time() == 60.0
        assert await lanes.run(readmitted, session="carol", cost=0) == 60.0


async def test_a_readmission_waits_for_the_pause_of_its_session(autojump_clock: MockClock) -> None:
    async def turned_away() -> float:
        lanes.pause_for("session:alice", 30)
        return await readmitted()

    async with open_lanes({"main": 2}) as lanes:
        assert await lanes.run(turned_away, session="alice") == 30.0


@pytest.mark.parametrize("rate", [(), RateLimit(100)])
async def test_a_session_that_is_paused_meanwhile_takes_its_job_out_of_line(
    autojump_clock: MockClock, rate: Any
) -> None:
    track = Track()

    async def turned_away() -> None:
        lanes.pause("main")
        await readmitted_to(track, "alice")

    async with open_lanes({"main": 1}, sessions=LaneConfig(rate=rate)) as lanes:
        job = lanes.submit_nowait(turned_away, session="alice", cost=0)
        lanes.submit_nowait(track.sleep, "first")
        lanes.submit_nowait(track.sleep, "second")
        await wait_all_tasks_blocked()
        assert job.blocked_by() == (Blocker("pause", "main"),)
        lanes.pause("session:alice")
        assert job.blocked_by() == (Blocker("pause", "session:alice"),)
        assert lanes.lane("main").statistics().waiting_in_lane == 2
        lanes.resume("main")
        await trio.sleep(1.5)
        lanes.resume("session:alice")
    assert track.started == ["first", "second", "alice"]


async def test_a_readmission_that_its_session_stops_holds_up_no_other_job(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}, sessions=LaneConfig(rate=ONE_A_MINUTE)) as lanes:
        job = lanes.submit_nowait(readmitted, session="alice")
        other = lanes.submit_nowait(trio.sleep, 0, session="bob")
        await other.wait()
        assert other.started_at == 0.0
        assert job.blocked_by() == (Blocker("rate", "session:alice", until=60.0),)
        assert lanes.lane("main").statistics().waiting_in_lane == 0
        assert await job.wait() == 60.0


async def test_a_readmitted_job_goes_before_its_equals_in_its_session(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": WIDE}, sessions=ONE_IN_A_SESSION) as lanes:
        alice = lanes.session("alice")
        again = alice.submit_nowait(readmitted_to, track, "again")
        alice.submit_nowait(track.sleep, "equal")
        await wait_all_tasks_blocked()
        better = alice.submit_nowait(track.sleep, "better", priority=1)
        assert again.blocked_by() == (Blocker("order", "session:alice", (better,)),)
        assert better.blocked_by() == (Blocker("rate", "session:alice", until=60.0),)
    assert track.started == ["better", "again", "equal"]
    assert trio.current_time() == 181.0


async def test_of_two_that_are_readmitted_the_first_of_the_better_priority_is_charged_next(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": WIDE}, sessions=ONE_IN_A_SESSION) as lanes:
        alice = lanes.session("alice")
        await alice.run(trio.sleep, 0)
        for label, priority in (("first", 0), ("second", 0), ("better", 1)):
            alice.submit_nowait(readmitted_to, track, label, priority=priority, cost=0)
            await wait_all_tasks_blocked()
    assert track.started == ["better", "first", "second"]
    assert trio.current_time() == 181.0


@pytest.mark.parametrize("ends", ["cancel", "reset"])
async def test_a_readmission_that_its_session_holds_back_can_be_ended(
    autojump_clock: MockClock, ends: str
) -> None:
    async with open_lanes({"main": 1}, sessions=LaneConfig(rate=ONE_A_MINUTE)) as lanes:
        job = lanes.submit_nowait(readmitted, session="alice")
        await wait_all_tasks_blocked()
        if ends == "cancel":
            job.cancel()
        else:
            lanes.reset("session:alice")
        with pytest.raises(JobCancelledError if ends == "cancel" else LaneResetError):
            await job.wait()
        assert trio.current_time() == 0.0
        await trio.sleep(61)
        assert lanes.sessions() == []
        assert await lanes.run(readmitted, session="alice", cost=0) == 61.0


async def test_a_readmission_that_is_given_up_lets_the_next_of_its_session_go(
    autojump_clock: MockClock,
) -> None:
    """It was the job that is charged next; it waited for a lane that is paused."""

    async def impatient() -> None:
        lanes.pause("main")
        with trio.move_on_after(5):
            await readmitted()

    sessions = LaneConfig(concurrency=5, rate=RateLimit(2, per=60, algorithm="sliding"))
    async with open_lanes({"main": 1, "cron": 1}, sessions=sessions) as lanes:
        lanes.submit_nowait(impatient, session="alice")
        await wait_all_tasks_blocked()
        other = lanes.submit_nowait(trio.sleep, 0, session="alice", lane="cron")
        await trio.sleep(10)
        assert other.started_at == 5.0
        lanes.resume("main")


async def test_a_cost_in_a_unit_that_is_not_counted_any_more_costs_nothing(
    autojump_clock: MockClock,
) -> None:
    async def body(lanes: Lanes) -> float:
        lanes.configure({"main": LaneConfig(rate=ONE_A_MINUTE)})
        return await readmitted()

    tokens = RateLimit(100, unit="tokens")
    async with open_lanes({"main": LaneConfig(rate=[tokens, ONE_A_MINUTE])}) as lanes:
        assert await lanes.run(body, lanes, cost={"tokens": 20}) == 60.0


async def test_when_a_job_of_a_session_starts_the_next_is_forwarded_in_the_same_batch(
    autojump_clock: MockClock,
) -> None:
    sessions = LaneConfig(concurrency=2, rate=RateLimit(10, algorithm="sliding"))
    async with open_lanes({"main": 2}, sessions=sessions) as lanes:
        for _ in range(2):
            lanes.submit_nowait(trio.sleep, 1)
        jobs: list[Job[None]] = [
            lanes.submit_nowait(trio.sleep, 5, session="alice") for _ in range(2)
        ]
        await lanes.wait_idle()
        assert [job.started_at for job in jobs] == [1.0, 1.0]


async def test_a_job_that_is_cancelled_while_it_is_readmitted_and_a_task_of_it_has_lent_its_slot(
    autojump_clock: MockClock,
) -> None:
    """Both tasks get the slot that comes, and then clean up."""

    async def lend() -> None:
        job = current_job()
        assert job is not None
        async with job.yield_slot():
            await trio.sleep(1)

    async def body() -> None:
        lanes.pause("main")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readmitted)
            await wait_all_tasks_blocked()
            nursery.start_soon(lend)

    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(body)
        await trio.sleep(2)
        assert job.blocked_by() == (Blocker("pause", "main"),)
        job.cancel()
        with pytest.raises(JobCancelledError):
            await job.wait()
        assert trio.current_time() == 2.0
        assert lanes.lane("main").limiter.borrowed_tokens == 0
        lanes.resume("main")
        await lanes.run(trio.sleep, 0)


async def test_without_a_rate_no_readmission_waits_for_another_of_its_session(
    autojump_clock: MockClock,
) -> None:
    async def waits_for_the_second() -> float:
        return await second.wait()

    async def gives_its_slot_away() -> float:
        lanes.submit_nowait(waits_for_the_second, lane="narrow", priority=1)
        return await readmitted()  # behind that one

    async def lets_another_go_first() -> float:
        await trio.sleep(1)
        lanes.submit_nowait(trio.sleep, 1, priority=1)
        return await readmitted()

    config = {"main": 1, "narrow": 1}
    async with open_lanes(config, sessions=WIDE) as lanes:
        first = lanes.submit_nowait(gives_its_slot_away, lane="narrow", session="alice")
        second = lanes.submit_nowait(lets_another_go_first, session="alice")
        assert await second.wait() == 2.0
        assert await first.wait() == 2.0
