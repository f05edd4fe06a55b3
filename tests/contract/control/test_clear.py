"""Clear, which cancels the jobs that have not started."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.track import Track
from trio_lanes import (
    JobState,
    LaneClearedError,
    LaneConfig,
    UnknownLaneError,
    open_lanes,
)

pytestmark = pytest.mark.both_doors


@pytest.mark.parametrize("name", ["main", "session:alice", None])
async def test_clear_cancels_what_waits_and_leaves_running_jobs_alone(
    name: str | None, autojump_clock: MockClock
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        running = lanes.submit_nowait(track.sleep, "running", session="alice")
        waiting = lanes.submit_nowait(track.sleep, "waiting", session="alice")
        await trio.sleep(0.5)
        assert lanes.clear(name, reason="enough") == 1
        assert waiting.state is JobState.CANCELLED
        with pytest.raises(LaneClearedError, match="enough") as caught:
            await waiting.wait()
        assert caught.value.lane == (name or "main")
        assert trio.current_time() == 0.5
        assert not running.cancel_called
        assert await running.wait() == "running"
        assert await lanes.run(track.sleep, "later", session="alice") == "later"
    assert track.ended == ["running", "later"]


async def test_clear_of_a_lane_reaches_the_jobs_bound_for_it_in_either_layer(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        lanes.submit_nowait(trio.sleep, 1, lane="cron")
        bound_for_main = [
            lanes.submit_nowait(trio.sleep, 1),
            lanes.submit_nowait(trio.sleep, 1, session="alice"),  # forwarded
            lanes.submit_nowait(trio.sleep, 1, session="alice"),
            lanes.submit_nowait(trio.sleep, 1, session="bob", priority=3),
        ]
        others = [
            lanes.submit_nowait(trio.sleep, 1, lane="cron"),
            lanes.submit_nowait(trio.sleep, 1, lane="cron", session="alice"),
            lanes.submit_nowait(trio.sleep, 1, lane="cron", session="bob"),
        ]
        assert lanes.clear("main") == 4
        assert {job.state for job in bound_for_main} == {JobState.CANCELLED}
        assert {job.state for job in others} == {JobState.WAITING}
        # what alice and bob have left is forwarded now
        assert lanes.lane("cron").statistics().waiting_in_lane == 3
        for job in others:
            await job.wait()


async def test_clear_of_a_session_reaches_its_jobs_for_all_lanes_and_no_others(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        lanes.submit_nowait(trio.sleep, 1, lane="cron")
        of_alice = [
            lanes.submit_nowait(trio.sleep, 1, session="alice", lane=lane)
            for lane in ("main", "cron", "main")
        ]
        others = [
            lanes.submit_nowait(trio.sleep, 1, session="bob"),
            lanes.submit_nowait(trio.sleep, 1),
        ]
        assert lanes.clear("session:alice") == 3
        assert {job.state for job in of_alice} == {JobState.CANCELLED}
        assert {job.state for job in others} == {JobState.WAITING}
        assert lanes.sessions() == ["bob"]
        for job in others:
            await job.wait()


async def test_clear_without_a_name_clears_everything(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        running = [lanes.submit_nowait(trio.sleep, 1, lane=lane) for lane in ("main", "cron")]
        for lane in ("main", "cron"):
            for session in (None, "alice", "bob"):
                lanes.submit_nowait(trio.sleep, 1, lane=lane, session=session)
        assert lanes.clear() == 6
        assert lanes.jobs() == running
        assert lanes.sessions() == []
        assert lanes.clear() == 0


async def test_clear_and_reset_of_a_session_without_jobs_return_0(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        assert lanes.clear("session:nobody") == lanes.session("nobody").clear() == 0
        assert lanes.reset("session:nobody") == 0
        assert lanes.sessions() == []
        with pytest.raises(UnknownLaneError):
            lanes.clear("cron")
        with pytest.raises(UnknownLaneError):
            lanes.reset("cron")


@pytest.mark.many_seeds(20)
@pytest.mark.parametrize("session", [None, "alice"])
async def test_a_job_granted_its_slot_in_the_tick_of_a_clear_runs_to_its_end_or_never_starts(
    session: str | None, autojump_clock: MockClock
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 1, session=session)
        job = lanes.submit_nowait(track.sleep, "job", session=session)
        await trio.sleep(1)
        cleared = lanes.clear("main")
        await job.wait_done()
        if cleared:
            assert (job.state, track.started) == (JobState.CANCELLED, [])
        else:
            assert (job.state, track.ended) == (JobState.SUCCEEDED, ["job"])
        assert lanes.lane("main").limiter.borrowed_tokens <= 1
        assert await lanes.run(track.sleep, "next", session=session) == "next"


async def test_a_job_that_has_its_slot_but_was_not_called_yet_is_not_cleared(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(track.sleep, "job")
        assert lanes.clear() == 0
        assert await job.wait() == "job"


async def test_a_job_may_clear_its_own_lane_and_goes_on(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:

        async def body() -> int:
            await trio.sleep(1)
            cleared = lanes.clear("main")
            await trio.sleep(1)
            return cleared

        job = lanes.submit_nowait(body, session="alice")
        lanes.submit_nowait(trio.sleep, 1, session="alice")
        lanes.submit_nowait(trio.sleep, 1)
        assert await job.wait() == 2


async def test_a_clear_makes_room_for_the_requests_that_wait_for_it(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": LaneConfig(concurrency=1, max_waiting=1)}) as lanes:
        lanes.submit_nowait(track.sleep, "running")
        lanes.submit_nowait(track.sleep, "cleared")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lanes.run, track.sleep, "waited for room")
            await wait_all_tasks_blocked()
            assert lanes.statistics().waiting == 1
            assert lanes.clear() == 1
            assert lanes.statistics().waiting == 1
    assert track.ended == ["running", "waited for room"]


async def test_a_clear_in_a_paused_lane_leaves_it_paused(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.pause("main")
        lanes.submit_nowait(track.sleep, "cleared")
        assert lanes.clear("main") == 1
        assert lanes.lane("main").paused
        lanes.submit_nowait(track.sleep, "kept")
        await trio.sleep(1)
        assert track.started == []
        lanes.resume("main")
    assert track.ended == ["kept"]


async def test_clear_of_an_owner_settles_what_waits_of_it_in_all_priorities_and_nothing_else(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        running = [
            lanes.submit_nowait(track.sleep, f"{lane} runs", lane=lane, owner="acme")
            for lane in ("main", "cron")
        ]
        of_acme = [
            lanes.submit_nowait(track.sleep, "acme", owner="acme", **where, priority=priority)
            for priority in (-1, 0, 1)
            for where in ({}, {"session": "alice"}, {"lane": "cron"})
        ]
        by_session = lanes.submit_nowait(track.sleep, "by session", session="acme")
        others = [
            lanes.submit_nowait(track.sleep, f"other {number}", session=session, owner=owner)
            for number, (session, owner) in enumerate([("alice", "globex"), (None, None)])
        ]
        await trio.sleep(0.5)
        assert lanes.clear("cron", owner="acme", reason="gone") == 3
        assert lanes.clear(owner="acme", reason="gone") == 7  # an owner is the session unless said
        for job in [*of_acme, by_session]:
            assert job.state is JobState.CANCELLED
            with pytest.raises(LaneClearedError, match=r"cleared: gone") as caught:
                await job.wait()
            assert caught.value.reason == "gone"
            assert caught.value.lane == job.lane
        assert not any(job.cancel_called for job in running)
        assert lanes.clear(owner="nobody") == 0
        for job in [*running, *others]:
            await job.wait()
    assert sorted(track.ended) == ["cron runs", "main runs", "other 0", "other 1"]
    assert sorted(track.started) == sorted(track.ended)
