"""Places where a session has several jobs in one lane, or many sessions act at once."""

from __future__ import annotations

import math
import time
from typing import Any

import attrs
import trio
from trio.testing import MockClock

from trio_lanes import LaneConfig, open_lanes
from trio_lanes.testing import LaneRecorder


async def sleep() -> None:
    await trio.sleep(1)


WIDE = LaneConfig(concurrency=2)


async def test_a_job_that_displaces_a_worse_job_does_not_overtake_its_equals(
    autojump_clock: MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, sessions=WIDE, instruments=[recorder]) as lanes:
        lanes.submit_nowait(sleep, name="blocker")
        lanes.submit_nowait(sleep, session="alice", name="low", priority=-1)
        lanes.submit_nowait(sleep, session="bob", name="other")
        lanes.submit_nowait(sleep, session="alice", name="first")
        lanes.submit_nowait(sleep, session="alice", name="second")  # has the place of "low"
    recorder.check()
    assert [job.name for job in recorder.started] == ["blocker", "first", "other", "second", "low"]


async def test_the_successor_of_a_lowered_job_does_not_overtake_its_equals(
    autojump_clock: MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, sessions=WIDE, instruments=[recorder]) as lanes:
        lanes.submit_nowait(sleep, name="blocker")
        lowered = lanes.submit_nowait(sleep, session="alice", name="lowered")
        lanes.submit_nowait(sleep, session="alice", name="first")
        lanes.submit_nowait(sleep, session="alice", name="second")
        lowered.priority = -1
    recorder.check()
    assert [job.name for job in recorder.started] == ["blocker", "first", "second", "lowered"]


async def test_equals_that_came_before_the_displaced_job_keep_their_places(
    autojump_clock: MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, sessions=WIDE, instruments=[recorder]) as lanes:
        lanes.submit_nowait(sleep, name="blocker")
        lanes.submit_nowait(sleep, session="alice", name="first")
        lanes.submit_nowait(sleep, session="bob", name="bob1")
        lanes.submit_nowait(sleep, session="alice", name="low", priority=-1)
        lanes.submit_nowait(sleep, session="carol", name="carol1")
        lanes.submit_nowait(sleep, session="alice", name="second")
    recorder.check()
    assert [job.name for job in recorder.started] == [
        "blocker",
        "first",
        "bob1",
        "second",
        "carol1",
        "low",
    ]


async def test_a_raised_job_that_displaces_another_goes_behind_its_new_equals_in_the_lane(
    autojump_clock: MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        lanes.submit_nowait(sleep, name="blocker")
        lanes.submit_nowait(sleep, session="alice", name="forwarded")
        raised = lanes.submit_nowait(sleep, session="alice", name="raised")
        lanes.submit_nowait(sleep, session="bob", name="equal", priority=1)
        raised.priority = 1
    recorder.check()
    assert [job.name for job in recorder.started] == ["blocker", "equal", "raised", "forwarded"]


async def test_in_a_fair_lane_a_job_that_takes_the_place_of_another_has_its_turn(
    autojump_clock: MockClock,
) -> None:
    recorder = LaneRecorder()
    main = LaneConfig(fair=True)
    async with open_lanes({"main": main}, instruments=[recorder]) as lanes:
        lanes.submit_nowait(sleep, name="blocker")
        lanes.submit_nowait(sleep, session="alice", name="low")
        for name in ("bob", "carol"):
            lanes.submit_nowait(sleep, session=name, priority=1, name=name)
        lanes.submit_nowait(sleep, session="alice", priority=1, name="better")
    recorder.check()
    assert [job.name for job in recorder.started] == ["blocker", "better", "bob", "carol", "low"]


async def test_in_a_fair_lane_an_equal_that_moves_up_keeps_the_turn_of_its_owner(
    autojump_clock: MockClock,
) -> None:
    """The owner has been served since its job came, so its turn is not by its arrival."""
    recorder = LaneRecorder()
    main = LaneConfig(fair=True)
    sessions = LaneConfig(concurrency=3)
    async with open_lanes({"main": main}, sessions=sessions, instruments=[recorder]) as lanes:
        lanes.submit_nowait(sleep, name="blocker")
        lanes.submit_nowait(sleep, session="alice", name="low", priority=-1)
        for name in ("alice1", "alice2", "bob1", "carol1"):
            lanes.submit_nowait(sleep, session=name[:-1], name=name)
        await trio.sleep(1.5)  # alice1 runs
        lanes.submit_nowait(sleep, session="alice", name="alice3")  # has the place of "low"
    recorder.check()
    started = [job.name for job in recorder.started]
    assert started == ["blocker", "alice1", "bob1", "carol1", "alice2", "alice3", "low"]


async def test_a_fair_lane_that_is_widened_goes_on_with_the_turns_of_its_owners(
    autojump_clock: MockClock,
) -> None:
    recorder = LaneRecorder()
    main = LaneConfig(fair=True)
    async with open_lanes({"main": main}, instruments=[recorder]) as lanes:
        for name in ("x1", "x2", "x3", "y1", "y2"):
            lanes.submit_nowait(sleep, owner=name[0], name=name)
        await trio.sleep(1.5)  # x2 runs; it is the turn of y
        lanes.configure({"main": LaneConfig(fair=True, warn_after=60)})
        lanes.submit_nowait(sleep, owner="z", name="z")
    recorder.check()
    assert [job.name for job in recorder.started] == ["x1", "x2", "y1", "x3", "z", "y2"]


async def test_weights_that_are_written_to_after_they_were_read_change_no_lane(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": LaneConfig(weights={"a": 2})}) as lanes:
        for weights in ({"a": 2}, {"a": 3}):
            lanes.configure({"main": LaneConfig(weights=weights)})
            jobs = [lanes.submit_nowait(trio.sleep, 1, owner=owner) for owner in "abab"]
            written: Any = lanes.lane("main").config.weights
            written["b"] = 5
            jobs[-1].cancel()
            await lanes.wait_idle()
            assert [job.state.value for job in jobs] == ["succeeded"] * 3 + ["cancelled"]


async def test_owners_start_jobs_by_their_weights_which_may_change(
    autojump_clock: MockClock,
) -> None:
    recorder = LaneRecorder()
    main = LaneConfig(weights={"gold": 3})
    assert main.fair
    async with open_lanes({"main": main}, instruments=[recorder]) as lanes:
        for i in range(24):
            lanes.submit_nowait(sleep, session=f"g{i}", owner="gold", name="g")
            lanes.submit_nowait(sleep, session="alice", name="a")
            lanes.submit_nowait(sleep, name="-")
        await trio.sleep(9.5)
        lanes.configure({"main": attrs.evolve(main, weights={"alice": 2, "*": 1})})
        await trio.sleep(8)
        lanes.configure({"main": attrs.evolve(main, weights={})})
        await trio.sleep(6)
        lanes.clear()
    recorder.check()
    started = "".join(job.name for job in recorder.started)
    assert [started[:10].count(name) for name in "ga-"] == [6, 2, 2]
    assert [started[10:18].count(name) for name in "ga-"] == [2, 4, 2]
    assert [started[18:].count(name) for name in "ga-"] == [2, 2, 2]


async def test_taking_back_the_forwarded_jobs_of_a_wide_session_costs_n_log_n(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 0}, sessions=LaneConfig(concurrency=math.inf)) as lanes:

        def pause(n: int) -> float:
            for _ in range(n):
                lanes.submit_nowait(sleep, session="alice")
            assert lanes.lane("main").statistics().waiting_in_lane == n
            began = time.thread_time()
            lanes.pause("session:alice")
            took = time.thread_time() - began
            assert lanes.lane("main").statistics().waiting_in_lane == 0
            lanes.clear()
            lanes.resume("session:alice")
            return took

        few, many = (min(pause(n) for _ in range(3)) for n in (250, 4_000))
        assert many < 16 * 5 * few  # n squared would be 256 times as long


async def test_a_lane_may_be_made_fair_and_plain_again_while_jobs_wait(
    autojump_clock: MockClock,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        for name in ("x1", "x2", "x3", "x4", "y1", "y2"):
            lanes.submit_nowait(sleep, owner=name[0], name=name)
        await trio.sleep(0.5)
        lanes.configure({"main": LaneConfig(fair=True)})
        assert lanes.lane("main").statistics().waiting_in_lane == 5
        await trio.sleep(2)  # x2 and y1 have started
        lanes.configure({"main": LaneConfig()})
    recorder.check()
    assert [job.name for job in recorder.started] == ["x1", "x2", "y1", "x3", "x4", "y2"]
