"""Where the wait of a job went: the seconds of `Job.waits` by cause."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.bodies import this_job
from trio_lanes import Job, LaneConfig, LaneGroup, RateLimit, open_lanes

SLIDING = RateLimit(1, per=60, algorithm="sliding")


async def test_without_accounting_a_job_does_not_know(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        jobs = [lanes.submit_nowait(trio.sleep, 1) for _ in range(2)]
        await jobs[1].wait()
        assert jobs[1].waits == {}


async def test_a_job_that_started_at_once_has_not_waited(autojump_clock: MockClock) -> None:
    async with open_lanes(wait_accounting=True) as lanes:
        job = lanes.submit_nowait(trio.sleep, 1, session="alice")
        assert job.waits == {}
        await job.wait()
        assert job.waits == {}


def test_whether_waits_are_accounted_for_is_a_boolean() -> None:
    with pytest.raises(TypeError, match="wait_accounting must be True or False"):
        open_lanes(wait_accounting=1)  # type: ignore[arg-type]


async def test_each_part_of_a_wait_has_its_cause(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}, wait_accounting=True) as lanes:
        lanes.submit_nowait(trio.sleep, 10, session="alice")
        lanes.submit_nowait(trio.sleep, 5, session="bob")
        job = lanes.submit_nowait(trio.sleep, 1, session="alice", delay=2)
        await trio.sleep(1)
        assert job.waits == {"delay": 1}
        await trio.sleep(4)
        assert job.waits == {"delay": 2, "session": 3}
        await trio.sleep(6)
        assert job.waits == {"delay": 2, "session": 8, "slots": 1}
        lanes.pause_for("main", 7)
        await job.wait()
        assert job.waits == {"delay": 2, "session": 8, "slots": 1, "pause": 7}


async def test_the_jobs_behind_the_first_wait_because_others_are_before_them(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}, wait_accounting=True) as lanes:
        jobs = [lanes.submit_nowait(trio.sleep, 3) for _ in range(4)]
        urgent = lanes.submit_nowait(trio.sleep, 3, priority=1)
        assert jobs[1].waits == urgent.waits == {}
        await lanes.wait_idle()
        assert [dict(job.waits) for job in (urgent, *jobs[1:])] == [
            {"slots": 3},
            {"order": 3, "slots": 3},
            {"order": 6, "slots": 3},
            {"order": 9, "slots": 3},
        ]


async def test_rates_of_lanes_and_sessions_are_told_apart_from_order(
    autojump_clock: MockClock,
) -> None:
    config = {"main": LaneConfig(concurrency=9, rate=SLIDING), "cron": 9}
    sessions = LaneConfig(concurrency=9, rate=SLIDING)
    async with open_lanes(config, sessions=sessions, wait_accounting=True) as lanes:
        plain = [lanes.submit_nowait(trio.sleep, 0) for _ in range(3)]
        of_session = [
            lanes.submit_nowait(trio.sleep, 0, lane="cron", session="alice") for _ in range(3)
        ]
        await lanes.wait_idle()
        for jobs in (plain, of_session):
            assert [dict(job.waits) for job in jobs] == [
                {},
                {"rate": 60},
                {"order": 60, "rate": 60},
            ]


async def test_the_head_of_a_lane_waits_for_its_group(autojump_clock: MockClock) -> None:
    group = LaneGroup(["main", "cron"], concurrency=1)
    lanes_of_group = {"main": 9, "cron": 9}
    async with open_lanes(lanes_of_group, groups={"g": group}, wait_accounting=True) as lanes:
        lanes.submit_nowait(trio.sleep, 5)
        job = lanes.submit_nowait(trio.sleep, 5, lane="cron")
        await job.wait()
        assert job.waits == {"group": 5}


async def test_a_head_that_its_rate_lets_go_before_the_head_of_another_lane_is_behind_that(
    autojump_clock: MockClock,
) -> None:
    rate = RateLimit(100, unit="tokens", algorithm="sliding")
    group = LaneGroup(["main", "cron"], rate=rate)
    lanes_of_group = {"main": 9, "cron": 9}
    async with open_lanes(lanes_of_group, groups={"g": group}, wait_accounting=True) as lanes:
        await lanes.run(trio.sleep, 10, cost={"tokens": 40})
        await lanes.run(trio.sleep, 0, cost={"tokens": 30})
        large = lanes.submit_nowait(trio.sleep, 0, cost={"tokens": 80})
        other = lanes.submit_nowait(trio.sleep, 0, cost={"tokens": 50}, lane="cron")
        await trio.sleep_until(65)
        assert [blocker.kind for blocker in other.blocked_by()] == ["order"]
        assert other.waits == {"rate": 50, "order": 5}
        await other.wait()
        assert large.waits == {"rate": 60}
        assert other.waits == {"rate": 50 + 60, "order": 10}


async def test_a_head_that_no_rate_holds_is_behind_the_head_that_the_rate_of_the_group_holds(
    autojump_clock: MockClock,
) -> None:
    rate = RateLimit(100, unit="tokens", algorithm="sliding")
    group = LaneGroup(["main", "cron"], rate=rate)
    lanes_of_group = {"main": 9, "cron": 9}
    async with open_lanes(lanes_of_group, groups={"g": group}, wait_accounting=True) as lanes:
        await lanes.run(trio.sleep, 0, cost={"tokens": 70})
        lanes.submit_nowait(trio.sleep, 0, cost={"tokens": 50})
        small = lanes.submit_nowait(trio.sleep, 0, cost={"tokens": 10}, lane="cron")
        await small.wait()
        assert small.waits == {"order": 60}


async def test_a_lane_whose_limiter_is_shared_has_no_slot_when_another_lane_takes_it(
    autojump_clock: MockClock,
) -> None:
    limiter = trio.CapacityLimiter(1)
    config = {
        "main": LaneConfig(limiter=limiter, rate=SLIDING),
        "cron": LaneConfig(limiter=limiter),
    }
    async with open_lanes(config, wait_accounting=True) as lanes:
        await lanes.run(trio.sleep, 0)
        job = lanes.submit_nowait(trio.sleep, 0)
        await trio.sleep(10)
        await lanes.run(trio.sleep, 20, lane="cron")
        await job.wait()
        assert job.waits == {"rate": 40, "slots": 20}


async def test_in_a_session_with_a_rate_a_readmitted_job_is_before_a_job_that_waits(
    autojump_clock: MockClock,
) -> None:
    async def again() -> None:
        await trio.sleep(5)
        await this_job().readmit()

    sessions = LaneConfig(concurrency=2, rate=SLIDING)
    async with open_lanes(sessions=sessions, wait_accounting=True) as lanes:
        alice = lanes.session("alice")
        alice.submit_nowait(again)
        job = alice.submit_nowait(trio.sleep, 0)
        await job.wait()
        assert job.waits == {"rate": 5 + 60, "order": 55}


async def test_the_wait_for_room_stands_apart(autojump_clock: MockClock) -> None:
    async def enter() -> None:
        jobs.append(await lanes.submit(trio.sleep, 0))

    jobs: list[Job[Any]] = []
    async with open_lanes({"main": LaneConfig(max_waiting=1)}, wait_accounting=True) as lanes:
        for _ in range(2):
            lanes.submit_nowait(trio.sleep, 4)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(enter)
            await trio.sleep(1)
            nursery.start_soon(enter)
        await lanes.wait_idle()
        assert jobs[0].submitted_at == 4
        assert jobs[0].waits == {"room": 4, "slots": 4}
        assert jobs[1].waits == {"room": 7}  # it started in the act in which there was room


async def test_a_job_that_never_starts_knows_for_what_it_has_waited(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}, wait_accounting=True) as lanes:
        lanes.submit_nowait(trio.sleep, 9)
        late = lanes.submit_nowait(trio.sleep, 0, queue_timeout=3)
        delayed = lanes.submit_nowait(trio.sleep, 0, delay=100)
        await trio.sleep(5)
        delayed.cancel()
        await trio.sleep(5)
        assert late.waits == {"slots": 3}
        assert delayed.waits == {"delay": 5}


async def test_times_that_are_no_binary_fractions_sum_up_as_well(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}, wait_accounting=True) as lanes:
        await trio.sleep(0.1)
        jobs = [lanes.submit_nowait(trio.sleep, 0.7, session=str(n % 3)) for n in range(12)]
        for _ in range(9):
            await trio.sleep(1 / 3)
            lanes.session("1").pause_for(0.1)
            lanes.pause_for("main", 0.1)
        await lanes.wait_idle()
        for job in jobs:
            assert job.started_at is not None
            total = math.fsum(job.waits.values())
            assert total == pytest.approx(job.started_at - job.submitted_at, abs=1e-15, rel=1e-15)


# ---- what holds the first jobs of the lanes of a group


async def test_the_heads_of_a_group_wait_for_its_tokens_and_then_for_its_rate(
    autojump_clock: MockClock,
) -> None:
    lanes_of_it = {"a": 1, "b": 1, "own": LaneConfig(concurrency=2, rate=RateLimit(1, per=16))}
    group = LaneGroup([*lanes_of_it], concurrency=1, rate=SLIDING)
    async with open_lanes(lanes_of_it, groups={"g": group}, wait_accounting=True) as lanes:
        lanes.submit_nowait(trio.sleep, 8, lane="own")
        first = lanes.submit_nowait(trio.sleep, 1, lane="a")
        second = lanes.submit_nowait(trio.sleep, 1, lane="b")
        cheap = lanes.submit_nowait(trio.sleep, 1, lane="b", cost=0)
        own = lanes.submit_nowait(trio.sleep, 1, lane="own")
        await trio.sleep(10)
        assert first.waits == second.waits == {"group": 8, "rate": 2}
        assert cheap.waits == {"order": 10}
        assert own.waits == {"group": 8, "rate": 2}
        await trio.sleep(10)
        assert own.waits == {"group": 8, "rate": 12}  # then that of the group
        lanes.configure(groups={})
        assert (first.started_at, second.started_at) == (20, 20)
        await lanes.wait_idle()
        assert first.waits == second.waits == {"group": 8, "rate": 12}
        assert cheap.waits == {"order": 20, "slots": 1}


async def test_a_head_that_is_taken_out_of_line_waits_for_something_of_its_own_again(
    autojump_clock: MockClock,
) -> None:
    group = LaneGroup(["a", "b"], concurrency=1)
    async with open_lanes({"a": 1, "b": 1}, groups={"g": group}, wait_accounting=True) as lanes:
        lanes.submit_nowait(trio.sleep, 8, lane="a")
        head = lanes.submit_nowait(trio.sleep, 1, lane="b", session="s")
        await trio.sleep(2)
        better = lanes.submit_nowait(trio.sleep, 1, lane="b", session="s", priority=1)
        await trio.sleep(2)
        assert head.blocked_by()[0].kind == "order"
        assert head.waits == {"group": 2, "order": 2}
        assert better.waits == {"group": 2}
        better.cancel()
        await trio.sleep(2)
        assert head.waits == {"group": 4, "order": 2}
        lanes.pause("b")
        await trio.sleep(1)
        assert head.waits == {"group": 4, "order": 2, "pause": 1}
        lanes.resume("b")


async def test_a_readmitted_job_may_come_before_the_head_of_a_full_lane(
    autojump_clock: MockClock,
) -> None:
    async def again() -> None:
        await this_job().readmit()

    config = {"main": 1, "session:a": LaneConfig(rate=RateLimit(1, per=10, algorithm="sliding"))}
    async with open_lanes(config, wait_accounting=True) as lanes:
        lanes.submit_nowait(again, session="a")  # waits for the rate of its session
        lanes.submit_nowait(trio.sleep, 100, session="b")
        job = lanes.submit_nowait(trio.sleep, 1, session="c")
        await trio.sleep(20)
        assert job.blocked_by()[0].kind == "order"
        assert job.waits == {"slots": 10, "order": 10}


async def test_a_token_of_a_shared_limiter_that_comes_too_early_leaves_the_cause_to_the_rate(
    autojump_clock: MockClock,
) -> None:
    limiter = trio.CapacityLimiter(1)
    config = {"shared": LaneConfig(limiter=limiter), "other": 1}
    group = LaneGroup([*config], rate=RateLimit(1, per=9, algorithm="sliding"))
    async with open_lanes(config, groups={"g": group}, wait_accounting=True) as lanes:
        await lanes.run(trio.sleep, 0, lane="other", cost=0)
        async with limiter:
            job = lanes.submit_nowait(trio.sleep, 1, lane="shared")
            await trio.sleep(1)
            assert job.waits == {"slots": 1}
            lanes.submit_nowait(trio.sleep, 0, lane="other")  # takes what the rate has
            await trio.sleep(1)
            assert job.waits == {"slots": 2}
        await trio.sleep(1)
        assert job.waits == {"slots": 2, "rate": 1}
        assert job.blocked_by()[0].kind == "rate"


async def test_heads_that_share_a_limiter_are_looked_at_one_by_one(
    autojump_clock: MockClock,
) -> None:
    config = {"shared": LaneConfig(limiter=trio.CapacityLimiter(2)), "other": 1}
    group = LaneGroup([*config], concurrency=1, rate=RateLimit(1, per=9, algorithm="sliding"))
    async with open_lanes(config, groups={"g": group}, wait_accounting=True) as lanes:
        lanes.submit_nowait(trio.sleep, 5, lane="other")
        dear = lanes.submit_nowait(trio.sleep, 1, lane="other")
        head = lanes.submit_nowait(trio.sleep, 1, lane="shared", cost=0)
        await trio.sleep(3)
        assert dear.waits == {"slots": 3}  # its own lane is full, too
        assert head.waits == {"group": 3}
        await trio.sleep(4)
        assert dear.waits == {"slots": 5, "rate": 2}
        assert head.waits == {"group": 5, "order": 2}
        assert head.blocked_by()[0].kind == "order"
