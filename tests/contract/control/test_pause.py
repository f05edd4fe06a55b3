"""Pausing and resuming lanes of both layers."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.track import Track
from trio_lanes import JobState, LaneConfig, LaneGroup, open_lanes

pytestmark = pytest.mark.both_doors


@pytest.mark.many_seeds(5)
async def test_a_lane_configured_paused_starts_nothing_until_it_is_resumed(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": LaneConfig(concurrency=2, paused=True)}) as lanes:
        lane = lanes.lane("main")
        assert lane.paused
        assert lane.config.paused
        for i in range(4):
            lanes.start_soon(track.sleep, i)
        await trio.sleep(100)
        assert track.started == []
        assert (lane.waiting, lane.active) == (4, 0)
        lane.resume()
        assert not lane.paused
        assert (lane.waiting, lane.active) == (2, 2)
    assert track.peak == 2
    assert [track.start_times[i] for i in range(4)] == [100.0, 100.0, 101.0, 101.0]


async def test_pausing_leaves_running_jobs_alone(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 2}) as lanes:
        for i in range(4):
            lanes.start_soon(track.sleep, i)
        await wait_all_tasks_blocked()
        lanes.pause("main")
        await trio.sleep(10)
        assert sorted(track.ended) == [0, 1]
        assert (lanes.lane("main").waiting, lanes.lane("main").active) == (2, 0)
        lanes.resume("main")
    assert track.start_times[2] == 10.0


async def test_resuming_a_lane_that_is_not_paused_changes_nothing(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        for i in range(3):
            lanes.start_soon(track.sleep, i, session="alice")
        lanes.resume()
        lanes.resume("main")
        lanes.resume("session:alice")
        lanes.resume("session:nobody")
        assert lanes.sessions() == ["alice"]
    assert track.peak == 1
    assert track.started == [0, 1, 2]


@pytest.mark.parametrize("session", [None, "alice"])
@pytest.mark.parametrize("name", ["main", "session:alice"])
async def test_a_job_that_pauses_its_own_lane_is_the_last_that_runs(
    autojump_clock: MockClock, name: str, session: str | None
) -> None:
    if session is None and name != "main":
        session = "alice"
    track = Track()
    async with open_lanes({"main": 1}) as lanes:

        async def pause() -> None:
            lanes.pause(name)

        lanes.start_soon(pause, session=session)
        lanes.start_soon(track.sleep, "next", session=session)
        await trio.sleep(10)
        assert track.started == []
        lanes.resume(name)
    assert track.start_times == {"next": 10.0}


@pytest.mark.many_seeds(10)
@pytest.mark.parametrize("name", [None, "main", "session:alice"])
async def test_over_fast_cycles_of_pause_and_resume_every_job_runs_once(
    autojump_clock: MockClock, name: str | None
) -> None:
    track = Track()
    async with open_lanes({"main": 2}, sessions=LaneConfig(concurrency=2)) as lanes:
        for i in range(10):
            lanes.start_soon(track.sleep, i, session="alice")
        for _ in range(3):
            lanes.pause(name)
            lanes.resume(name)
        await wait_all_tasks_blocked()
        for _ in range(3):
            lanes.pause(name)
            await trio.lowlevel.checkpoint()
            lanes.resume(name)
            await trio.lowlevel.checkpoint()
    assert sorted(track.started) == list(range(10))
    assert sorted(track.ended) == list(range(10))
    assert track.peak == 2


async def test_without_a_name_all_global_lanes_are_paused_and_resumed(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.pause()
        assert lanes.lane("main").paused
        assert lanes.lane("cron").paused
        assert not lanes.session("alice").paused
        lanes.start_soon(track.sleep, "a", session="alice")
        lanes.start_soon(track.sleep, "b", lane="cron")
        await trio.sleep(1)
        assert track.started == []
        lanes.resume()
        assert not lanes.lane("main").paused
        assert not lanes.lane("cron").paused
    assert sorted(track.ended) == ["a", "b"]


async def test_resuming_all_global_lanes_leaves_a_paused_session_paused(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.pause("session:alice")
        lanes.start_soon(track.sleep, "a", session="alice")
        lanes.pause()
        lanes.resume()
        await trio.sleep(1)
        assert track.started == []
        assert lanes.session("alice").paused
        lanes.session("alice").resume()
    assert track.start_times == {"a": 1.0}


async def test_a_paused_session_holds_up_no_other(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        session = lanes.session("alice")
        session.start_soon(track.sleep, "a0")
        session.start_soon(track.sleep, "a1")
        await wait_all_tasks_blocked()
        session.pause()
        assert session.paused
        lanes.start_soon(track.sleep, "b", session="bob")
        await trio.sleep(5)
        assert track.ended == ["a0", "b"]
        assert (session.waiting, session.active) == (1, 0)
        session.resume()
        assert not session.paused
    assert track.start_times["a1"] == 5.0


async def test_a_job_that_was_forwarded_does_not_start_while_its_session_is_paused(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(track.sleep, "blocker", 1)
        lanes.start_soon(track.sleep, "a", session="alice")
        lanes.start_soon(track.sleep, "b", session="bob")
        assert lanes.lane("main").statistics().waiting_in_lane == 2
        lanes.pause("session:alice")
        assert lanes.lane("main").statistics().waiting_in_lane == 1
        assert lanes.lane("main").waiting == 2
        await trio.sleep(5)
        assert track.started == ["blocker", "b"]
        lanes.resume("session:alice")
    assert track.start_times == {"blocker": 0.0, "b": 1.0, "a": 5.0}


async def test_a_session_paused_before_it_has_jobs_stays_until_it_is_resumed(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.session("alice").pause()
        assert lanes.sessions() == ["alice"]
        job = lanes.submit_nowait(track.sleep, "a", session="alice")
        await trio.sleep(1)
        assert job.state is JobState.WAITING
        job.cancel()
        assert lanes.sessions() == ["alice"]
        assert lanes.session("alice").paused
        lanes.session("alice").resume()
        assert lanes.sessions() == []
        assert not lanes.session("alice").paused
    assert track.started == []


async def test_sessions_configured_paused_begin_paused(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 1}, sessions=LaneConfig(paused=True)) as lanes:
        assert lanes.session("alice").paused
        assert lanes.sessions() == []
        lanes.start_soon(track.sleep, "a", session="alice")
        lanes.start_soon(track.sleep, "b")
        await trio.sleep(5)
        assert track.started == ["b"]
        lanes.session("alice").resume()
    assert track.start_times["a"] == 5.0


async def test_jobs_keep_their_order_over_a_pause(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(track.sleep, "running", session="alice")
        for i in range(3):
            lanes.start_soon(track.sleep, i, session="alice")
        lanes.pause("session:alice")
        lanes.start_soon(track.sleep, "urgent", session="alice", priority=1)
        lanes.start_soon(track.sleep, 3, session="alice")
        await trio.sleep(10)
        lanes.resume("session:alice")
    assert track.started == ["running", "urgent", 0, 1, 2, 3]


@pytest.mark.parametrize("name", [None, "sub:*"])
async def test_pauses_that_end_at_the_same_time_let_the_best_head_of_a_group_start(
    autojump_clock: MockClock, name: str | None
) -> None:
    track = Track()
    group = LaneGroup(["sub:*"], concurrency=1)
    async with open_lanes({"sub:*": 1}, groups={"g": group}) as lanes:
        for lane in "ab":
            lanes.submit_nowait(trio.sleep, 0, lane=f"sub:{lane}")
        lanes.pause_for(name, 10)
        lanes.submit_nowait(track.sleep, "worse", lane="sub:a")
        lanes.submit_nowait(track.sleep, "better", lane="sub:b", priority=9)
    assert track.start_times == {"better": 10.0, "worse": 11.0}


async def test_pauses_of_sessions_that_end_at_the_same_time_let_the_best_of_them_start(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        for priority, key in enumerate(("worse", "better")):
            lanes.session(key).submit_nowait(track.sleep, key, priority=priority, delay=1)
            lanes.session(key).pause_for(10)
    assert track.start_times == {"better": 10.0, "worse": 11.0}


async def test_a_timed_pause_of_lanes_that_are_shut_holds_up_nothing(
    autojump_clock: MockClock,
) -> None:
    async def pauses_at_the_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            lanes.pause_for("main", 1_000)

    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(pauses_at_the_end)
        await lanes.drain(grace=1)
    assert trio.current_time() == 1


@pytest.mark.parametrize("name", ["main", "tool:*", "tool:a", "session:a"])
@pytest.mark.parametrize("begins", [True, False])
async def test_configure_undoes_only_the_pause_of_the_configuration(
    begins: bool, name: str, autojump_clock: MockClock
) -> None:
    def configure(paused: bool) -> None:
        config = LaneConfig(paused=paused)
        lanes.configure({"main": config, "tool:*": config}, sessions=config)

    def paused() -> bool:
        if name == "session:a":
            return lanes.session("a").paused
        return lanes.lane("main" if name == "main" else "tool:a").paused

    def keep_alive() -> None:
        lanes.submit_nowait(trio.sleep, 0, lane="main" if name == "main" else "tool:a", session="a")

    config = LaneConfig(paused=begins)
    async with open_lanes({"main": config, "tool:*": config}, sessions=config) as lanes:
        keep_alive()
        lanes.pause(name)
        configure(not begins)
        assert paused()  # by hand, or by hand and by the configuration
        configure(False)
        assert paused()
        lanes.resume(name)
        assert not paused()

        lanes.pause_for(name, 60)
        configure(True)
        configure(False)
        await trio.sleep(59)
        assert paused()
        await trio.sleep(2)
        assert not paused()

        configure(True)
        keep_alive()
        assert paused()
        lanes.resume(name)  # ends each pause
        assert not paused()
        configure(False)
        assert not paused()


async def test_a_session_begins_paused_also_after_one_that_was_resumed(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 4}, sessions=LaneConfig(paused=True)) as lanes:
        first = lanes.submit_nowait(trio.sleep, 1, session="a")
        lanes.session("a").resume()
        await first.wait()
        second = lanes.submit_nowait(trio.sleep, 1, session="b")
        await trio.sleep(1)
        assert second.state is JobState.WAITING
        lanes.session("b").resume()
        await second.wait()
