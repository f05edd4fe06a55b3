"""Lanes that come to life under a name that a template matches, and sessions unlike the others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.track import Track
from trio_lanes import (
    Lane,
    LaneConfig,
    LaneGroup,
    LaneInstrument,
    RateLimit,
    SessionLane,
    UnknownLaneError,
    open_lanes,
)


async def no_op() -> str:
    return "done"


async def test_a_name_that_matches_a_template_is_a_lane_of_its_own_while_it_has_jobs(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"subagent:*": 1}) as lanes:
        first = lanes.submit_nowait(trio.sleep, 5, lane="subagent:anna")
        second = lanes.submit_nowait(trio.sleep, 5, lane="subagent:bert")
        third = lanes.submit_nowait(trio.sleep, 5, lane="subagent:anna")
        assert (first.lane, second.lane) == ("subagent:anna", "subagent:bert")
        assert set(lanes.statistics().lanes) == {"subagent:anna", "subagent:bert"}
        assert lanes.lane("subagent:anna").label == "subagent:*"
        await trio.sleep(1)
        assert third.started_at is None
        assert lanes.clear("subagent:*") == 1
        await lanes.wait_idle()
        assert lanes.statistics().lanes == {}


async def test_the_longest_template_wins_and_an_exact_name_wins_over_all(
    autojump_clock: MockClock,
) -> None:
    limits = {"a*": 1, "a:b*": 2, "a:b:c": 3}
    async with open_lanes(limits) as lanes:
        assert lanes.lane("a:x").concurrency == 1
        assert lanes.lane("a:bx").concurrency == 2
        assert lanes.lane("a:b:c").concurrency == 3
        assert lanes.statistics().sessions == 0
        with pytest.raises(UnknownLaneError, match="'b'"):
            lanes.lane("b")
        with pytest.raises(UnknownLaneError):
            lanes.clear("b")


async def test_a_lane_of_a_template_stays_while_it_is_paused_and_while_its_rate_remembers(
    autojump_clock: MockClock,
) -> None:
    rate = RateLimit(1, per=10, algorithm="sliding")
    async with open_lanes({"probe:*": LaneConfig(rate=rate)}) as lanes:
        lanes.pause("probe:x")
        assert lanes.lane("probe:x").paused
        assert set(lanes.statistics().lanes) == {"probe:x"}
        lanes.resume("probe:x")
        assert lanes.statistics().lanes == {}
        await lanes.run(no_op, lane="probe:x")
        assert set(lanes.statistics().lanes) == {"probe:x"}
        second = lanes.submit_nowait(no_op, lane="probe:x")
        await second.wait()
        assert second.started_at == pytest.approx(10)
        await trio.sleep(10.001)
        assert lanes.statistics().lanes == {}


async def test_a_template_is_reconfigured_with_all_of_its_lanes(autojump_clock: MockClock) -> None:
    async with open_lanes({"t:*": 1}) as lanes:
        jobs = [lanes.submit_nowait(trio.sleep, 1, lane="t:x") for _ in range(4)]
        assert lanes.lane("t:x").active == 1
        lanes.configure({"t:*": 2})
        assert lanes.lane("t:x").active == 2
        lanes.lane("t:x").concurrency = 3
        assert lanes.lane("t:x").active == 3
        assert lanes.lane("t:y").concurrency == 2
        with pytest.raises(ValueError, match="'t:x' cannot be removed"):
            lanes.configure({"t:*": None})
        for job in jobs:
            await job.wait()
        lanes.configure({"t:*": None})
        with pytest.raises(UnknownLaneError):
            lanes.lane("t:x")


async def test_the_concurrency_set_of_a_templates_lane_stays_until_its_template_is_configured(
    autojump_clock: MockClock,
) -> None:
    template = LaneConfig(concurrency=4)
    async with open_lanes({"main": 1, "t:*": template, "u:*": 1}) as lanes:
        for _ in range(8):
            lanes.submit_nowait(trio.sleep, 1, lane="t:x")
        lane = lanes.lane("t:x")
        lane.concurrency = 6
        lanes.lane("main").concurrency = 2
        lanes.configure({"u:*": 3, "session:vip": 2, "t:y": 1})
        lanes.configure(groups={"g": LaneGroup(["main", "t:*"], concurrency=20)})
        assert (lane.concurrency, lane.config.concurrency, lane.active) == (6, 6, 6)
        for same in (4, template):  # named, though the template itself does not change
            lane.concurrency = 6
            lanes.configure({"t:*": same})
            assert lane.concurrency == lane.config.concurrency == 4
        lane.concurrency = 6
        lanes.configure({"t:x*": 5})  # a template that matches better
        assert (lane.label, lane.concurrency) == ("t:x*", 5)


async def test_a_template_is_no_lane_and_the_error_says_so() -> None:
    async with open_lanes({"main": 1, "t:*": 1}) as lanes:
        calls: list[Callable[[], object]] = [
            lambda: lanes.lane("t:*"),
            lambda: lanes.submit_nowait(trio.sleep, 0, lane="t:*"),
            lambda: lanes.portal().submit(trio.sleep, 0, lane="t:*"),
        ]
        for call in calls:
            with pytest.raises(UnknownLaneError, match=r"^'t:\*' is a template"):
                call()


@pytest.mark.parametrize("name", [None, "t:*"])
@pytest.mark.parametrize("timed", [False, True])
async def test_a_pause_of_a_template_or_of_all_lanes_holds_for_later_lanes_too(
    name: str | None, timed: bool, autojump_clock: MockClock
) -> None:
    async with open_lanes({"t:*": 1}) as lanes:
        running = lanes.submit_nowait(trio.sleep, 1, lane="t:alive")
        waiting = lanes.submit_nowait(no_op, lane="t:alive")
        if timed:
            lanes.pause_for(name, 60)
        else:
            lanes.pause(name)
        later = lanes.submit_nowait(no_op, lane="t:later")
        assert lanes.lane("t:later").paused
        assert lanes.lane("t:not alive").paused
        assert lanes.lane("t:later").statistics().paused_until == (60 if timed else None)
        await running.wait()
        if not timed:
            await trio.sleep_until(60)
            lanes.resume(name)
        await waiting.wait()
        await later.wait()
        assert waiting.started_at == later.started_at == 60
        assert not lanes.lane("t:not alive").paused
        assert lanes.statistics().lanes == {}


async def test_a_paused_template_keeps_no_lane_that_has_no_job(autojump_clock: MockClock) -> None:
    async with open_lanes({"t:*": 1}) as lanes:
        for pause in (lanes.pause, partial(lanes.pause_for, seconds=60)):
            running = lanes.submit_nowait(trio.sleep, 1, lane="t:alive")
            pause("t:*")
            for n in range(5):
                lanes.submit_nowait(no_op, lane=f"t:{n}")
            assert lanes.clear() == 5
            assert set(lanes.statistics().lanes) == {"t:alive"}
            await running.wait()
            assert lanes.statistics().lanes == {}
            lanes.resume()


@pytest.mark.parametrize("timed", [False, True])
async def test_a_lane_that_was_resumed_or_paused_by_its_name_stays_so_until_its_template_is(
    timed: bool, autojump_clock: MockClock
) -> None:
    async with open_lanes({"t:*": 1}) as lanes:
        if timed:
            lanes.pause_for(None, 60)
            lanes.pause_for("t:longer", 70)
        else:
            lanes.pause()
        lanes.resume("t:x")
        for _ in range(2):  # it is not forgotten in between
            await lanes.run(no_op, lane="t:x")
            assert "t:x" in lanes.statistics().lanes
        waiting = lanes.submit_nowait(no_op, lane="t:y")
        await trio.sleep_until(60)
        if not timed:
            assert waiting.started_at is None
            lanes.resume("t:*")
        await waiting.wait()
        assert set(lanes.statistics().lanes) == ({"t:longer"} if timed else set())
        await trio.sleep_until(71)
        lanes.pause("t:x")
        await lanes.run(no_op, lane="t:y")
        lanes.pause("t:*")
        lanes.resume("t:*")
        assert not lanes.lane("t:x").paused
        assert lanes.statistics().lanes == {}


async def test_a_lane_may_be_paused_for_longer_than_its_template(autojump_clock: MockClock) -> None:
    async with open_lanes({"t:*": 1}) as lanes:
        lanes.pause_for("t:*", 60)
        jobs = [lanes.submit_nowait(no_op, lane=f"t:{name}") for name in "abc"]
        lanes.pause_for("t:a", 30)
        lanes.pause_for("t:b", 90)
        for job in jobs:
            await job.wait()
        assert [job.started_at for job in jobs] == [60, 90, 60]
        assert lanes.statistics().lanes == {}


async def test_a_template_that_is_configured_paused_is_resumed_by_its_name(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "t:*": LaneConfig(paused=True)}) as lanes:
        waiting = lanes.submit_nowait(no_op, lane="t:x")
        await trio.sleep(1)
        assert waiting.started_at is None
        lanes.resume("t:*")
        await lanes.run(no_op, lane="t:later")
        lanes.configure({"main": 2})
        assert not lanes.lane("t:x").paused
        lanes.configure({"t:*": LaneConfig()})
        lanes.configure({"t:*": LaneConfig(paused=True)})
        assert lanes.lane("t:x").paused
        lanes.configure({"t:*": LaneConfig()})
        assert not lanes.lane("t:x").paused
        await waiting.wait()


async def test_a_template_that_was_removed_leaves_no_pause_behind(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "t:*": 1}) as lanes:
        lanes.pause_for("t:*", 60)
        job = lanes.submit_nowait(no_op, lane="t:x")
        lanes.configure({"t:x": 1})  # a lane by itself, with the pause that it had
        lanes.configure({"t:*": None})
        lanes.configure({"t:*": 1})
        await lanes.run(no_op, lane="t:y")
        assert trio.current_time() == 0
        await job.wait()
        assert trio.current_time() == 60


async def test_instruments_are_told_of_pauses_of_lanes_and_not_of_templates(
    autojump_clock: MockClock,
) -> None:
    class Told(LaneInstrument):
        def lane_paused(self, lane: Lane | SessionLane) -> None:
            seen.append(f"{lane.name} paused")

        def lane_resumed(self, lane: Lane | SessionLane) -> None:
            seen.append(f"{lane.name} resumed")

    seen: list[str] = []
    async with open_lanes({"t:*": 1}, instruments=[Told()]) as lanes:
        lanes.submit_nowait(trio.sleep, 1, lane="t:x")
        lanes.pause()
        job = lanes.submit_nowait(no_op, lane="t:y")
        lanes.resume()
        await job.wait()
    assert seen == ["t:x paused", "t:x resumed", "t:y resumed"]


@pytest.mark.parametrize("name", ["t:x", "session:alice"])
async def test_a_pause_for_a_bad_time_brings_no_lane_to_life(name: str) -> None:
    async with open_lanes({"t:*": 1}) as lanes:
        views = [lanes.lane("t:x"), lanes.session("alice")]
        with pytest.raises(ValueError, match="seconds"):
            lanes.pause_for(name, -1)
        for view in views:
            with pytest.raises(ValueError, match="seconds"):
                view.pause_for(-1)
        assert lanes.statistics().lanes == {}
        assert lanes.sessions() == []


async def test_a_template_may_be_a_member_of_a_group(autojump_clock: MockClock) -> None:
    groups = {"key": LaneGroup(["main", "t:*"], concurrency=2)}
    async with open_lanes({"main": 4, "t:*": 4}, groups=groups) as lanes:
        for name in ("main", "t:x", "t:y"):
            lanes.submit_nowait(trio.sleep, 1, lane=name)
        assert lanes.statistics().active == 2


async def test_a_pause_that_lanes_came_to_life_with_ends_for_all_of_a_group_in_one_batch(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    group = LaneGroup(["main", "sub:*"], concurrency=1)
    async with open_lanes({"main": 1, "sub:*": 1}, groups={"g": group}) as lanes:
        lanes.pause_for(None, 10)
        lanes.submit_nowait(track.sleep, "worst")
        for lane, priority in (("sub:a", 5), ("sub:b", 9)):
            lanes.submit_nowait(track.sleep, lane, lane=lane, priority=priority)
    assert track.start_times == {"sub:b": 10.0, "sub:a": 11.0, "worst": 12.0}


async def test_a_session_may_be_unlike_the_others(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 9, "session:vip": 2}) as lanes:
        for session in ("vip", "other"):
            for _ in range(3):
                lanes.submit_nowait(trio.sleep, 1, session=session)
        assert lanes.session("vip").active == 2
        assert lanes.session("other").active == 1
        lanes.configure({"session:vip": 3, "session:other": LaneConfig(concurrency=2)})
        assert lanes.session("vip").active == 3
        assert lanes.session("other").active == 2
        lanes.configure({"session:vip": None})
        assert lanes.session("vip").active == 3  # nothing that runs is touched


async def test_a_template_of_sessions_configures_the_sessions_whose_keys_match(
    autojump_clock: MockClock,
) -> None:
    config = {"main": 99, "session:probe-*": 2, "session:probe-deep-*": 3, "session:probe-x": 4}
    async with open_lanes(config) as lanes:
        keys = ("alice", "probe-a", "probe-deep-a", "probe-x", "probe-*")
        for key in keys:
            for _ in range(5):
                lanes.submit_nowait(trio.sleep, 1, session=key)
        assert [lanes.session(key).active for key in keys] == [1, 2, 3, 4, 2]
        lanes.configure({"session:probe-*": 5})
        assert [lanes.session(key).active for key in keys] == [1, 5, 3, 4, 5]
        lanes.configure({"session:probe-deep-*": None})
        assert lanes.session("probe-deep-b").config.concurrency == 5
        assert lanes.clear("session:probe-*") == 0  # a name of a verb is that of one session
        assert lanes.clear() == 5 - 1 + 5 - 3 + 5 - 4 - 2  # what is left of alice, deep-a and x


async def test_a_number_is_the_only_difference_of_a_session_from_the_others(
    autojump_clock: MockClock,
) -> None:
    others = LaneConfig(max_waiting=7, rate=RateLimit(9))
    async with open_lanes({"session:vip": 2}, sessions=others) as lanes:
        lanes.configure({"session:new": 3, "session:vip": 4, "session:own": LaneConfig()})
        assert lanes.session("vip").config == attrs.evolve(others, concurrency=4)
        assert lanes.session("new").config == attrs.evolve(others, concurrency=3)
        assert lanes.session("own").config == LaneConfig()
        assert lanes.session("alice").config == others


@pytest.mark.parametrize(
    ("lanes", "says"),
    [
        ({"session:vip": LaneConfig(aging=2)}, "session:vip.*aging"),
        ({"session:vip": LaneConfig(fair=True)}, "session:vip.*fair"),
        ({"session:": 1}, "blank"),
        ({"session:session:": 1}, "blank"),
        ({"session:*": LaneConfig(aging=2)}, r"session:\*.*aging"),
        ({"session: a": 1, "session:a ": 1}, "twice"),
    ],
)
def test_a_bad_session_of_its_own_is_an_error_at_the_call(lanes: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        open_lanes(lanes)


async def test_a_session_may_be_paused_from_the_start_and_bounded(
    autojump_clock: MockClock,
) -> None:
    config = LaneConfig(paused=True, max_waiting=1)
    async with open_lanes({"main": 9, "session:slow": config}) as lanes:
        assert lanes.session("slow").paused
        job = lanes.session("slow").submit_nowait(no_op)
        with pytest.raises(trio.WouldBlock):
            lanes.session("slow").submit_nowait(no_op)
        lanes.resume("session:slow")
        assert await job.wait() == "done"


async def test_a_lane_lives_as_long_as_a_request_for_it_waits_for_room_in_a_session(
    autojump_clock: MockClock,
) -> None:
    sessions = LaneConfig(max_waiting=1)
    async with open_lanes({"main": 1, "sub:*": 1}, sessions=sessions) as lanes:
        alice = lanes.session("alice")
        for _ in range(2):
            alice.submit_nowait(trio.sleep, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(alice.run, trio.sleep, 1, lane="sub:a"))
            await wait_all_tasks_blocked()
            with trio.move_on_after(0.5):
                await alice.run(trio.sleep, 1, lane="sub:c")
            lanes.submit_nowait(trio.sleep, 9, lane="sub:b")
            assert list(lanes.statistics().lanes) == ["main", "sub:a", "sub:b"]
            lanes.configure(groups={"g": LaneGroup(["sub:*"], concurrency=1)})
        assert trio.current_time() == 10.5
        assert list(lanes.statistics().lanes) == ["main"]
