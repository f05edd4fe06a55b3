"""Places in line where a session has several jobs in one lane, or many sessions act at once."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from trio_lanes import LaneConfig, open_lanes
from trio_lanes.testing import LaneRecorder


async def sleep() -> None:
    await trio.sleep(1)


WIDE = LaneConfig(concurrency=2)


async def test_a_job_that_displaces_a_worse_one_does_not_overtake_its_equals(
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
