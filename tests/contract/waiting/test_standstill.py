"""`Lanes.health` of kind `standstill`: jobs wait for slots, and nothing of their lane has moved."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.bodies import this_job
from trio_lanes import (
    Job,
    LaneConfig,
    LaneGroup,
    Lanes,
    Problem,
    RateLimit,
    open_lanes,
)


def hangs(lanes: Lanes, **options: Any) -> Job[Any]:
    return lanes.submit_nowait(trio.sleep_forever, **options)


def standstills(lanes: Lanes) -> list[Problem]:
    return [one for one in lanes.health() if one.kind == "standstill"]


def end_all(lanes: Lanes) -> None:
    lanes.clear()
    lanes.reset()


async def test_it_is_a_problem_that_all_slots_hang_while_jobs_wait(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2}) as lanes:
        jobs = [hangs(lanes, session=f"s{n}") for n in range(2)]
        await trio.sleep(100)
        waiting = [hangs(lanes, name="late") for _ in range(50)]
        await trio.sleep(199)
        assert lanes.health() == ()
        await trio.sleep(1)
        (problem,) = lanes.health()
        assert (problem.kind, problem.lane, problem.job) == ("standstill", "main", waiting[0].id)
        assert str(problem) == (
            "nothing of 'main' has started, ended or made progress for 300 s, and 50 wait; "
            f'{waiting[0].id} ← slots of "main": 2 of 2 in use, longest by 1 for 300 s: '
            'cancel 1, or reset "session:s0"; '
            "raise standstill_after of 'main' if its jobs may take so long"
        )
        jobs[0].cancel()  # as it says
        await trio.sleep(1)
        assert lanes.health() == ()
        end_all(lanes)


async def test_a_start_an_end_and_progress_are_signs_of_life(autojump_clock: MockClock) -> None:
    async def tells() -> None:
        await trio.sleep(250)
        this_job().progress()
        await trio.sleep_forever()

    async with open_lanes({"main": 2}) as lanes:
        lanes.submit_nowait(tells)
        lanes.submit_nowait(trio.sleep, 500)
        for _ in range(3):
            hangs(lanes)
        await trio.sleep(549)
        assert standstills(lanes) == []  # progress at 250, an end and a start at 500
        await trio.sleep(250)
        assert standstills(lanes) == []
        await trio.sleep(1)
        assert len(standstills(lanes)) == 1
        end_all(lanes)


async def test_an_end_that_lets_nothing_start_is_a_sign_of_life(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 3}) as lanes:
        hangs(lanes)
        hangs(lanes)
        lanes.submit_nowait(trio.sleep, 250)
        hangs(lanes)
        lanes.lane("main").concurrency = 2
        await trio.sleep(549)
        assert standstills(lanes) == []
        await trio.sleep(1)
        assert len(standstills(lanes)) == 1
        end_all(lanes)


async def test_the_end_of_a_job_that_has_lent_its_slot_is_a_sign_of_life(
    autojump_clock: MockClock,
) -> None:
    async def lends() -> None:
        async with this_job().yield_slot():
            await trio.sleep_forever()

    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(lends, session="s")
        await trio.sleep(1)
        hangs(lanes)
        hangs(lanes)
        await trio.sleep(249)
        lanes.reset("session:s")
        await trio.sleep(299)
        assert standstills(lanes) == []
        await trio.sleep(1)
        assert len(standstills(lanes)) == 1
        end_all(lanes)


async def test_slots_of_a_group_that_hang_are_a_standstill_of_each_lane_that_waits(
    autojump_clock: MockClock,
) -> None:
    group = LaneGroup(["main", "cron"], 2)
    async with open_lanes({"main": 9, "cron": 9}, groups={"g": group}) as lanes:
        lanes.submit_nowait(trio.sleep, 200, lane="cron")
        hangs(lanes, lane="main")
        hangs(lanes, lane="main")
        await trio.sleep(200)  # the one that ends leaves its token to the other lane
        hangs(lanes, lane="cron")
        await trio.sleep(299)
        assert standstills(lanes) == []
        await trio.sleep(1)
        (problem,) = standstills(lanes)
        assert (problem.lane, problem.job) == ("cron", 4)
        assert 'slots of the group "g": 2 of 2 in use' in problem.text
        hangs(lanes, lane="main")
        await trio.sleep(11)
        assert {one.lane for one in standstills(lanes)} == {"cron", "main"}
        end_all(lanes)


async def test_where_other_code_has_all_tokens_of_a_limiter_a_lane_stands_still(
    autojump_clock: MockClock,
) -> None:
    limiter = trio.CapacityLimiter(1)
    limiter.acquire_on_behalf_of_nowait("other")
    async with open_lanes({"main": LaneConfig(limiter=limiter)}) as lanes:
        await trio.sleep(1000)
        job = hangs(lanes)
        await trio.sleep(299)
        assert lanes.health() == ()
        await trio.sleep(1)
        (problem,) = lanes.health()
        assert (problem.kind, problem.job) == ("standstill", job.id)
        end_all(lanes)


async def test_a_lane_says_how_long_its_jobs_may_take(autojump_clock: MockClock) -> None:
    lanes_of = {
        "slow": LaneConfig(standstill_after=1200),
        "never": LaneConfig(standstill_after=math.inf),
        "main": 1,
    }
    async with open_lanes(lanes_of) as lanes:
        for name in lanes_of:
            hangs(lanes, lane=name)
            hangs(lanes, lane=name)
        await trio.sleep(1199)
        assert [one.lane for one in standstills(lanes)] == ["main"]
        (cause,) = lanes.lane("slow").waiters(1)[0].root_causes()
        assert cause.advice == 'raise the concurrency of "slow"'
        await trio.sleep(1)
        assert [one.lane for one in standstills(lanes)] == ["slow", "main"]
        (cause,) = lanes.lane("slow").waiters(1)[0].root_causes()
        assert cause.advice == 'cancel 1, or reset "slow"'
        lanes.configure({"main": LaneConfig(standstill_after=9999)})
        assert [one.lane for one in standstills(lanes)] == ["slow"]
        end_all(lanes)


@pytest.mark.parametrize("why", ["pause", "limit", "rate", "session", "group of 0", "reserved"])
async def test_other_reasons_to_wait_are_no_standstill(autojump_clock: MockClock, why: str) -> None:
    rate = RateLimit(1, per=3600, algorithm="sliding")
    config = LaneConfig(concurrency=2, rate=rate if why == "rate" else ())
    of_group = {"group of 0": LaneGroup(["main"], 0)}
    of_group["reserved"] = LaneGroup(["main", "cron"], 3, reserve={"cron": 2})
    groups = {"g": of_group[why]} if why in of_group else {}
    async with open_lanes({"main": config, "cron": 2}, groups=groups) as lanes:
        if why == "limit":
            lanes.configure({"main": 0})
        session = "s" if why == "session" else None
        for _ in range(3 if why == "pause" else 2):
            hangs(lanes, session=session)
        if why == "pause":
            lanes.pause("main")
        await trio.sleep(1000)
        assert lanes.statistics().waiting
        assert standstills(lanes) == []
        lanes.resume("main")
        end_all(lanes)


async def test_a_lane_in_which_no_job_waits_or_has_just_come_stands_not_still(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        hangs(lanes)
        await trio.sleep(1000)
        assert lanes.health() == ()
        hangs(lanes)
        await trio.sleep(10)
        assert lanes.health() == ()
        await trio.sleep(1)
        assert len(standstills(lanes)) == 1
        end_all(lanes)


async def test_a_job_tells_when_it_has_made_progress_last(autojump_clock: MockClock) -> None:
    async def tells() -> None:
        await trio.sleep(5)
        this_job().progress()
        await trio.sleep(5)
        async with this_job().yield_slot():
            await trio.sleep(5)
        await trio.sleep(5)

    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(tells, delay=2)
        assert job.progress_at is None
        await trio.sleep(3)
        assert job.progress_at == 2
        await trio.sleep(5)
        assert job.progress_at == 7
        await trio.sleep(5)
        assert job.progress_at == 2  # it lends its slot
        await trio.sleep(5)
        assert job.progress_at == 17  # when it got it back
        await job.wait()
