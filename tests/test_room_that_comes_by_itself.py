"""Lanes in which nothing may wait: who waits for room enters when a job would start at once."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.track import Steps, Track
from trio_lanes import JobState, LaneConfig, LaneGroup, RateLimit, open_lanes

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


async def test_room_comes_when_the_rate_of_the_group_allows_it(autojump_clock: MockClock) -> None:
    group = LaneGroup(["main", "cron"], rate=SLIDING)
    config = {"main": LaneConfig(max_waiting=0), "cron": 1}
    async with open_lanes(config, groups={"g": group}) as lanes:
        await lanes.run(trio.sleep, 0, lane="cron")
        await lanes.run(trio.sleep, 0)
    assert trio.current_time() == 60.0


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


async def test_whoever_gives_up_waiting_for_room_leaves_nothing_at_a_shared_limiter(
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


async def test_whoever_is_held_up_by_a_session_is_passed_over_without_any_haste(
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
