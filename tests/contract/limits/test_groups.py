"""Groups: lanes that share a budget, reservations and rates."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.chaos import examples
from tests.support.track import Track
from trio_lanes import (
    Blocker,
    Job,
    JobState,
    LaneConfig,
    LaneGroup,
    RateLimit,
    open_lanes,
)
from trio_lanes.testing import LaneRecorder

pytestmark = pytest.mark.both_doors

SLIDING = RateLimit(2, per=60, algorithm="sliding")
TOKENS = RateLimit(100, per=60, unit="tokens", algorithm="sliding")


class Steps(trio.abc.Instrument):
    """Counts the steps of tasks; it moves the time on when a task never ends to use this moment."""

    def __init__(self, clock: MockClock) -> None:
        self.clock = clock
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1
        if self.count == 1_000:
            self.clock.jump(1_000)


def blockers(job: Job[Any]) -> list[tuple[str, str]]:
    return [(blocker.kind, blocker.lane) for blocker in job.blocked_by()]


# ---- budgets and reservations


async def test_a_token_that_is_reserved_is_not_for_siblings(autojump_clock: MockClock) -> None:
    track = Track()
    group = LaneGroup(["cron", "hooks"], concurrency=8, reserve={"hooks": 1})
    async with open_lanes({"main": 1, "cron": 20, "hooks": 20}, groups={"g": group}) as lanes:
        cron = [lanes.submit_nowait(track.sleep, f"cron{i}", 5, lane="cron") for i in range(8)]
        await wait_all_tasks_blocked()
        assert track.running == 7
        assert cron[7].blocked_by() == (Blocker("reservation", "g", tuple(cron[:7])),)
        hook = lanes.submit_nowait(track.sleep, "hook", lane="hooks")
        assert hook.state is JobState.RUNNING
        await hook.wait()
        assert cron[7].state is JobState.WAITING
    assert track.start_times["cron7"] == 5.0
    assert track.peak == 8


async def test_beyond_its_reservation_a_lane_shares_the_rest(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    group = LaneGroup(["main", "cron"], concurrency=4, reserve={"main": 1, "cron": 1})
    async with open_lanes({"main": 9, "cron": 9}, groups={"g": group}) as lanes:
        for i in range(4):
            lanes.submit_nowait(track.sleep, f"main{i}")
        await wait_all_tasks_blocked()
        assert track.running == 3
        for i in range(2):
            lanes.submit_nowait(track.sleep, f"cron{i}", lane="cron")
        await wait_all_tasks_blocked()
        assert sorted(track.started) == ["cron0", "main0", "main1", "main2"]
    assert track.peak == 4
    assert trio.current_time() == 2.0


async def test_a_reservation_of_everything_leaves_nothing_for_siblings(
    autojump_clock: MockClock,
) -> None:
    group = LaneGroup(["main", "cron"], concurrency=2, reserve={"main": 2})
    async with open_lanes({"main": 9, "cron": 9}, groups={"g": group}) as lanes:
        job = lanes.submit_nowait(trio.sleep, 1, lane="cron")
        await trio.sleep(100)
        assert job.blocked_by() == (Blocker("reservation", "g"),)
        job.cancel()


async def test_a_budget_of_nothing_starts_nothing(autojump_clock: MockClock) -> None:
    async with open_lanes(groups={"g": LaneGroup(["main"], concurrency=0)}) as lanes:
        job = lanes.submit_nowait(trio.sleep, 1)
        await trio.sleep(100)
        assert job.blocked_by() == (Blocker("group", "g"),)
        lanes.configure(groups={"g": LaneGroup(["main"], concurrency=1)})
        await job.wait()


async def test_the_limits_of_the_lanes_go_on_within_a_group(autojump_clock: MockClock) -> None:
    recorder = LaneRecorder()
    group = LaneGroup(["main", "cron"], concurrency=3)
    async with open_lanes(
        {"main": 1, "cron": 9}, groups={"g": group}, instruments=[recorder]
    ) as lanes:
        for _ in range(4):
            lanes.submit_nowait(trio.sleep, 1)
            lanes.submit_nowait(trio.sleep, 1, lane="cron")
    recorder.check()
    assert recorder.peak("main") == 1
    assert recorder.peak("cron") == 2
    assert trio.current_time() == 4.0


async def test_a_lane_outside_of_the_group_is_not_touched_by_it(
    autojump_clock: MockClock,
) -> None:
    group = LaneGroup(["main"], concurrency=0)
    async with open_lanes({"main": 9, "cron": 1}, groups={"g": group}) as lanes:
        waiting = lanes.submit_nowait(trio.sleep, 1)
        await lanes.run(trio.sleep, 1, lane="cron")
        waiting.cancel()


async def test_each_of_several_groups_has_its_own_budget(autojump_clock: MockClock) -> None:
    groups = {
        "a": LaneGroup(["main", "cron"], concurrency=1),
        "b": LaneGroup(["subagent"], concurrency=2),
    }
    recorder = LaneRecorder()
    async with open_lanes(groups=groups, instruments=[recorder]) as lanes:
        for lane in ("main", "cron", "subagent"):
            for _ in range(2):
                lanes.submit_nowait(trio.sleep, 1, lane=lane)
    assert [recorder.peak(lane) for lane in ("main", "cron", "subagent")] == [1, 1, 2]
    assert trio.current_time() == 4.0


async def test_a_reset_gives_the_tokens_of_the_group_back(autojump_clock: MockClock) -> None:
    track = Track()

    async def stuck() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(10)

    group = LaneGroup(["main", "cron"], concurrency=1)
    async with open_lanes({"main": 9, "cron": 9}, groups={"g": group}) as lanes:
        lanes.submit_nowait(stuck)
        lanes.submit_nowait(track.sleep, "cron", lane="cron")
        await wait_all_tasks_blocked()
        lanes.reset("main")
        await trio.sleep(2)
    assert track.end_times == {"cron": 1.0}


# ---- which member is served


@pytest.mark.many_seeds(5)
async def test_freed_capacity_goes_to_the_best_head_and_not_to_the_lane_that_finished(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    group = LaneGroup(["main", "cron", "subagent"], concurrency=1)
    async with open_lanes(groups={"g": group}) as lanes:
        lanes.submit_nowait(track.sleep, "blocker")
        lanes.submit_nowait(track.sleep, "main1")
        lanes.submit_nowait(track.sleep, "cron1", lane="cron")
        lanes.submit_nowait(track.sleep, "sub1", lane="subagent")
        lanes.submit_nowait(track.sleep, "cron2", lane="cron", priority=1)
        lanes.submit_nowait(track.sleep, "sub2", lane="subagent", priority=2)
        lanes.submit_nowait(track.sleep, "main2", priority=1)
        lanes.submit_nowait(track.sleep, "main3", priority=-1)
        lanes.submit_nowait(track.sleep, "cron3", lane="cron")
    order = ["blocker", "sub2", "cron2", "main2", "main1", "cron1", "sub1", "cron3", "main3"]
    assert track.started == order
    assert track.peak == 1


async def test_among_equals_of_a_group_sessions_take_turns(autojump_clock: MockClock) -> None:
    track = Track()
    group = LaneGroup(["main", "cron"], concurrency=1)
    async with open_lanes({"main": 9, "cron": 9}, groups={"g": group}) as lanes:
        lanes.submit_nowait(track.sleep, "blocker")
        for i in range(3):
            lanes.submit_nowait(track.sleep, f"alice{i}", session="alice")
        lanes.submit_nowait(track.sleep, "cron", lane="cron")
        lanes.submit_nowait(track.sleep, "bob", session="bob")
    assert track.started == ["blocker", "alice0", "cron", "bob", "alice1", "alice2"]


async def test_the_age_of_a_job_that_was_delayed_begins_when_it_is_due(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    group = LaneGroup(["main", "cron"], concurrency=1)
    async with open_lanes({"main": 9, "cron": 9}, groups={"g": group}) as lanes:
        lanes.submit_nowait(track.sleep, "blocker", 10)
        lanes.submit_nowait(track.sleep, "delayed", delay=5)
        await trio.sleep(1)
        lanes.submit_nowait(track.sleep, "cron", lane="cron")
    assert track.started == ["blocker", "cron", "delayed"]


async def test_a_priority_that_is_set_counts_in_the_group(autojump_clock: MockClock) -> None:
    track = Track()
    group = LaneGroup(["main", "cron"], concurrency=1)
    async with open_lanes({"main": 9, "cron": 9}, groups={"g": group}) as lanes:
        lanes.submit_nowait(track.sleep, "blocker")
        lanes.submit_nowait(track.sleep, "main")
        job = lanes.submit_nowait(track.sleep, "cron", lane="cron")
        job.priority = 1
    assert track.started == ["blocker", "cron", "main"]


@pytest.mark.parametrize("why", ["its session is paused", "another goes before it"])
async def test_a_head_that_its_session_takes_back_leaves_its_lane_no_better_than_the_next_job(
    autojump_clock: MockClock, why: str
) -> None:
    track = Track()
    group = LaneGroup(["main", "cron"], concurrency=1)
    async with open_lanes({"main": 1, "cron": 1}, groups={"g": group}) as lanes:
        lanes.start_soon(track.sleep, "first")
        alice = lanes.session("alice")
        head = alice.submit_nowait(track.sleep, "taken back", lane="cron", priority=2)
        lanes.start_soon(track.sleep, "next in cron", lane="cron")
        lanes.start_soon(track.sleep, "better", priority=1)
        if why == "its session is paused":
            alice.pause()
        else:
            alice.start_soon(track.sleep, "goes before it", priority=-1)
            head.priority = -2
        await trio.sleep(2.5)
        alice.resume()
    assert track.started[:3] == ["first", "better", "next in cron"]
    assert track.started[-1] == "taken back"


@pytest.mark.parametrize("stopped_by", ["pause", "limit", "rate", "session"])
async def test_a_head_that_its_own_lane_stops_is_passed_over_and_holds_no_budget(
    autojump_clock: MockClock, stopped_by: str
) -> None:
    track = Track()
    rate = SLIDING if stopped_by == "rate" else ()
    config = {"main": LaneConfig(concurrency=2, rate=rate), "cron": LaneConfig(concurrency=9)}
    group = LaneGroup(["main", "cron"], concurrency=2)
    async with open_lanes(config, groups={"g": group}) as lanes:
        session = "alice" if stopped_by == "session" else None
        if stopped_by == "rate":
            for _ in range(2):
                await lanes.run(trio.sleep, 0)
        lanes.submit_nowait(track.sleep, "first", 5, session=session)
        if stopped_by == "limit":
            lanes.lane("main").concurrency = 1
        elif stopped_by == "pause":
            lanes.pause("main")
        lanes.submit_nowait(track.sleep, "stopped", 5, session=session, priority=9)
        for i in range(4):
            lanes.submit_nowait(track.sleep, i, lane="cron")
        await trio.sleep(4.5)
        assert sorted(track.ended) == [0, 1, 2, 3]
        assert "stopped" not in track.started
        assert ("first" in track.started) == (stopped_by != "rate")
        lanes.resume("main")
    assert track.start_times["stopped"] == {"rate": 60.0, "pause": 4.5}.get(stopped_by, 5.0)


async def test_a_head_for_which_only_reserved_tokens_are_left_is_passed_over(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    group = LaneGroup(["main", "hooks"], concurrency=2, reserve={"hooks": 1})
    async with open_lanes({"main": 9, "hooks": 9}, groups={"g": group}) as lanes:
        lanes.submit_nowait(track.sleep, "blocker", 5)
        lanes.submit_nowait(track.sleep, "main", priority=9)
        for i in range(2):
            lanes.submit_nowait(track.sleep, f"hook{i}", lane="hooks")
    assert track.started == ["blocker", "hook0", "hook1", "main"]


@pytest.mark.parametrize(("aging", "stream_aging"), [(1, 1), (1, 4), (1, math.inf), (0.1, 0.1)])
async def test_an_aging_job_of_low_priority_starts_in_time_under_a_stream_in_another_member(
    autojump_clock: MockClock, aging: float, stream_aging: float
) -> None:
    track = Track()
    group = LaneGroup(["main", "cron"], concurrency=1)
    config = {"main": LaneConfig(aging=aging), "cron": LaneConfig(aging=stream_aging)}
    async with open_lanes(config, groups={"g": group}) as lanes:
        lanes.submit_nowait(track.sleep, "stream", lane="cron", priority=5)
        lanes.submit_nowait(track.sleep, "low")
        for _ in range(20):
            lanes.submit_nowait(track.sleep, "stream", lane="cron", priority=5)
            await trio.sleep(1)
    # At worst it waits five steps longer than a job of the stream, and those wait for a second.
    assert track.start_times["low"] <= 5 * aging + 2


async def test_a_job_of_high_priority_does_not_wait_behind_an_aged_head_and_a_sibling(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    group = LaneGroup(["main", "cron"], concurrency=1)
    async with open_lanes({"main": LaneConfig(aging=1), "cron": 1}, groups={"g": group}) as lanes:
        lanes.submit_nowait(track.sleep, "first", 30, lane="cron")
        lanes.submit_nowait(track.sleep, "low")
        await trio.sleep(20)
        lanes.submit_nowait(track.sleep, "high", priority=9)
        for i in range(3):
            lanes.submit_nowait(track.sleep, f"sibling{i}", lane="cron", priority=3)
    assert track.started == ["first", "low", "high", "sibling0", "sibling1", "sibling2"]


async def test_each_member_of_a_group_ages_by_its_own_aging_as_it_is_when_a_token_is_free(
    autojump_clock: MockClock,
) -> None:
    """Of two heads, the head that is behind at first is ahead later."""
    group = LaneGroup(["fast", "slow"], concurrency=1)
    config = {"fast": LaneConfig(aging=1), "slow": LaneConfig(aging=2)}
    for seconds, order in ((9, ["slow", "fast"]), (10, ["slow", "fast"]), (11, ["fast", "slow"])):
        track = Track()
        async with open_lanes(config, groups={"g": group}) as lanes:
            lanes.submit_nowait(trio.sleep, seconds, lane="fast")
            lanes.submit_nowait(track.sleep, "fast", lane="fast")
            lanes.submit_nowait(track.sleep, "slow", lane="slow", priority=5)
        assert track.started == order  # after 10 seconds it is a tie: the higher priority wins


async def test_a_free_job_starts_when_aging_puts_it_before_the_head_that_waits_for_a_rate(
    autojump_clock: MockClock,
) -> None:
    group = LaneGroup(["main", "cron", "late"], rate=RateLimit(1, per=100))
    config = {"main": 4, "cron": LaneConfig(aging=1), "late": LaneConfig(aging=50)}
    async with open_lanes(config, groups={"g": group}) as lanes:
        begun = trio.current_time()
        lanes.start_soon(trio.sleep, 0)  # takes what the rate has
        expensive = lanes.submit_nowait(trio.sleep, 0, priority=5)
        free = lanes.submit_nowait(trio.sleep, 0, lane="cron", cost=0)
        later = lanes.submit_nowait(trio.sleep, 0, lane="late", priority=4, cost=0)
        for job, seconds in ((free, 5), (later, 50), (expensive, 100)):
            await job.wait_started()
            assert job.started_at is not None
            assert job.started_at - begun == pytest.approx(seconds)


async def test_a_free_job_starts_when_aging_puts_its_priority_first_whichever_equal_was_the_head(
    autojump_clock: MockClock,
) -> None:
    group = LaneGroup(["main", "aging", "cron"], rate=RateLimit(1, per=100))
    config = {"main": 4, "aging": LaneConfig(aging=10), "cron": LaneConfig(aging=1)}
    async with open_lanes(config, groups={"g": group}) as lanes:
        begun = trio.current_time()
        lanes.start_soon(trio.sleep, 0)  # takes what the rate has
        lanes.submit_nowait(trio.sleep, 0, priority=1)
        lanes.submit_nowait(trio.sleep, 0, priority=1, lane="aging")  # more urgent, behind it
        await trio.sleep(5)
        free = lanes.submit_nowait(trio.sleep, 0, lane="cron", cost=0)
        await free.wait_started()
        # t - 5 > 1 + t / 10; at 6 s it was more urgent than the head alone
        assert trio.current_time() - begun == pytest.approx(20 / 3)
        assert lanes.clear() == 2


@pytest.mark.parametrize("aging", [math.inf, 30])
@pytest.mark.trio_only("counts the steps of Trio's tasks")
async def test_nothing_wakes_while_equals_of_different_aging_wait_for_the_rate_of_a_group(
    autojump_clock: MockClock, aging: float
) -> None:
    steps = Steps(autojump_clock)
    config = {
        lane: LaneConfig(aging=seconds, warn_after=math.inf)
        for lane, seconds in (("main", aging), ("cron", 60))
    }
    group = LaneGroup(["main", "cron"], rate=SLIDING)
    async with open_lanes(config, groups={"g": group}) as lanes:
        for _ in range(2):
            await lanes.run(trio.sleep, 0)
        equals = [lanes.submit_nowait(trio.sleep, 0, lane=lane) for lane in config]
        trio.lowlevel.add_instrument(steps)
        with trio.move_on_after(59):
            for job in equals:
                await job.wait_started()
        assert [job.state for job in equals] == [JobState.WAITING] * 2
        trio.lowlevel.remove_instrument(steps)
    assert steps.count == 4  # of this task, and of the timers when the rate has refilled
    assert trio.current_time() == 60


async def test_aging_does_not_change_the_order_of_equals_in_a_group(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    group = LaneGroup(["main", "cron"], concurrency=1)
    config = {"main": LaneConfig(aging=1), "cron": LaneConfig(aging=100)}
    async with open_lanes(config, groups={"g": group}) as lanes:
        for i in range(3):
            lanes.submit_nowait(track.sleep, f"alice{i}", session="alice")
        await trio.sleep(0.5)
        lanes.submit_nowait(track.sleep, "cron0", lane="cron")
        lanes.submit_nowait(track.sleep, "cron1", lane="cron")
    assert track.started == ["alice0", "cron0", "cron1", "alice1", "alice2"]


async def test_a_member_that_is_configured_to_age_does_so_at_once(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    group = LaneGroup(["main", "cron"], concurrency=1)
    async with open_lanes({"main": 1, "cron": 1}, groups={"g": group}) as lanes:
        lanes.submit_nowait(track.sleep, "first", 9, lane="cron")
        lanes.submit_nowait(track.sleep, "low")
        lanes.submit_nowait(track.sleep, "better", lane="cron", priority=5)
        await trio.sleep(1)
        lanes.configure({"main": LaneConfig(aging=1)})
    assert track.started == ["first", "low", "better"]


AGINGS = st.sampled_from([math.inf, 0.1, 1.0, 3, 7.5])
AGING_LANES = ("a", "b", "t:1", "t:2")


def expected_order(
    waiting: list[tuple[str, int, float]], agings: dict[str, float], seconds: list[float]
) -> list[int]:
    """The order in which a group with one token starts these (lane, priority, since)."""
    order: list[int] = []
    now = 5.0
    while len(order) < len(waiting):
        left = [index for index in range(len(waiting)) if index not in order]
        urgencies = {}
        for name in AGING_LANES:
            aging = agings[name[0]]
            of_priority: dict[int, Fraction] = {}
            for lane, priority, since in (waiting[index] for index in left):
                aged = Fraction(now) - Fraction(since)
                gained = Fraction(0) if aging == math.inf else aged / Fraction(aging)
                if lane == name:
                    of_priority[priority] = max(of_priority.get(priority, gained), gained)
            if of_priority:
                urgencies[name] = max((one + gain, one) for one, gain in of_priority.items())
        _, best = max(urgencies.values())
        names = [name for name, (_, priority) in urgencies.items() if priority == best]
        index = next(one for one in left if waiting[one][0] in names and waiting[one][1] == best)
        now += seconds[index]
        order.append(index)
    return order


@pytest.mark.trio_only("it runs Trio")
@settings(max_examples=examples(80), deadline=None)
@given(
    st.random_module(),
    st.fixed_dictionaries(dict.fromkeys("abt", AGINGS)),
    st.lists(
        st.tuples(
            st.sampled_from(AGING_LANES),
            st.integers(-2, 3),
            st.sampled_from([0.0, 0.1, 0.5, 1.0]),
            st.sampled_from([0.1, 0.5, 1.0, 3.0]),
        ),
        max_size=12,
    ),
)
def test_a_group_starts_the_head_with_the_highest_aged_priority(
    rnd: random.Random, agings: dict[str, float], plan: list[tuple[str, int, float, float]]
) -> None:
    async def main() -> None:
        track = Track()
        names = {"a": "a", "b": "b", "t": "t:*"}
        config = {names[key]: LaneConfig(aging=aging) for key, aging in agings.items()}
        group = LaneGroup(list(config), concurrency=1)
        waiting = []
        async with open_lanes(config, groups={"g": group}) as lanes:
            lanes.submit_nowait(trio.sleep_until, 5, lane="a")
            for index, (lane, priority, pause, seconds) in enumerate(plan):
                await trio.sleep(pause / 4)
                lanes.submit_nowait(track.sleep, index, seconds, lane=lane, priority=priority)
                waiting.append((lane, priority, trio.current_time()))
            assert trio.current_time() < 5
        assert track.started == expected_order(waiting, agings, [one[3] for one in plan])

    trio.run(main, clock=MockClock(autojump_threshold=0))


# ---- rates


async def test_the_rate_of_a_group_counts_the_jobs_of_all_its_lanes(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    group = LaneGroup(["main", "cron"], rate=SLIDING)
    async with open_lanes({"main": 9, "cron": 9, "other": 9}, groups={"g": group}) as lanes:
        for i in range(3):
            for lane in ("main", "cron", "other"):
                lanes.submit_nowait(track.sleep, f"{lane}{i}", lane=lane)
        await trio.sleep(2)
        assert sorted(track.ended) == ["cron0", "main0", "other0", "other1", "other2"]
    assert {label: time for label, time in track.start_times.items() if time} == {
        "main1": 60.0,
        "cron1": 60.0,
        "main2": 120.0,
        "cron2": 120.0,
    }


async def test_no_job_overtakes_a_head_that_waits_for_the_rate_of_its_group(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    group = LaneGroup(["main", "cron"], rate=TOKENS)
    async with open_lanes({"main": 9, "cron": 9}, groups={"g": group}) as lanes:
        await lanes.run(track.sleep, "first", 0, cost={"tokens": 60})
        large = lanes.submit_nowait(track.sleep, "large", cost={"tokens": 50})
        lanes.submit_nowait(track.sleep, "small", cost={"tokens": 10})
        lanes.submit_nowait(track.sleep, "free", cost={"tokens": 0})
        job = lanes.submit_nowait(track.sleep, "cron", lane="cron", cost={"tokens": 10})
        await trio.sleep(30)
        assert track.started == ["first"]
        assert large.blocked_by() == (Blocker("rate", "g", until=60.0),)
        assert job.blocked_by() == (Blocker("order", "g", (large,)),)
        urgent = lanes.submit_nowait(track.sleep, "urgent", priority=1, cost={"tokens": 40})
        await urgent.wait()
    assert track.started[:2] == ["first", "urgent"]
    rest = {"large": 60.0, "small": 60.0, "free": 60.0, "cron": 90.0}
    assert track.start_times == {"first": 0.0, "urgent": 30.0, **rest}


async def test_a_head_that_waits_for_the_rate_of_its_lane_lets_siblings_use_that_of_the_group(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    config = {"main": LaneConfig(concurrency=9, rate=RateLimit(1, algorithm="sliding")), "cron": 9}
    group = LaneGroup(["main", "cron"], rate=RateLimit(10, algorithm="sliding"))
    async with open_lanes(config, groups={"g": group}) as lanes:
        for i in range(2):
            lanes.submit_nowait(track.sleep, f"main{i}", priority=1)
            lanes.submit_nowait(track.sleep, f"cron{i}", lane="cron")
    assert track.start_times == {"main0": 0.0, "cron0": 0.0, "cron1": 0.0, "main1": 60.0}


async def test_token_and_charges_are_taken_together_or_not_at_all(
    autojump_clock: MockClock,
) -> None:
    """While a job lacks one of them, it has charged nothing of the others."""
    config = {"main": LaneConfig(concurrency=9, rate=TOKENS), "cron": 9}
    group = LaneGroup(["main", "cron"], concurrency=2, rate=RateLimit(3, algorithm="sliding"))
    async with open_lanes(config, groups={"g": group}) as lanes:
        for _ in range(2):
            lanes.submit_nowait(trio.sleep, 10, lane="cron")
        waiting = lanes.submit_nowait(trio.sleep, 0, cost={"tokens": 100})  # lacks the token
        await trio.sleep(5)
        assert blockers(waiting) == [("group", "g")]
        waiting.cancel()
        job = lanes.submit_nowait(trio.sleep, 0, cost={"tokens": 100})
        await job.wait()
        assert job.started_at == 10.0  # nothing was charged for the cancelled job
        lacks_requests = lanes.submit_nowait(trio.sleep, 0, cost={"tokens": 0})
        await trio.sleep(10)
        assert blockers(lacks_requests) == [("rate", "g")]
        lacks_requests.cancel()
        await trio.sleep(50)  # 70 s: the requests are back, and so are the tokens
        job = lanes.submit_nowait(trio.sleep, 0, cost={"tokens": 100})
        await job.wait()
        assert job.started_at == 70.0


async def test_the_actual_use_of_a_job_corrects_lane_and_group(
    autojump_clock: MockClock,
) -> None:
    config = {"main": LaneConfig(concurrency=9, rate=TOKENS), "cron": 9}
    group = LaneGroup(["main", "cron"], rate=RateLimit(200, unit="tokens", algorithm="sliding"))

    async def body(used: float) -> None:
        job = lanes.jobs()[0]
        job.charge(tokens=used)

    async with open_lanes(config, groups={"g": group}) as lanes:
        await lanes.run(body, 10, cost={"tokens": 100})
        first = lanes.submit_nowait(trio.sleep, 0, cost={"tokens": 90})
        second = lanes.submit_nowait(trio.sleep, 0, cost={"tokens": 100}, lane="cron")
        third = lanes.submit_nowait(trio.sleep, 0, cost={"tokens": 1}, lane="cron")
        await third.wait()
        assert (first.started_at, second.started_at, third.started_at) == (0.0, 0.0, 60.0)


async def test_a_unit_that_only_the_group_counts_is_known_to_its_lanes(
    autojump_clock: MockClock,
) -> None:
    group = LaneGroup(["main"], rate=TOKENS)
    async with open_lanes({"main": 1, "cron": 1}, groups={"g": group}) as lanes:
        await lanes.run(trio.sleep, 0, cost={"tokens": 5})
        with pytest.raises(ValueError, match="cost names 'tokens', which no rate limit counts"):
            lanes.submit_nowait(trio.sleep, 0, lane="cron", cost={"tokens": 5})


async def test_a_group_that_waits_for_its_rate_is_served_again_when_a_better_job_comes(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    group = LaneGroup(["main", "cron"], rate=[SLIDING, TOKENS])
    async with open_lanes({"main": 9, "cron": 9}, groups={"g": group}) as lanes:
        await lanes.run(trio.sleep, 20, cost={"tokens": 60})
        await lanes.run(trio.sleep, 20, cost={"tokens": 0})
        lanes.submit_nowait(track.sleep, "later", cost={"tokens": 100})  # at 60
        lanes.submit_nowait(track.sleep, "better", lane="cron", priority=1, cost={"tokens": 40})
    assert track.start_times == {"better": 60.0, "later": 120.0}


@pytest.mark.parametrize("change", ["joins", "leaves", "another", "anew", "the same"])
async def test_the_actual_use_of_a_job_corrects_the_group_that_charged_it(
    autojump_clock: MockClock, change: str
) -> None:
    """Only a group that keeps its name in all configurations in between has that past."""
    lane = LaneConfig(concurrency=9, rate=RateLimit(1000, unit="tokens", algorithm="sliding"))
    group = {"g": LaneGroup(["main"], rate=TOKENS)}
    before = {} if change == "joins" else group
    between: dict[str, LaneGroup] = {} if change == "anew" else before
    after = {"h": LaneGroup(["main"], rate=TOKENS)} if change == "another" else group
    if change == "the same":
        after = {"g": LaneGroup(["main"], concurrency=7, rate=TOKENS)}
    elif change == "leaves":
        after = {}
    async with open_lanes({"main": lane}, groups=before) as lanes:
        old = lanes.submit_nowait(trio.sleep, 1, cost={"tokens": 100})
        lanes.configure(groups=between)
        lanes.configure(groups=after)
        jobs = [lanes.submit_nowait(trio.sleep, 1, cost={"tokens": 100}) for _ in range(2)]
        await trio.sleep(5)
        old.charge(tokens=0)
        await lanes.wait_idle()
        assert [job.started_at for job in jobs] == {
            "leaves": [0.0, 0.0],
            "the same": [5.0, 60.0 + 5.0],
        }.get(change, [0.0, 60.0])


async def test_a_unit_of_the_group_that_charged_a_job_is_known_to_it_for_good(
    autojump_clock: MockClock,
) -> None:
    group = LaneGroup(["main"], rate=TOKENS)
    async with open_lanes({"main": 9}, groups={"g": group}) as lanes:
        jobs = [lanes.submit_nowait(trio.sleep, 1, cost={"tokens": 50}) for _ in range(2)]
        lanes.configure(groups={})
        jobs[0].charge(tokens=10)
        with pytest.raises(ValueError, match="cost names 'bytes', which no rate limit counts"):
            jobs[1].charge(bytes=10)


# ---- templates


async def test_all_lanes_of_a_template_share_its_place_in_the_group(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    group = LaneGroup(["main", "sub:*"], concurrency=3, reserve={"main": 1, "sub:*": 1})
    async with open_lanes({"main": 9, "sub:*": 1}, groups={"g": group}) as lanes:
        for name in "abc":
            for i in range(2):
                lanes.submit_nowait(track.sleep, f"{name}{i}", lane=f"sub:{name}")
        await wait_all_tasks_blocked()
        assert sorted(track.started) == ["a0", "b0"]  # the third is reserved for main
        await lanes.run(track.sleep, "main")
        await lanes.wait_idle()
        assert list(lanes.statistics().lanes) == ["main"]
    assert track.peak == 3
    assert {label: track.start_times[label] for label in ("a1", "b1", "c0", "c1")} == {
        "a1": 1.0,
        "b1": 1.0,
        "c0": 2.0,
        "c1": 3.0,
    }


async def test_a_template_lane_that_was_gone_is_a_member_again_when_it_comes_back(
    autojump_clock: MockClock,
) -> None:
    group = LaneGroup(["sub:*"], concurrency=1)
    recorder = LaneRecorder()
    async with open_lanes({"sub:*": 5}, groups={"g": group}, instruments=[recorder]) as lanes:
        for _ in range(3):
            for lane in ("sub:a", "sub:b"):
                lanes.submit_nowait(trio.sleep, 1, lane=lane)
            await lanes.wait_idle()
    recorder.check()
    assert trio.current_time() == 6.0


# ---- changes


@pytest.mark.parametrize(
    ("kwargs", "error", "words"),
    [
        ({"members": ["other", "nowhere"]}, ValueError, "member 'nowhere', which is no lane"),
        ({"members": ["main", "other"]}, ValueError, "'main' is in two groups: 'a', 'b'"),
    ],
)
async def test_groups_that_do_not_fit_the_lanes_are_refused_and_change_nothing(
    autojump_clock: MockClock, kwargs: Any, error: type[Exception], words: str
) -> None:
    good = LaneGroup(["main"], concurrency=1)
    groups: dict[str, Any] = {"a": good, "b": LaneGroup(**kwargs)}
    config = {"main": 9, "other": 9}
    with pytest.raises(error, match=words):
        open_lanes(config, groups=groups)
    async with open_lanes(config, groups={"a": good}) as lanes:
        jobs = [lanes.submit_nowait(trio.sleep, 1) for _ in range(2)]
        with pytest.raises(error, match=words):
            lanes.configure({"main": 7, "new": 1}, groups=groups)
        with pytest.raises(ValueError, match="'main', which is no lane"):
            lanes.configure({"main": None})
        assert lanes.lane("main").concurrency == 9
        assert list(lanes.statistics().lanes) == ["main", "other"]
        assert blockers(jobs[1]) == [("group", "a")]


@pytest.mark.trio_only("it runs Trio")
@pytest.mark.parametrize(
    ("kwargs", "error", "words"),
    [
        ({"members": "main"}, TypeError, "members must be an iterable of lane names, not 'main'"),
        ({"members": ["main", " main "]}, ValueError, "members must not be named twice"),
        ({"members": ["main"], "concurrency": -1}, ValueError, "concurrency must not be negative"),
        ({"members": ["main"], "concurrency": 1.5}, ValueError, "concurrency"),
        ({"members": ["main"], "reserve": 1}, TypeError, "reserve must be a mapping"),
        ({"members": ["main"], "reserve": {"cron": 1}}, ValueError, "'cron', which is no member"),
        ({"members": ["main"], "reserve": {"main": -1}}, ValueError, "must not be negative"),
        ({"members": ["main"], "reserve": {"main": 1.5}}, ValueError, r"reserve\['main'\]"),
        (
            {"members": ["main", "cron"], "concurrency": 2, "reserve": {"main": 2, "cron": 1}},
            ValueError,
            "reserve keeps more than the concurrency",
        ),
        ({"members": ["main"], "rate": "60/m"}, TypeError, "rate must be"),
    ],
)
def test_a_group_that_makes_no_sense_is_refused_where_it_is_made(
    kwargs: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        LaneGroup(**kwargs)


@pytest.mark.parametrize("bad", [["main"], {"g": ["main"]}, {"g": None}, {5: LaneGroup(["main"])}])
async def test_an_argument_that_is_no_mapping_of_groups_is_refused(
    autojump_clock: MockClock, bad: Any
) -> None:
    with pytest.raises(TypeError, match="group"):
        open_lanes(groups=bad)
    async with open_lanes() as lanes:
        with pytest.raises(TypeError, match="group"):
            lanes.configure(groups=bad)


async def test_another_budget_counts_at_once_and_stops_no_running_job(
    autojump_clock: MockClock,
) -> None:
    def group(budget: float) -> Mapping[str, LaneGroup]:
        return {"g": LaneGroup(["main", "cron"], concurrency=budget)}

    track = Track()
    async with open_lanes({"main": 9, "cron": 9}, groups=group(2)) as lanes:
        for i in range(8):
            lanes.submit_nowait(track.sleep, i, 10, lane="cron" if i % 2 else "main")
        await wait_all_tasks_blocked()
        assert track.running == 2
        lanes.configure(groups=group(4))
        await wait_all_tasks_blocked()
        assert track.running == 4
        lanes.configure(groups=group(1))
        await trio.sleep(5)
        assert track.running == 4
        await trio.sleep(6)
        assert track.running == 1
        lanes.configure(groups={})
        await wait_all_tasks_blocked()
        assert track.running == 4
    assert sorted(track.started[:4]) == [0, 1, 2, 3]
    assert trio.current_time() == 21.0


async def test_a_lane_that_joins_a_group_brings_the_tokens_that_its_jobs_hold(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 9, "cron": 9}) as lanes:
        for lane in ("main", "cron"):
            lanes.submit_nowait(track.sleep, f"{lane}0", 10, lane=lane)
        await wait_all_tasks_blocked()
        lanes.configure(groups={"g": LaneGroup(["main", "cron"], concurrency=2)})
        for lane in ("main", "cron"):
            lanes.submit_nowait(track.sleep, f"{lane}1", 10, lane=lane)
        await wait_all_tasks_blocked()
        assert track.running == 2
        lanes.configure(groups={"h": LaneGroup(["cron"], concurrency=2)})
        await wait_all_tasks_blocked()
        assert track.running == 4
        lanes.configure(groups={"g": LaneGroup(["main", "cron"], concurrency=2)})
    assert trio.current_time() == 10.0


async def test_the_rate_of_a_group_keeps_its_history_under_another_configuration(
    autojump_clock: MockClock,
) -> None:
    track = Track()

    def group(limit: float) -> Mapping[str, LaneGroup]:
        rate = RateLimit(limit, per=60, algorithm="sliding")
        return {"g": LaneGroup(["main", "cron"], rate=rate)}

    async with open_lanes({"main": 9, "cron": 9}, groups=group(2)) as lanes:
        for i in range(5):
            lanes.submit_nowait(track.sleep, i)
        await trio.sleep(10)
        lanes.configure({"main": 5, "cron": 3})  # which says nothing of groups
        await trio.sleep(10)
        assert sorted(track.ended) == [0, 1]
        lanes.configure(groups=group(3))
        await trio.sleep(10)
        assert sorted(track.ended) == [0, 1, 2]
    assert track.start_times == {0: 0.0, 1: 0.0, 2: 20.0, 3: 60.0, 4: 60.0}


@pytest.mark.many_seeds(3)
async def test_a_group_that_was_replaced_while_it_waited_starts_nothing_any_more(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    old = LaneGroup(["main", "cron"], concurrency=9, rate=SLIDING)
    new = LaneGroup(["main", "cron"], concurrency=1, rate=SLIDING)
    async with open_lanes({"main": 9, "cron": 9}, groups={"g": old}) as lanes:
        for lane in ("main", "cron"):
            for i in range(4):
                lanes.submit_nowait(track.sleep, f"{lane}{i}", 1, lane=lane)
        await trio.sleep(30)
        assert len(track.ended) == 2
        lanes.configure(groups={"g": new})
        lanes.submit_nowait(track.sleep, "long", 100, priority=1)
        await trio.sleep(100)
        assert track.running == 1
    assert track.peak == 2
    assert len(track.ended) == 9


async def test_a_lane_that_wants_a_slot_back_wants_it_of_the_new_group(
    autojump_clock: MockClock,
) -> None:
    async def lends() -> float:
        async with lanes.jobs()[0].yield_slot():
            await trio.sleep(1)
        return trio.current_time()

    old = LaneGroup(["main", "cron"], concurrency=1)
    new = LaneGroup(["main", "cron"], concurrency=2, reserve={"cron": 1})
    async with open_lanes({"main": 9, "cron": 9}, groups={"g": old}) as lanes:
        job = lanes.submit_nowait(lends)
        await wait_all_tasks_blocked()
        lanes.submit_nowait(trio.sleep, 50, lane="cron")
        await trio.sleep(10)
        assert job.state is JobState.RUNNING
        lanes.configure(groups={"g": new})
        assert await job.wait() == 10.0


async def test_a_template_that_becomes_a_lane_of_its_own_leaves_the_group(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    group = LaneGroup(["sub:*"], concurrency=1)
    async with open_lanes({"sub:*": 5}, groups={"g": group}) as lanes:
        for i in range(2):
            for name in "ab":
                lanes.submit_nowait(track.sleep, f"{name}{i}", 10, lane=f"sub:{name}")
        await wait_all_tasks_blocked()
        assert track.running == 1
        lanes.configure({"sub:b": 5})
        await wait_all_tasks_blocked()
        assert sorted(track.started) == ["a0", "b0", "b1"]
        lanes.configure({"sub:b": None})  # a lane of the template again
        await trio.sleep(5)
        assert track.running == 3
    assert trio.current_time() == 20.0


# ---- any history


@pytest.mark.trio_only("it runs Trio")
@settings(max_examples=examples(40))
@given(
    st.random_module(),
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 3)),
        min_size=1,
        max_size=25,
    ),
    st.integers(1, 4),
    st.booleans(),
)
def test_any_jobs_start_in_the_order_that_a_search_for_the_best_head_finds(
    random_module: random.Random,
    jobs: list[tuple[int, int, int]],
    budget: int,
    reserve: bool,
) -> None:
    trio.run(_as_a_search_finds, jobs, budget, reserve, clock=MockClock(autojump_threshold=0))


async def _as_a_search_finds(jobs: list[tuple[int, int, int]], budget: int, reserve: bool) -> None:
    limits = {"a": 2, "b": 1, "c": 3, "d": 9}
    names = list(limits)
    times = [seconds + 2.0 ** -(i + 2) for i, (_, _, seconds) in enumerate(jobs)]  # no ties
    reserved = {"a": 1} if reserve and budget > 1 else {}
    recorder = LaneRecorder()
    group = LaneGroup(names, concurrency=budget, reserve=reserved)
    async with open_lanes(limits, groups={"g": group}, instruments=[recorder]) as lanes:
        lanes.configure(groups={"g": LaneGroup(names, concurrency=0)})
        for i, (lane, priority, _) in enumerate(jobs):
            lanes.submit_nowait(
                trio.sleep, times[i], lane=names[lane], priority=priority, name=str(i)
            )
        lanes.configure(groups={"g": group})
    # What must have happened: whenever something ends, the best that may start does.
    waiting = [(-priority, i, names[lane]) for i, (lane, priority, _) in enumerate(jobs)]
    waiting.sort()
    running: list[tuple[float, str]] = []
    expected: list[int] = []
    now = 0.0

    def may_start(lane: str) -> bool:
        used = [name for _, name in running]
        kept = sum(max(0, n - used.count(name)) for name, n in reserved.items() if name != lane)
        return used.count(lane) < limits[lane] and len(used) + kept < budget

    while waiting:
        for entry in waiting:
            _, i, lane = entry
            if may_start(lane):
                waiting.remove(entry)
                running.append((now + times[i], lane))
                expected.append(i)
                break
        else:
            running.sort()
            now, _ = running.pop(0)
    recorder.check()
    assert [int(job.name) for job in recorder.started] == expected
