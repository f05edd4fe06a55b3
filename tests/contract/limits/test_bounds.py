"""Bounded lanes: who is refused, who waits for room, and in which order they get it."""

from __future__ import annotations

import math
import sys
import time
from functools import partial
from types import FrameType
from typing import Any

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from tests.support.track import Track
from trio_lanes import (
    Job,
    JobState,
    LaneConfig,
    LaneDeadlockError,
    LaneFullError,
    LaneInstrument,
    Lanes,
    LanesClosedError,
    QueueTimeoutError,
    open_lanes,
)

pytestmark = pytest.mark.both_doors


def bounded(concurrency: float = 1, max_waiting: float = 1, **more: Any) -> LaneConfig:
    return LaneConfig(concurrency=concurrency, max_waiting=max_waiting, **more)


async def submit_in_turn(
    lanes: Lanes, nursery: trio.Nursery, track: Track, *labels: str, **options: Any
) -> dict[str, Job[Any]]:
    """Tasks that submit one after the other; {label: its job, once that is accepted}."""
    jobs: dict[str, Job[Any]] = {}

    async def submit(label: str) -> None:
        jobs[label] = await lanes.submit(track.sleep, label, **options)

    for label in labels:
        nursery.start_soon(submit, label)
        await wait_all_tasks_blocked()
    return jobs


# ---- submit_nowait


@pytest.mark.parametrize("session", [None, "alice"])
async def test_a_full_lane_refuses_with_its_name_and_its_bound(
    autojump_clock: MockClock, session: str | None
) -> None:
    track = Track()
    async with open_lanes({"main": bounded(1, 2)}) as lanes:
        for i in range(3):
            lanes.submit_nowait(track.sleep, i, session=session)
        before = lanes.statistics()
        for refuse in (lanes.submit_nowait, lanes.start_soon, lanes.lane("main").submit_nowait):
            with pytest.raises(LaneFullError, match=r"'main'.*max_waiting=2") as refused:
                refuse(track.sleep, "refused", session="bob")  # type: ignore[operator]
            assert refused.value.lane == "main"
            assert refused.value.max_waiting == 2
            assert isinstance(refused.value, trio.WouldBlock)
        assert lanes.statistics() == before
        assert lanes.sessions() == ([] if session is None else [session])
        await trio.sleep(1.5)
        lanes.submit_nowait(track.sleep, 3, session=session)
    assert track.started == [0, 1, 2, 3]


async def test_a_full_session_refuses_and_leaves_other_sessions_alone(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 4}, sessions=bounded(1, 2)) as lanes:
        for i in range(3):
            lanes.session("alice").submit_nowait(track.sleep, i)
        with pytest.raises(LaneFullError, match=r"'session:alice'.*max_waiting=2") as refused:
            lanes.session("alice").submit_nowait(track.sleep, "refused")
        assert refused.value.lane == "session:alice"
        for i in range(3):
            lanes.submit_nowait(track.sleep, f"b{i}", session="bob")
            lanes.submit_nowait(track.sleep, f"n{i}")
        assert lanes.statistics().waiting + lanes.statistics().active == 9
    assert len(track.ended) == 9


async def test_jobs_count_for_the_lane_they_are_bound_for_while_they_wait_in_their_session(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": bounded(4, 2), "cron": 1}) as lanes:
        for _ in range(3):  # one runs, two wait in the session
            lanes.start_soon(trio.sleep, 1, session="alice")
        assert lanes.lane("main").statistics().waiting_in_sessions == 2
        with pytest.raises(LaneFullError):
            lanes.submit_nowait(trio.sleep, 1, session="alice")
        lanes.submit_nowait(trio.sleep, 1, session="alice", lane="cron")


async def test_a_job_that_starts_at_once_needs_no_room_in_a_full_lane_with_a_free_slot(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": bounded(4, 2)}) as lanes:
        for _ in range(3):
            lanes.start_soon(trio.sleep, 1, session="alice")
        assert lanes.lane("main").waiting == 2
        for session in ("bob", "carol", None):
            assert lanes.submit_nowait(trio.sleep, 1, session=session).state is JobState.RUNNING
        with pytest.raises(LaneFullError):
            lanes.submit_nowait(trio.sleep, 1, session="dave")


async def test_with_no_room_at_all_a_job_starts_at_once_or_is_refused(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": bounded(2, 0)}) as lanes:
        lanes.submit_nowait(track.sleep, "a", session="alice")
        with pytest.raises(LaneFullError):  # its session could not start it
            lanes.submit_nowait(track.sleep, "b", session="alice")
        lanes.submit_nowait(track.sleep, "c", session="carol")
        with pytest.raises(LaneFullError):
            lanes.submit_nowait(track.sleep, "d", session="dave")
        assert sorted(lanes.sessions()) == ["alice", "carol"]
        await trio.sleep(1.5)
        lanes.submit_nowait(track.sleep, "e")
    assert track.started == ["a", "c", "e"]


async def test_sessions_with_no_room_at_all_let_nothing_wait(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": 1, "cron": 1}, sessions=bounded(1, 0)) as lanes:
        lanes.submit_nowait(track.sleep, "a", session="alice")
        for session in ("alice", "bob"):  # alice's session is busy; bob's could not start it
            with pytest.raises(LaneFullError, match=f"session:{session}"):
                lanes.submit_nowait(track.sleep, "refused", session=session)
        lanes.submit_nowait(track.sleep, "b", session="bob", lane="cron")
        lanes.submit_nowait(track.sleep, "without a session")
        assert sorted(lanes.sessions()) == ["alice", "bob"]
    assert len(track.ended) == 3


async def test_a_paused_or_closed_lane_fills_up_to_its_bound(autojump_clock: MockClock) -> None:
    config = bounded(2, 3)
    async with open_lanes({"main": config, "cron": bounded(0, 3)}) as lanes:
        lanes.pause("main")
        for lane in ("main", "cron"):
            for _ in range(3):
                lanes.submit_nowait(trio.sleep, 1, lane=lane)
            with pytest.raises(LaneFullError):
                lanes.submit_nowait(trio.sleep, 1, lane=lane)
        lanes.resume("main")
        assert lanes.lane("main").waiting == 1
        lanes.submit_nowait(trio.sleep, 1)
        lanes.clear("cron")


async def test_a_refused_job_is_never_called_and_leaves_nothing(
    autojump_clock: MockClock,
) -> None:
    calls: list[str] = []

    class Listen:
        def job_submitted(self, job: Job[Any]) -> None:
            calls.append("submitted")

        def job_finished(self, job: Job[Any]) -> None:
            calls.append("finished")

    async with open_lanes({"main": bounded(1, 0)}, instruments=[Listen()]) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        with pytest.raises(LaneFullError):
            lanes.submit_nowait(trio.sleep, 1, session="alice")
        assert lanes.sessions() == []
    assert calls == ["submitted", "finished"]


async def test_a_job_that_must_start_at_once_needs_no_room(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": bounded(1, 0)}) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        job = lanes.submit_nowait(trio.sleep, 1, queue_timeout=0)
        assert isinstance(job.exception, QueueTimeoutError)
        with trio.fail_after(0.5), pytest.raises(QueueTimeoutError):
            await lanes.run(trio.sleep, 1, queue_timeout=0)


# ---- submit


@pytest.mark.many_seeds(5)
@pytest.mark.parametrize("session", [None, "alice"])
async def test_requests_for_room_are_admitted_in_order(
    autojump_clock: MockClock, session: str | None
) -> None:
    track = Track()
    async with open_lanes({"main": bounded(1, 1)}) as lanes, trio.open_nursery() as nursery:
        jobs = await submit_in_turn(lanes, nursery, track, *"abcdef", session=session)
        assert list(jobs) == ["a", "b"]
        assert lanes.lane("main").waiting == 1
        await trio.sleep(0.5)
        with pytest.raises(LaneFullError):
            lanes.submit_nowait(track.sleep, "in between", session=session)
        await trio.sleep(1)
        assert list(jobs) == ["a", "b", "c"]
        assert jobs["c"].submitted_at == 1.0
        assert lanes.lane("main").waiting == 1
    assert track.started == list("abcdef")


@pytest.mark.many_seeds(5)
async def test_requests_for_room_in_a_lane_are_admitted_in_order_over_all_sessions(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": bounded(1, 1)}) as lanes, trio.open_nursery() as nursery:
        accepted: list[str] = []

        async def submit(label: str) -> None:
            await lanes.submit(track.sleep, label, session=label[0])
            accepted.append(label)

        for label in ("a0", "a1", "a2", "b0", "a3", "b1"):
            nursery.start_soon(submit, label)
            await wait_all_tasks_blocked()
    assert accepted == ["a0", "a1", "a2", "b0", "a3", "b1"]
    assert track.peak == 1


@pytest.mark.many_seeds(5)
async def test_requests_for_room_in_a_session_are_admitted_in_order(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 4}, sessions=bounded(1, 1)) as lanes:
        async with trio.open_nursery() as nursery:
            jobs = await submit_in_turn(lanes, nursery, track, *"abcd", session="alice")
            assert list(jobs) == ["a", "b"]
            others = await submit_in_turn(lanes, nursery, track, "x", "y", session="bob")
            assert list(others) == ["x", "y"]
    assert [label for label in track.started if label in jobs] == list("abcd")
    assert lanes.sessions() == []


@pytest.mark.many_seeds(5)
async def test_a_request_that_has_room_in_its_session_then_waits_for_room_in_its_lane(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": bounded(1, 2)}, sessions=bounded(1, 1)) as lanes:
        async with trio.open_nursery() as nursery:
            alice = await submit_in_turn(lanes, nursery, track, *"abc", session="alice")
            assert list(alice) == ["a", "b"]
            bob = await submit_in_turn(lanes, nursery, track, "x", session="bob")
            carol = await submit_in_turn(lanes, nursery, track, "y", session="carol")
            assert (list(bob), list(carol)) == (["x"], [])
            while lanes.jobs():
                assert lanes.lane("main").waiting <= 2
                assert lanes.session("alice").waiting <= 1
                await trio.sleep(0.5)
    assert sorted(track.ended) == list("abcxy")
    assert [label for label in track.started if label in "abc"] == list("abc")


@pytest.mark.many_seeds(5)
async def test_requests_that_waited_for_room_in_a_lane_do_not_overfill_their_session(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": bounded(1, 2)}, sessions=bounded(1, 1)) as lanes:
        for label in ("first", "second", "third"):
            lanes.start_soon(track.sleep, label)
        async with trio.open_nursery() as nursery:
            jobs = await submit_in_turn(lanes, nursery, track, *"abcd", session="alice")
            assert list(jobs) == []
            while lanes.jobs():
                assert lanes.session("alice").waiting <= 1
                assert lanes.lane("main").waiting <= 2
                await trio.sleep(0.25)
    assert [label for label in track.started if label in "abcd"] == list("abcd")
    assert lanes.sessions() == []


@pytest.mark.many_seeds(5)
async def test_room_that_a_session_makes_in_another_lane_reaches_requests_that_wait_for_a_start(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": bounded(1, 0), "cron": 1}) as lanes:
        lanes.start_soon(track.sleep, "cron", 5, session="alice", lane="cron")
        async with trio.open_nursery() as nursery:
            jobs = await submit_in_turn(lanes, nursery, track, "a", session="alice")
            assert jobs == {}
            await trio.sleep(5.5)
            assert list(jobs) == ["a"]
            assert jobs["a"].started_at == 5.0


async def test_a_session_of_two_admits_a_request_beside_its_job_that_waits_in_another_lane(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    sessions = LaneConfig(concurrency=2)
    async with open_lanes({"main": bounded(2, 0), "cron": 1}, sessions=sessions) as lanes:
        lanes.start_soon(track.sleep, "busy", 5, lane="cron")
        lanes.start_soon(track.sleep, "waits", 5, session="alice", lane="cron")
        lanes.start_soon(track.sleep, "not due", 1, session="alice", lane="cron", delay=50)
        async with trio.open_nursery() as nursery:
            jobs = await submit_in_turn(lanes, nursery, track, *"ab", session="alice")
            assert list(jobs) == ["a"]
            await trio.sleep(5.5)
            assert (jobs["a"].started_at, jobs["b"].started_at) == (0.0, 1.0)


async def test_a_session_that_is_resumed_admits_a_request_that_waits_for_a_start(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": bounded(1, 0)}) as lanes:
        lanes.session("alice").pause()
        async with trio.open_nursery() as nursery:
            jobs = await submit_in_turn(lanes, nursery, track, "a", session="alice")
            await trio.sleep(5)
            assert jobs == {}
            lanes.session("alice").resume()
            await wait_all_tasks_blocked()
            assert jobs["a"].started_at == 5.0


async def test_a_free_slot_of_a_lane_reaches_a_request_in_a_session_without_room(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1, "cron": 1}, sessions=bounded(1, 0)) as lanes:
        lanes.start_soon(track.sleep, "busy", 5)
        lanes.start_soon(track.sleep, "cron", 1, session="alice", lane="cron")
        async with trio.open_nursery() as nursery:
            jobs = await submit_in_turn(lanes, nursery, track, "a", "b", session="alice")
            await trio.sleep(6.5)
            assert list(jobs) == ["a", "b"]
    assert (track.start_times["a"], track.start_times["b"]) == (5.0, 6.0)


async def test_a_request_that_waits_for_its_session_does_not_hold_up_requests_that_could_start(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": bounded(2, 0)}) as lanes, trio.open_nursery() as nursery:
        lanes.start_soon(track.sleep, "stuck", math.inf, session="alice")
        behind = await submit_in_turn(lanes, nursery, track, "behind", session="alice")
        other = await submit_in_turn(lanes, nursery, track, "b0", "b1", session="bob")
        assert list(other) == ["b0"]
        await trio.sleep(1.5)
        assert list(other) == ["b0", "b1"]
        assert behind == {}
        lanes.reset()
    assert "behind" in track.ended


@pytest.mark.many_seeds(5)
async def test_one_free_slot_admits_one_of_the_requests_that_must_start_at_once(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": bounded(1, 0)}) as lanes, trio.open_nursery() as nursery:
        lanes.start_soon(track.sleep, "first")
        for name in "abc":
            jobs = await submit_in_turn(lanes, nursery, track, name, session=name)
            assert jobs == {}
        await trio.sleep(1.5)
        assert (lanes.lane("main").active, lanes.lane("main").waiting) == (1, 0)
        await trio.sleep(1)
        assert (lanes.lane("main").active, lanes.lane("main").waiting) == (1, 0)
    assert track.started == ["first", "a", "b", "c"]


async def test_submit_with_room_is_a_checkpoint_and_returns_a_job_that_has_its_place(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": bounded(1, 1)}) as lanes:
        with assert_checkpoints():
            first = await lanes.submit(trio.sleep, 1)
        with assert_checkpoints():
            second = await lanes.submit(trio.sleep, 1)
        assert (first.state, second.state) == (JobState.RUNNING, JobState.WAITING)


async def test_run_waits_for_room_too(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": bounded(1, 1)}) as lanes:
        results: list[Any] = []

        async def run(i: int) -> None:
            results.append(await lanes.run(track.sleep, i))
            assert lanes.lane("main").waiting <= 1

        async with trio.open_nursery() as nursery:
            for i in range(10):
                nursery.start_soon(run, i)
    assert sorted(results) == list(range(10))
    assert trio.current_time() == 10.0


@pytest.mark.parametrize("make_room", ["cancel", "clear", "concurrency", "configure", "reset"])
async def test_every_act_that_makes_room_admits_the_request_that_waits_for_it(
    autojump_clock: MockClock, make_room: str
) -> None:
    track = Track()
    async with open_lanes({"main": bounded(1, 1)}) as lanes, trio.open_nursery() as nursery:
        lanes.start_soon(track.sleep, "running", 100)
        waiting = lanes.submit_nowait(track.sleep, "waiting")
        jobs = await submit_in_turn(lanes, nursery, track, "a", "b")
        assert jobs == {}
        if make_room == "cancel":
            waiting.cancel()
        elif make_room == "clear":
            assert lanes.clear() == 1
        elif make_room == "concurrency":
            lanes.lane("main").concurrency = 2
        elif make_room == "configure":
            lanes.configure({"main": bounded(1, 2)})
        else:
            assert lanes.reset() == 1
        await wait_all_tasks_blocked()
        assert list(jobs) == ["a"]
        lanes.lane("main").concurrency = 10
        await wait_all_tasks_blocked()
        assert list(jobs) == ["a", "b"]
        lanes.reset()


async def test_a_bound_that_is_lifted_admits_all_requests_for_room(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": bounded(1, 1)}) as lanes, trio.open_nursery() as nursery:
        jobs = await submit_in_turn(lanes, nursery, track, *"abcdef")
        assert list(jobs) == ["a", "b"]
        lanes.configure({"main": LaneConfig(concurrency=1)})
        assert lanes.lane("main").waiting == 5
        await wait_all_tasks_blocked()
        assert sorted(jobs) == list("abcdef")
    assert track.started == list("abcdef")


async def test_a_bound_lowered_below_the_waiting_jobs_admits_no_request_until_there_is_room(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": bounded(1, 5)}) as lanes:
        for i in range(6):
            lanes.start_soon(track.sleep, i)
        lanes.configure({"main": bounded(1, 2)})
        assert lanes.lane("main").waiting == 5
        await lanes.submit(track.sleep, "late")
        assert trio.current_time() == 4.0
    assert track.started == [0, 1, 2, 3, 4, 5, "late"]


# ---- cancelling it, closing meanwhile


async def test_a_submit_that_is_cancelled_before_it_is_called_submits_nothing(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes() as lanes:
        with trio.CancelScope() as scope:
            scope.cancel()
            await lanes.submit(track.sleep, "cancelled")
        assert scope.cancelled_caught
        with trio.CancelScope() as scope:
            scope.cancel()
            await lanes.run(track.sleep, "cancelled")
        assert scope.cancelled_caught
        assert lanes.jobs() == []
    assert track.started == []


@pytest.mark.many_seeds(5)
async def test_cancelling_the_first_request_for_room_admits_the_next_that_can_start(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": bounded(2, 0)}) as lanes, trio.open_nursery() as nursery:
        lanes.start_soon(track.sleep, "busy", 10, session="alice")
        scope = trio.CancelScope()

        async def first() -> None:
            with scope:
                await lanes.submit(track.sleep, "first", session="alice")

        nursery.start_soon(first)
        await wait_all_tasks_blocked()
        jobs = await submit_in_turn(lanes, nursery, track, "second", session="bob")
        scope.cancel()
        await wait_all_tasks_blocked()
        assert list(jobs) == ["second"]
        assert jobs["second"].started_at == 0.0


@pytest.mark.parametrize("bound", ["lane", "session"])
async def test_a_cancelled_wait_for_room_leaves_no_session_behind(
    autojump_clock: MockClock, bound: str
) -> None:
    lane = bounded(1, 1) if bound == "lane" else LaneConfig(concurrency=1)
    sessions = bounded(1, 1) if bound == "session" else LaneConfig()
    async with open_lanes({"main": lane, "cron": 1}, sessions=sessions) as lanes:
        jobs = [lanes.submit_nowait(trio.sleep, 5, session="alice") for _ in range(2)]
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lanes.submit, trio.sleep, 1)
                for session in ("alice", "bob"):

                    async def submit(session: str = session) -> None:
                        await lanes.submit(trio.sleep, 1, session=session)

                    nursery.start_soon(submit)
                await wait_all_tasks_blocked()
                scope.cancel()
        lanes.clear()
        jobs[0].cancel()
        await lanes.wait_idle()
        assert lanes.sessions() == []


async def test_a_session_alive_only_for_requests_for_room_ends_with_them(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 0, "cron": 1}, sessions=bounded(1, 1)) as lanes:
        waiting = lanes.submit_nowait(trio.sleep, 1, session="alice")
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def submit() -> None:
                    await lanes.submit(trio.sleep, 1, session="alice", lane="cron")

                nursery.start_soon(submit)
                await wait_all_tasks_blocked()
                scope.cancel()
        waiting.cancel()
        assert lanes.sessions() == []


@pytest.mark.many_seeds(5)
async def test_a_submit_cancelled_in_the_tick_in_which_it_gets_room_has_submitted(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": bounded(1, 1)}) as lanes:
        lanes.start_soon(track.sleep, "running", 10)
        waiting = lanes.submit_nowait(track.sleep, "waiting")
        scope = trio.CancelScope()
        got: list[Job[Any]] = []

        async def submit() -> None:
            with scope:
                got.append(await lanes.submit(track.sleep, "late"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(submit)
            await wait_all_tasks_blocked()
            waiting.cancel()
            scope.cancel()
        assert not scope.cancelled_caught
        assert [job.state for job in got] == [JobState.WAITING]
    assert track.started == ["running", "late"]


@pytest.mark.parametrize("bound", ["lane", "session"])
async def test_closing_refuses_the_requests_for_room(autojump_clock: MockClock, bound: str) -> None:
    lane = bounded(1, 1) if bound == "lane" else LaneConfig(concurrency=1)
    sessions = bounded(1, 1) if bound == "session" else LaneConfig()
    track = Track()
    refused: list[LanesClosedError] = []
    async with open_lanes({"main": lane}, sessions=sessions) as lanes:

        async def submit() -> None:
            with pytest.raises(LanesClosedError, match=r"maintenance.*30 s") as error:
                await lanes.submit(track.sleep, "refused", session="alice")
            refused.append(error.value)

        async with trio.open_nursery() as nursery:
            lanes.start_soon(track.sleep, "a", session="alice")
            lanes.start_soon(track.sleep, "b", session="alice")
            for _ in range(2):
                nursery.start_soon(submit)
            await wait_all_tasks_blocked()
            lanes.close("maintenance", retry_after=30)
        assert trio.current_time() == 0.0
        assert {(error.reason, error.retry_after) for error in refused} == {("maintenance", 30)}
        assert refused[0] is not refused[1]
    assert track.started == ["a", "b"]


async def test_while_the_lanes_close_a_job_still_waits_for_room(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": bounded(1, 1), "cron": 1}) as lanes:

        async def body() -> None:
            await lanes.submit(track.sleep, "inside")

        lanes.start_soon(track.sleep, "a")
        lanes.start_soon(track.sleep, "b")
        lanes.start_soon(body, lane="cron")
        await wait_all_tasks_blocked()
        lanes.close()
    assert track.started == ["a", "b", "inside"]


async def test_a_job_of_other_lanes_that_waits_for_room_is_refused_as_every_caller_from_outside(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as others:
        async with open_lanes({"main": bounded(1, 0)}) as lanes:
            lanes.start_soon(trio.sleep, 5)

            async def body() -> float:
                with pytest.raises(LanesClosedError):
                    await lanes.submit(trio.sleep, 1)
                return trio.current_time()

            job = others.submit_nowait(body)
            await trio.sleep(1)
            lanes.close()
            assert await job.wait() == 1.0


@pytest.mark.trio_only("asyncio has no shields")
async def test_lanes_that_are_cancelled_refuse_a_job_that_waits_for_room(
    autojump_clock: MockClock,
) -> None:
    refused: list[str] = []

    with trio.move_on_after(1):
        async with open_lanes({"main": bounded(1, 0), "cron": 1}) as lanes:

            async def body() -> None:
                with trio.CancelScope(shield=True):
                    try:
                        await lanes.submit(trio.sleep, 1)
                    except LanesClosedError as error:
                        refused.append(error.reason)

            lanes.start_soon(trio.sleep, 100)
            lanes.start_soon(body, lane="cron")
    assert len(refused) == 1


@pytest.mark.many_seeds(10)
async def test_under_a_storm_of_submits_bounds_and_order_hold(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": bounded(2, 3)}, sessions=bounded(1, 2)) as lanes:

        async def submit(session: str, i: int) -> None:
            await lanes.submit(track.sleep, (session, i), session=session)
            assert lanes.lane("main").waiting <= 3
            assert lanes.session(session).waiting <= 2

        async with trio.open_nursery() as nursery:
            for i in range(10):
                for session in "abcd":
                    nursery.start_soon(submit, session, i)
                    await trio.lowlevel.checkpoint()
        await lanes.wait_idle()
        assert lanes.sessions() == []
    assert len(track.ended) == 40
    assert track.peak == 2
    for session in "abcd":
        numbers = [i for each, i in track.started if each == session]
        assert numbers == sorted(numbers)


async def test_a_job_with_a_delay_is_let_in_when_there_is_room(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes({"main": bounded()}) as lanes, trio.open_nursery() as nursery:
        lanes.submit_nowait(track.sleep, "runs")
        lanes.submit_nowait(track.sleep, "waits", queue_timeout=0.5)
        jobs = await submit_in_turn(lanes, nursery, track, "late", delay=2.0)
        assert not jobs
        await trio.sleep(0.5)  # the request that waited is gone, and nothing starts
        await wait_all_tasks_blocked()
        assert lanes.lane("main").waiting == 1
    assert track.start_times == {"runs": 0.0, "late": 2.5}


@pytest.mark.parametrize("queue_timeout", [math.inf, 0])
@pytest.mark.parametrize("session", [None, "alice"])
async def test_a_job_that_is_not_due_needs_room_though_it_would_find_a_slot(
    autojump_clock: MockClock, session: str | None, queue_timeout: float
) -> None:
    track = Track()
    options: Any = {"session": session, "delay": 5, "queue_timeout": queue_timeout}
    async with open_lanes({"main": bounded(2, 1)}) as lanes, trio.open_nursery() as nursery:
        lanes.submit_nowait(track.sleep, "late", **options)
        with pytest.raises(LaneFullError):
            lanes.submit_nowait(track.sleep, "refused", **options)
        nursery.start_soon(partial(lanes.submit, track.sleep, "later", **options))
        await wait_all_tasks_blocked()
        assert lanes.lane("main").waiting == 1
        lanes.submit_nowait(track.sleep, "at once", session=session)
    assert track.start_times == {"at once": 0.0, "late": 5.0, "later": 10.0}


@pytest.mark.parametrize("session", [None, "alice"])
async def test_a_request_that_would_start_at_once_passes_requests_that_are_not_due(
    autojump_clock: MockClock, session: str | None
) -> None:
    track = Track()
    async with open_lanes({"main": bounded(1, 1)}) as lanes, trio.open_nursery() as nursery:
        lanes.submit_nowait(track.sleep, "running")
        lanes.submit_nowait(track.sleep, "late", delay=5)
        jobs = await submit_in_turn(lanes, nursery, track, "later", delay=5, session=session)
        jobs |= await submit_in_turn(lanes, nursery, track, "now", session=session)
        assert not jobs
    assert track.start_times == {"running": 0.0, "now": 1.0, "late": 5.0, "later": 10.0}


@pytest.mark.trio_only("it waits for a limiter of Trio's")
async def test_a_job_that_is_not_due_asks_for_no_token_of_a_shared_limiter_while_it_wants_room(
    autojump_clock: MockClock,
) -> None:
    limiter, track = trio.CapacityLimiter(1), Track()
    config = LaneConfig(limiter=limiter, max_waiting=1)
    async with open_lanes({"main": config}) as lanes, trio.open_nursery() as nursery:
        lanes.submit_nowait(track.sleep, "late", delay=5)
        async with limiter:
            assert not await submit_in_turn(lanes, nursery, track, "later", delay=5)
            assert limiter.statistics().tasks_waiting == 0
    assert track.start_times == {"late": 5.0, "later": 10.0}


@pytest.mark.parametrize("session", [None, "bob"])
@pytest.mark.parametrize("max_waiting", [0, 1])
async def test_room_for_a_job_that_is_not_due_that_could_never_come_is_a_deadlock(
    autojump_clock: MockClock, session: str | None, max_waiting: int
) -> None:
    async def outer() -> None:
        with pytest.raises(LaneDeadlockError, match="room in lane 'main'"):
            await lanes.run(trio.sleep, 0, delay=1, session=session)

    async with open_lanes({"main": bounded(2, max_waiting)}) as lanes:
        job = lanes.submit_nowait(outer, session="alice")
        if max_waiting:
            lanes.submit_nowait(trio.sleep, 0, session="alice")  # until `outer` has ended
        await job.wait()


async def test_a_delayed_request_without_room_frees_no_room(
    autojump_clock: MockClock,
) -> None:
    go = trio.Event()

    async def outer() -> None:
        await go.wait()
        with pytest.raises(LaneDeadlockError, match="room in lane 'session:alice'"):
            await lanes.run(trio.sleep, 0, session="alice", lane="side")

    sessions = LaneConfig(max_waiting=1)
    async with open_lanes({"main": bounded(2, 1), "side": 2}, sessions=sessions) as lanes:
        job = lanes.submit_nowait(outer, session="bob", lane="side")
        lanes.submit_nowait(trio.sleep, 0, session="bob")  # has the room of "main" until then
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(lanes.submit, trio.sleep, 0, session="alice", delay=5))
                await wait_all_tasks_blocked()
                go.set()
            await job.wait()


async def test_many_requests_that_are_not_due_cost_nothing_to_submissions_that_start_at_once(
    autojump_clock: MockClock,
) -> None:
    async def calls(n: int) -> int:
        made = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal made
            made += event == "call"

        async with open_lanes({"main": bounded(2, 1)}) as lanes, trio.open_nursery() as nursery:
            lanes.submit_nowait(trio.sleep, 0, delay=9)
            for _ in range(n):
                nursery.start_soon(partial(lanes.submit, trio.sleep, 0, delay=9))
            await wait_all_tasks_blocked()
            sys.setprofile(count)
            try:
                await lanes.run(trio.lowlevel.checkpoint)
            finally:
                sys.setprofile(None)
            nursery.cancel_scope.cancel()
            lanes.clear()
        return made

    assert await calls(1_000) < 1.5 * await calls(10)


@pytest.mark.slow
@pytest.mark.trio_only("it measures what both doors share")
async def test_many_requests_of_one_session_are_admitted_without_reading_each_of_them(
    autojump_clock: MockClock,
) -> None:
    config = LaneConfig(concurrency=4, max_waiting=10)  # so slots are free, and no room

    async def flood(n: int) -> float:
        began = time.thread_time()
        async with open_lanes({"main": config}) as lanes, trio.open_nursery() as nursery:
            for _ in range(n):
                nursery.start_soon(lanes.session("alice").run, trio.sleep, 1)
        return time.thread_time() - began

    few, many = [min([await flood(n) for _ in range(3)]) for n in (50, 400)]
    assert many < 8 * 4 * few  # n squared would be 64 times as long


async def test_a_hook_that_submits_overtakes_no_task_that_waits_for_room(
    autojump_clock: MockClock,
) -> None:
    order: list[str] = []

    async def work(name: str) -> None:
        order.append(name)
        await trio.sleep(1)

    class Submits(LaneInstrument):
        def job_started(self, job: Job[Any]) -> None:
            if job.name == "second":  # the lane has room now, which the third was promised
                with pytest.raises(LaneFullError):
                    lanes.submit_nowait(work, "overtakes")

    async with open_lanes({"main": bounded(1, 1)}, instruments=[Submits()]) as lanes:
        for name in ("first", "second", "third"):
            await lanes.submit(work, name, name=name)
    assert order == ["first", "second", "third"]
