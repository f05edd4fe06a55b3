"""Nothing of a session that has gone is left in the sessions that come later.

The lanes use the actors and cancel scopes of ended work again; no user may notice.
"""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_lanes import (
    JobState,
    JobTimeoutError,
    Lane,
    LaneConfig,
    LaneInstrument,
    Lanes,
    RateLimit,
    SessionLane,
    open_lanes,
)
from trio_lanes.testing import LaneRecorder

LATER = [f"later {number}" for number in range(300)]


async def value(number: int) -> int:
    return number


async def blocks_once(number: int) -> int:
    await trio.lowlevel.checkpoint()
    return number


async def run_in_each(lanes: Lanes, keys: list[str]) -> None:
    jobs = [lanes.submit_nowait(value, number, session=key) for number, key in enumerate(keys)]
    assert [await job.wait() for job in jobs] == [*range(len(keys))]


async def test_a_generation_is_that_of_its_session_alone() -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep_forever, session="alice")
        lanes.submit_nowait(value, 0, session="alice")
        await wait_all_tasks_blocked()
        lanes.reset("session:alice")
        assert lanes.session("alice").generation == 1
        await lanes.wait_idle()
        lanes.pause()
        for key in LATER:
            lanes.submit_nowait(value, 0, session=key)
        assert {lanes.session(key).generation for key in LATER} == {0}
        lanes.clear()


async def test_a_limiter_has_no_borrowers_of_later_sessions() -> None:
    async with open_lanes({"main": math.inf}) as lanes:
        limiter = lanes.session("alice").limiter
        await lanes.run(value, 0, session="alice")
        jobs = [lanes.submit_nowait(trio.sleep_forever, session=key) for key in LATER]
        await wait_all_tasks_blocked()
        assert limiter.statistics().borrowers == []
        assert all(lanes.session(job.session or "").limiter.borrowed_tokens == 1 for job in jobs)
        lanes.reset()


async def test_a_pause_is_not_that_of_a_later_session(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        await lanes.run(value, 0, session="alice")
        lanes.pause_for("session:alice", 60)
        with trio.fail_after(1):
            await run_in_each(lanes, LATER)
        lanes.resume("session:alice")
        await run_in_each(lanes, ["alice", *LATER])


@pytest.mark.many_seeds(5)
async def test_later_sessions_are_as_they_are_configured_by_then() -> None:
    async with open_lanes({"main": math.inf}) as lanes:
        await run_in_each(lanes, LATER)
        lanes.configure(sessions=LaneConfig(concurrency=2))
        jobs = [lanes.submit_nowait(trio.sleep_forever, session="alice") for _ in range(3)]
        await wait_all_tasks_blocked()
        assert [job.state for job in jobs] == [*2 * [JobState.RUNNING], JobState.WAITING]
        lanes.configure(sessions=LaneConfig(concurrency=1))
        assert lanes.session("alice").concurrency == 1
        lanes.clear()
        lanes.reset()


async def test_later_sessions_start_their_jobs_in_order_after_one_with_priorities() -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 1}, instruments=[recorder]) as lanes:
        lanes.pause()
        gone = [lanes.submit_nowait(value, n, session="alice", priority=n) for n in range(20)]
        for job in gone[5:15]:
            job.cancel()
        lanes.resume()
        await lanes.wait_idle()
        for key in LATER[:3]:
            for number in range(5):
                lanes.submit_nowait(value, number, session=key)
    recorder.check()


class Told(LaneInstrument):
    """Submits to another session when it hears that a lane is empty or idle, at most 20 times."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.lanes: Lanes | None = None

    def lanes_opened(self, lanes: Lanes) -> None:
        self.lanes = lanes

    def hear(self, lane: Lane | SessionLane) -> None:
        self.names.append(lane.name)
        assert self.lanes is not None
        if len(self.names) < 20:
            self.lanes.submit_nowait(value, 0, session=f"after {len(self.names)}")


class ToldOfIdle(Told):
    def lane_idle(self, lane: Lane | SessionLane) -> None:
        self.hear(lane)


class ToldOfEmpty(Told):
    def lane_empty(self, lane: Lane | SessionLane) -> None:
        self.hear(lane)


async def test_hooks_hear_once_of_each_session_that_comes_and_goes() -> None:
    told = ToldOfIdle()
    async with open_lanes({"main": 2}, instruments=[told]) as lanes:
        lanes.submit_nowait(value, 0, session="first")
        await lanes.wait_idle()
    sessions = [name for name in told.names if name != "main"]
    assert sorted(sessions) == sorted(
        ["session:first", *(f"session:after {n}" for n in range(1, 20))]
    )


async def test_hooks_hear_of_all_sessions_that_a_clear_has_emptied() -> None:
    told = ToldOfEmpty()
    async with open_lanes({"main": 2}, instruments=[told]) as lanes:
        lanes.pause()
        for key in ("alice", "bob"):
            lanes.submit_nowait(value, 0, session=key)
        lanes.clear()
        assert {"session:alice", "session:bob"} <= {*told.names}
        lanes.resume()


class Empty(LaneInstrument):
    def __init__(self) -> None:
        self.names: list[str] = []

    def lane_empty(self, lane: Lane | SessionLane) -> None:
        self.names.append(lane.name)


async def test_a_session_has_not_waited_because_a_former_one_had_when_hooks_were_removed() -> None:
    former, later, gate = Empty(), Empty(), trio.Event()
    async with open_lanes({"main": 1}, instruments=[former]) as lanes:
        lanes.submit_nowait(gate.wait, session="alice")
        lanes.submit_nowait(value, 0, session="alice")
        await wait_all_tasks_blocked()
        lanes.remove_instrument(former)
        gate.set()
        await lanes.wait_idle()
        lanes.add_instrument(later)
        await lanes.run(value, 0, session="bob")
    assert later.names == []


async def test_a_charge_of_a_job_of_a_session_that_has_gone_leaves_the_session_gone() -> None:
    told, rate = Empty(), RateLimit(10, unit="tokens")
    async with open_lanes({"main": LaneConfig(rate=rate)}, instruments=[told]) as lanes:
        job = lanes.submit_nowait(value, 0, session="alice", cost={"tokens": 1})
        await job.wait()
        job.charge(tokens=5)
        assert lanes.sessions() == []
        assert await lanes.run(value, 7, session="alice") == 7


@pytest.mark.parametrize("body", [value, blocks_once])
async def test_a_deadline_a_cancellation_and_a_clear_are_no_later_jobs_own(
    autojump_clock: MockClock, body: object
) -> None:
    async with open_lanes({"main": 4}) as lanes:
        for limit in ({"timeout": 1.0}, {"idle_timeout": 1.0}, {}):
            jobs = [lanes.submit_nowait(value, n, **limit) for n in range(600)]
            jobs[300].cancel()
            for job in jobs[301:310]:
                job.cancel()
            await lanes.wait_idle()
            late = [lanes.submit_nowait(trio.sleep, 5) for _ in range(600)]
            lanes.lane("main").pause()
            lanes.clear(reason="no more")
            lanes.lane("main").resume()
            await lanes.wait_idle()
            assert [job.state for job in late].count(JobState.SUCCEEDED) == 4
            slow = lanes.submit_nowait(trio.sleep, 5, **(limit or {"timeout": 1.0}))
            with pytest.raises(JobTimeoutError):
                await slow.wait()
            assert await lanes.run(body, 7) == 7  # type: ignore[arg-type]


async def test_jobs_that_came_to_a_busy_lane_are_in_order_after_it_was_made_fair() -> None:
    order: list[str] = []

    async def note(name: str) -> None:
        order.append(name)

    async with open_lanes({"main": 1}) as lanes:
        gate = trio.Event()
        lanes.submit_nowait(gate.wait)
        await wait_all_tasks_blocked()
        for name in ("a1", "a2", "b1"):
            lanes.submit_nowait(note, name, owner=name[0])
        assert [job.owner for job in lanes.lane("main").head(5)] == ["a", "a", "b"]
        lanes.submit_nowait(note, "b2", owner="b")
        lanes.configure({"main": LaneConfig(concurrency=1, fair=True)})
        lanes.submit_nowait(note, "c1", owner="c")
        gate.set()
    assert order == ["a1", "b1", "c1", "a2", "b2"]
