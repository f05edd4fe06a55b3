"""Lanes in which nothing may wait: who waits for room enters when a job would start at once."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.track import Steps, Track
from trio_lanes import JobState, LaneConfig, LaneFullError, LaneGroup, RateLimit, open_lanes

SLIDING = RateLimit(1, per=60, algorithm="sliding")


@pytest.mark.parametrize("session", [None, "alice"])
async def test_room_comes_when_the_rate_of_the_lane_allows_it(
    autojump_clock: MockClock, session: str | None
) -> None:
    config = LaneConfig(concurrency=9, max_waiting=0, rate=SLIDING)
    async with open_lanes({"main": config}) as lanes:
        for _ in range(3):
            await lanes.run(trio.sleep, 0, session=session)
    assert trio.current_time() == 120.0


@pytest.mark.parametrize("where", ["lane", "session", "both"])
@pytest.mark.parametrize("width", [1, 5])
async def test_room_comes_when_the_rate_of_the_session_allows_it(
    autojump_clock: MockClock, where: str, width: int
) -> None:
    config = LaneConfig(concurrency=9, max_waiting=9 if where == "session" else 0)
    sessions = LaneConfig(concurrency=width, max_waiting=9 if where == "lane" else 0, rate=SLIDING)
    async with open_lanes({"main": config}, sessions=sessions) as lanes:
        async with trio.open_nursery() as nursery:
            for cost in (1, 1, 0, 1):
                nursery.start_soon(partial(lanes.run, trio.sleep, 0, session="alice", cost=cost))
                await wait_all_tasks_blocked()
    assert trio.current_time() == 120.0


@pytest.mark.parametrize("where", ["lane", "group", "limiter"])
async def test_room_in_a_session_where_nothing_may_wait_comes_when_its_lane_would_start_a_job(
    autojump_clock: MockClock, where: str
) -> None:
    limiter, groups = trio.CapacityLimiter(1), {"g": LaneGroup(["main"], rate=SLIDING)}
    config = {
        "lane": LaneConfig(concurrency=9, rate=SLIDING),
        "group": LaneConfig(concurrency=9),
        "limiter": LaneConfig(limiter=limiter),
    }[where]
    sessions = LaneConfig(max_waiting=0)
    async with (
        open_lanes(
            {"main": config}, sessions=sessions, groups=groups if where == "group" else {}
        ) as lanes,
        limiter,
    ):
        async with trio.open_nursery() as nursery:
            for session in ("alice", "bob"):
                nursery.start_soon(partial(lanes.run, trio.sleep, 0, session=session))
            await trio.sleep(60)
            limiter.release()
        assert trio.current_time() == 60.0
        await limiter.acquire()


async def test_room_comes_for_a_better_job_before_the_rate_lets_the_head_of_its_session_start(
    autojump_clock: MockClock,
) -> None:
    """Each of the two has a time of its own from which the rate lets it start."""
    rate = RateLimit(10, per=60, algorithm="sliding")
    track, session = Track(), LaneConfig(concurrency=5, rate=rate)
    lanes_of_two = {"main": LaneConfig(concurrency=9, max_waiting=1), "session:alice": session}
    async with open_lanes(lanes_of_two) as lanes, trio.open_nursery() as nursery:
        alice = lanes.session("alice")
        alice.submit_nowait(trio.sleep, 0, cost=3)
        await trio.sleep(20)
        alice.submit_nowait(trio.sleep, 0, cost=7)
        alice.submit_nowait(track.sleep, "waits", cost=9)
        for label, cost, priority in (("equal", 1, 0), ("better", 3, 1)):
            nursery.start_soon(partial(alice.run, track.sleep, label, cost=cost, priority=priority))
            await wait_all_tasks_blocked()
        await trio.sleep(41)
        assert track.started == ["better"]
    assert track.started == ["better", "waits", "equal"]


async def test_room_comes_when_the_rate_of_the_group_allows_it(autojump_clock: MockClock) -> None:
    group = LaneGroup(["main", "cron"], rate=SLIDING)
    config = {"main": LaneConfig(max_waiting=0), "cron": 1}
    async with open_lanes(config, groups={"g": group}) as lanes:
        await lanes.run(trio.sleep, 0, lane="cron")
        await lanes.run(trio.sleep, 0)
    assert trio.current_time() == 60.0


@pytest.mark.parametrize("shared", [False, True])
async def test_a_job_that_must_not_overtake_the_head_of_its_group_waits_for_room_without_haste(
    autojump_clock: MockClock, shared: bool
) -> None:
    """By its own cost it could start at once, but a sibling's head waits for the group's rate."""
    tokens = RateLimit(10, per=60, unit="tokens", algorithm="sliding")
    group = LaneGroup(["main", "cron"], rate=tokens)
    limiter = trio.CapacityLimiter(5) if shared else None
    cron = LaneConfig(max_waiting=0, limiter=limiter, warn_after=9e9)
    main = LaneConfig(concurrency=5, warn_after=9e9)
    async with open_lanes({"main": main, "cron": cron}, groups={"g": group}) as lanes:
        lane, track = lanes.lane("cron"), Track()
        await lanes.run(trio.sleep, 0, cost={"tokens": 6})
        head = lanes.submit_nowait(track.sleep, "head", cost={"tokens": 6})
        with pytest.raises(LaneFullError):
            lane.submit_nowait(track.sleep, "cheap", cost={"tokens": 1})
        better = lane.submit_nowait(track.sleep, "better", cost={"tokens": 1}, priority=1)
        assert better.state is JobState.RUNNING
        await better.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(lane.run, track.sleep, "cheap", cost={"tokens": 1}))
            with Steps() as steps:
                await trio.sleep(50)
            assert steps.count <= 10
            assert lane.waiting == 0
        await head.wait()
    assert track.start_times == {"better": 0.0, "head": 60.0, "cheap": 60.0}


async def test_room_comes_when_a_sibling_leaves_its_token_to_the_group(
    autojump_clock: MockClock,
) -> None:
    group = LaneGroup(["sub:*", "cron"], concurrency=1)
    config = {"sub:*": LaneConfig(max_waiting=0), "cron": 1}
    async with open_lanes(config, groups={"g": group}) as lanes:
        lanes.submit_nowait(trio.sleep, 3, lane="cron")
        await lanes.run(trio.sleep, 1, lane="sub:a")
        await wait_all_tasks_blocked()
        assert list(lanes.statistics().lanes) == ["cron"]
    assert trio.current_time() == 4.0


async def test_room_comes_with_a_token_of_a_shared_limiter(autojump_clock: MockClock) -> None:
    limiter, track = trio.CapacityLimiter(1), Track()

    async def other_code(label: str) -> None:
        async with limiter:
            await track.sleep(label)

    config = LaneConfig(limiter=limiter, max_waiting=0)
    async with open_lanes({"main": config}) as lanes, trio.open_nursery() as nursery:
        await limiter.acquire()
        for i in range(2):
            nursery.start_soon(lanes.run, track.sleep, i)
            await wait_all_tasks_blocked()
        assert limiter.statistics().tasks_waiting == 1
        nursery.start_soon(other_code, "other")
        await trio.sleep(5)
        limiter.release()
    assert track.started == [0, "other", 1]
    assert limiter.borrowed_tokens == limiter.statistics().tasks_waiting == 0


async def test_a_request_for_room_that_is_given_up_leaves_nothing_at_a_shared_limiter(
    autojump_clock: MockClock,
) -> None:
    limiter = trio.CapacityLimiter(1)
    config = LaneConfig(limiter=limiter, max_waiting=0)
    async with open_lanes({"main": config, "cron": 1}) as lanes:
        await limiter.acquire()
        with trio.move_on_after(5):
            await lanes.run(trio.sleep, 1)
        await wait_all_tasks_blocked()
        assert limiter.statistics().tasks_waiting == 0
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(lanes.run, trio.sleep, 1)
                await wait_all_tasks_blocked()
                limiter.release()  # which gives the token to the lane
                lanes.pause("main")
                scope.cancel()
            await trio.sleep(5)
            assert limiter.borrowed_tokens == 0
            lanes.resume("main")
    assert limiter.borrowed_tokens == limiter.statistics().tasks_waiting == 0


async def test_a_request_that_its_session_holds_up_is_passed_over_without_a_busy_loop(
    autojump_clock: MockClock,
) -> None:
    limiter, track = trio.CapacityLimiter(2), Track()
    config = LaneConfig(limiter=limiter, max_waiting=0)
    async with open_lanes({"main": config}) as lanes, trio.open_nursery() as nursery:
        await limiter.acquire()
        alice = lanes.submit_nowait(track.sleep, "alice0", 10, session="alice")
        for label, session in (("alice1", "alice"), ("bob", "bob"), ("carol", None)):
            nursery.start_soon(
                lambda label=label, session=session: lanes.run(track.sleep, label, session=session)
            )
            await wait_all_tasks_blocked()
        with Steps() as steps:
            await trio.sleep(5)
        assert steps.count < 10
        limiter.release()
        await trio.sleep(3)
        assert alice.state is JobState.RUNNING
    assert track.started == ["alice0", "bob", "carol", "alice1"]


async def test_no_request_is_forgotten_when_time_passes_before_the_timer_is_seen(
    mock_clock: MockClock,
) -> None:
    config = LaneConfig(concurrency=9, max_waiting=0, rate=SLIDING)
    sessions = LaneConfig(max_waiting=1)
    async with (
        open_lanes({"main": config}, sessions=sessions) as lanes,
        trio.open_nursery() as nursery,
    ):
        await lanes.run(trio.sleep, 0)
        jobs = []

        async def submit(session: str | None, seconds: float = 0) -> None:
            mock_clock.jump(seconds)
            jobs.append(await lanes.submit(trio.sleep, 0, session=session))

        for session in (None, "alice"):
            nursery.start_soon(submit, session)
            await wait_all_tasks_blocked()
        nursery.start_soon(submit, "alice", 60)  # the first may enter before any request is checked
        await wait_all_tasks_blocked()
        assert len(jobs) == 1
        for count in (2, 3):
            mock_clock.jump(60)
            await wait_all_tasks_blocked()
            assert len(jobs) == count
