"""Session lanes: they come and go, and have a pause of their own."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.track import Track
from trio_lanes import (
    Job,
    JobState,
    LaneClearedError,
    LaneConfig,
    LaneInstrument,
    LanesClosedError,
    open_lanes,
)
from trio_lanes.testing import LaneRecorder

pytestmark = pytest.mark.both_doors

# ---- coming to life, and going


async def test_a_session_lane_comes_to_life_with_mail_and_is_gone_with_its_last_job(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 2}) as lanes:
        view = lanes.session("alice")
        assert (view.waiting, view.active, lanes.sessions()) == (0, 0, [])
        first = view.submit_nowait(trio.sleep, 1)
        second = view.submit_nowait(trio.sleep, 1)
        assert (view.waiting, view.active, lanes.sessions()) == (1, 1, ["alice"])
        await first.wait()
        assert (view.waiting, view.active, lanes.sessions()) == (0, 1, ["alice"])
        await second.wait()
        assert (view.waiting, view.active, lanes.sessions()) == (0, 0, [])
        assert lanes.statistics().sessions == 0
        assert await view.run(trio.sleep, 1) is None  # type: ignore[func-returns-value]


async def test_a_session_is_gone_when_the_last_of_it_is_cancelled_or_cleared(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        job = lanes.submit_nowait(trio.sleep, 1, session="alice")
        lanes.submit_nowait(trio.sleep, 1, session="bob")
        lanes.submit_nowait(trio.sleep, 1, session="carol", queue_timeout=0.5)
        assert lanes.sessions() == ["alice", "bob", "carol"]
        job.cancel()
        assert lanes.sessions() == ["bob", "carol"]
        lanes.clear("session:bob")
        assert lanes.sessions() == ["carol"]
        await trio.sleep(0.6)
        assert lanes.sessions() == []


async def test_a_session_is_gone_when_its_only_job_is_cancelled_before_its_delay_is_over(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes() as lanes:
        lanes.submit_nowait(trio.sleep, 1, session="alice", delay=10).cancel()
        assert lanes.sessions() == []
        assert lanes.statistics().sessions == 0


async def test_a_session_that_is_resumed_while_a_job_of_it_waits_for_room_is_still_there(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": LaneConfig(max_waiting=1)}) as lanes:
        for _ in range(2):
            lanes.submit_nowait(trio.sleep, 10)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: lanes.run(trio.sleep, 1, session="alice"))
            await wait_all_tasks_blocked()
            lanes.pause("session:alice")
            lanes.resume("session:alice")
            assert lanes.sessions() == ["alice"]
        assert lanes.sessions() == []


@pytest.mark.many_seeds(10)
@pytest.mark.parametrize("pause", [0, 1])
async def test_a_job_submitted_by_a_finishing_job_of_its_session_goes_to_a_living_lane(
    pause: float, autojump_clock: MockClock
) -> None:
    seen: list[int] = []
    async with open_lanes({"main": 2}) as lanes:

        async def body(n: int) -> None:
            if pause:
                await trio.sleep(pause)
            seen.append(n)
            assert lanes.session("alice").active == 1
            if n:
                lanes.submit_nowait(body, n - 1, session="alice")

        lanes.submit_nowait(body, 20, session="alice")
        await lanes.wait_idle()
        assert seen == list(range(20, -1, -1))
        assert lanes.sessions() == []


class Reviver:
    """An instrument that submits to a session in each moment in which it may be gone."""

    def __init__(self, hook: str, again: int) -> None:
        self.again = again
        self.submit: Callable[[], Job[object]]
        self.jobs: list[Job[object]] = []
        setattr(self, hook, self.revive)

    def revive(self, *args: object) -> None:
        if self.again:
            self.again -= 1
            self.jobs.append(self.submit())


@pytest.mark.parametrize("hook", ["job_finished", "lane_idle", "lane_empty", "lane_cleared"])
async def test_a_job_submitted_by_a_hook_while_its_session_goes_is_not_lost(
    hook: str, autojump_clock: MockClock
) -> None:
    track = Track()
    reviver = Reviver(hook, 10)
    async with open_lanes({"main": 2}, instruments=[reviver]) as lanes:
        reviver.submit = lambda: lanes.submit_nowait(track.sleep, "again", session="alice")
        for _ in range(12):
            for _ in range(3):
                lanes.submit_nowait(track.sleep, "job", session="alice")
            lanes.clear("session:alice")
            lanes.submit_nowait(track.sleep, "job", session="alice")
            await lanes.wait_idle()
            lanes.clear("main")
            await lanes.wait_idle()
        assert reviver.again == 0
        for job in reviver.jobs:
            await job.wait()
        assert lanes.sessions() == []
    assert track.peak == 1


# ---- a session's own pause, bound and configuration


async def test_a_session_cleared_by_its_view_tells_the_session_as_the_lane(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        alice = lanes.session(" session:alice ")
        running = alice.submit_nowait(trio.sleep, 1)
        waiting = alice.submit_nowait(trio.sleep, 1)
        assert alice.clear(reason="enough") == 1
        with pytest.raises(LaneClearedError) as caught:
            await waiting.wait()
        assert (caught.value.lane, caught.value.reason) == ("session:alice", "enough")
        await running.wait()
        assert running.state is JobState.SUCCEEDED


async def test_what_never_started_in_a_paused_session_is_told_when_the_lanes_crash(
    autojump_clock: MockClock,
) -> None:
    with pytest.RaisesGroup(OSError):
        async with open_lanes({"main": 1}) as lanes:
            lanes.pause("session:alice")
            job = lanes.submit_nowait(trio.sleep, 1, session="alice")
            raise OSError
    with pytest.raises(LanesClosedError):
        await job.wait()


async def test_a_hook_may_wake_very_many_sessions_at_once(autojump_clock: MockClock) -> None:
    """All their mail is there before any of them takes a step."""
    track = Track()

    class Burst(LaneInstrument):
        def job_submitted(self, job: Job[Any]) -> None:
            if job.session is None:
                for number in range(150):
                    lanes.start_soon(track.sleep, number, session=str(number))

    async with open_lanes({"main": 50}, instruments=[Burst()]) as lanes:
        await lanes.run(trio.sleep, 0)
        assert len(lanes.sessions()) == 150
    assert sorted(track.started) == list(range(150))
    assert lanes.sessions() == []


# ---- how many of its jobs run


@pytest.mark.parametrize(
    "widths", [(3,), (inf,), (0,), (3, 1), (inf, 1), (2, 0, 1), (0, 1), (3, inf, 0, 3, 1)]
)
@pytest.mark.parametrize("first_ends", ["first", "last", "by a reset"])
async def test_a_session_counts_its_slots_while_its_concurrency_changes(
    autojump_clock: MockClock, widths: tuple[float, ...], first_ends: str
) -> None:
    track = Track()
    recorder = LaneRecorder()
    wide = LaneConfig(concurrency=inf)
    async with open_lanes({"main": wide}, instruments=[recorder]) as lanes:
        for _ in range(2):  # the second time with the objects that the first time has left
            lanes.configure({"session:alice": 1})
            lanes.start_soon(track.sleep, 0, 1 if first_ends == "first" else 3, session="alice")
            for i in range(1, 5):
                lanes.start_soon(track.sleep, i, 2, session="alice")
            for width in widths:
                lanes.configure({"session:alice": width})
                await trio.sleep(0.1)
            assert track.running == lanes.session("alice").active == min(5, max(1, *widths))
            if first_ends == "by a reset":
                lanes.reset("session:alice")
            await trio.sleep(1)
            for _ in range(3):
                for key in ("bob", "carol"):
                    lanes.start_soon(track.sleep, key, session=key)
            assert repr(lanes.session("bob")) == (
                "<trio_lanes.SessionLane 'session:bob', 1/1 active, 2 waiting>"
            )
            lanes.configure({"session:alice": 1})
            await lanes.wait_idle()
            assert lanes.sessions() == []
    recorder.check()


# ---- the verbs of lanes, for a session


async def test_the_view_of_a_session_waits_for_that_session_alone(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 4}) as lanes:
        view = lanes.session("alice")
        await view.wait_idle()
        await view.wait_empty()
        assert await view.wait_active()
        assert lanes.sessions() == []
        lanes.submit_nowait(trio.sleep, 100, session="bob")
        for _ in range(4):
            view.submit_nowait(trio.sleep, 10)
        await view.wait_room(3)
        assert trio.current_time() == 10
        assert not await view.wait_active(timeout=5)
        assert await view.wait_active()
        assert trio.current_time() == 20
        await view.wait_empty()
        assert trio.current_time() == 30
        await view.wait_idle()
        assert trio.current_time() == 40
        with pytest.raises(ValueError, match="n must be at least 1"):
            await view.wait_room(0)


async def test_the_view_of_a_session_resets_that_session_alone(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 4}) as lanes:
        view = lanes.session("alice")
        assert view.reset() == 0
        other = lanes.submit_nowait(trio.sleep, 1, session="bob")
        running = view.submit_nowait(trio.sleep_forever)
        waiting = view.submit_nowait(trio.sleep, 1)
        await trio.sleep(0.5)
        assert view.reset() == 1
        assert running.state is JobState.CANCELLED
        assert (other.state, waiting.state) == (JobState.RUNNING, JobState.RUNNING)
