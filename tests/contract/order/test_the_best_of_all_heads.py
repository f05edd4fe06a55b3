"""A slot that becomes free goes to the best of all heads that may start then."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from tests.support.track import Track
from trio_lanes import LaneConfig, LaneGroup, RateLimit, open_lanes
from trio_lanes.testing import LaneRecorder

pytestmark = pytest.mark.both_doors


async def test_the_next_job_of_a_session_competes_for_the_slot_that_its_predecessor_leaves(
    autojump_clock: MockClock,
) -> None:
    track, recorder = Track(), LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        lanes.submit_nowait(track.sleep, "first", session="alice")
        lanes.submit_nowait(track.sleep, "urgent", session="alice", priority=5)
        lanes.submit_nowait(track.sleep, "low")
    recorder.check()
    assert track.started == ["first", "urgent", "low"]


async def test_that_holds_in_a_group_too(autojump_clock: MockClock) -> None:
    track, recorder = Track(), LaneRecorder()
    group = LaneGroup(["hooks", "main"], concurrency=1)
    async with open_lanes(
        {"main": 9, "hooks": 9}, groups={"all": group}, instruments=[recorder]
    ) as lanes:
        lanes.submit_nowait(track.sleep, "first", session="alice")
        lanes.submit_nowait(track.sleep, "urgent", session="alice", priority=5)
        lanes.submit_nowait(track.sleep, "low", lane="hooks")
    recorder.check()
    assert track.started == ["first", "urgent", "low"]


async def test_a_job_that_its_session_forwards_when_another_starts_competes_for_the_next_slot(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    # Under a rate, a session forwards its next job when the one before has started. No recorder:
    # its hooks would be called between the two starts, and the session be served before the second.
    sessions = LaneConfig(concurrency=2, rate=RateLimit(2, per=60, algorithm="sliding"))
    async with open_lanes({"main": 0}, sessions=sessions) as lanes:
        lanes.submit_nowait(track.sleep, "first", session="alice", priority=2)
        lanes.submit_nowait(track.sleep, "second", session="alice", priority=1)
        lanes.submit_nowait(track.sleep, "low", session="bob")
        lanes.configure({"main": 2})
    assert track.started == ["first", "second", "low"]


async def test_after_a_reset_all_sessions_compete_before_anything_starts(
    autojump_clock: MockClock,
) -> None:
    track, recorder = Track(), LaneRecorder()
    sessions = [f"user{i}" for i in range(8)]
    async with open_lanes({"main": 8}, instruments=[recorder]) as lanes:
        for session in sessions:
            lanes.submit_nowait(trio.sleep_forever, session=session)
        for i in range(8):
            lanes.submit_nowait(track.sleep, f"low{i}")
        for session in sessions:
            lanes.submit_nowait(track.sleep, session, session=session, priority=1)
        assert lanes.reset("main") == 8
        await trio.sleep(0.5)
        assert sorted(track.started) == sessions
    recorder.check()


async def test_after_a_reset_sessions_are_served_in_the_order_of_the_jobs_that_were_reset(
    autojump_clock: MockClock,
) -> None:
    track, recorder = Track(), LaneRecorder()
    sessions = [f"user{i}" for i in range(8)]
    async with open_lanes({"main": 8}, instruments=[recorder]) as lanes:
        for session in sessions:
            lanes.submit_nowait(trio.sleep_forever, session=session)
        for session in reversed(sessions):
            lanes.submit_nowait(track.sleep, session, session=session)
        lanes.lane("main").concurrency = 1
        lanes.reset("main")
    recorder.check()
    assert track.started == sessions
