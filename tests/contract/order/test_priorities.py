"""Priorities: higher first in both layers, and changed while jobs wait."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.track import Track
from trio_lanes import Job, JobState, Lanes, open_lanes

pytestmark = pytest.mark.both_doors

both_layers = pytest.mark.parametrize("session", [None, "alice"])


def blocked(
    lanes: Lanes, track: Track, *labels: str, session: str | None, priority: int = 0
) -> dict[str, Job[Any]]:
    """Jobs that wait behind a running job, in that session if it is given."""
    lanes.start_soon(track.sleep, "blocker", session=session, priority=1_000_000)
    return {
        label: lanes.submit_nowait(track.sleep, label, session=session, priority=priority)
        for label in labels
    }


@both_layers
@pytest.mark.many_seeds(5)
async def test_higher_priorities_start_first_and_equal_priorities_in_order_of_submission(
    autojump_clock: MockClock, session: str | None
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        blocked(lanes, track, session=session)
        for i in range(3):
            for priority in (-1, 0, 1):
                lanes.start_soon(track.sleep, f"{priority}:{i}", session=session, priority=priority)
    assert track.started == ["blocker", *(f"{p}:{i}" for p in (1, 0, -1) for i in range(3))]


async def test_a_priority_may_be_a_member_of_an_enumeration_of_whole_numbers(
    autojump_clock: MockClock,
) -> None:
    class Level(enum.IntEnum):
        LOW = -1
        HIGH = 1

    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        blocked(lanes, track, session=None)
        for level in Level:
            lanes.start_soon(track.sleep, level.name, priority=level)
    assert track.started == ["blocker", "HIGH", "LOW"]


@both_layers
async def test_a_waiting_job_that_is_raised_is_the_next_to_run(
    autojump_clock: MockClock, session: str | None
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        jobs = blocked(lanes, track, "a", "b", "c", session=session)
        jobs["c"].priority = 1
        assert jobs["c"].priority == 1
    assert track.started == ["blocker", "c", "a", "b"]


@both_layers
async def test_a_waiting_job_that_is_lowered_is_the_last_to_run(
    autojump_clock: MockClock, session: str | None
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        jobs = blocked(lanes, track, "a", "b", "c", session=session)
        jobs["a"].priority = -1
    assert track.started == ["blocker", "b", "c", "a"]


@both_layers
async def test_of_two_changes_the_last_counts(
    autojump_clock: MockClock, session: str | None
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        jobs = blocked(lanes, track, "a", "b", "c", session=session)
        jobs["c"].priority = 5
        jobs["c"].priority = -5
        jobs["b"].priority = 1
    assert track.started == ["blocker", "b", "a", "c"]


@both_layers
async def test_a_job_whose_priority_is_set_goes_behind_its_new_equals(
    autojump_clock: MockClock, session: str | None
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        jobs = blocked(lanes, track, "a", "b", "c", session=session)
        jobs["b"].priority = 1
        jobs["a"].priority = 1
        jobs["b"].priority = 0  # back where it was, but behind c
    assert track.started == ["blocker", "a", "c", "b"]


@both_layers
async def test_setting_the_same_priority_keeps_the_place(
    autojump_clock: MockClock, session: str | None
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        jobs = blocked(lanes, track, "a", "b", "c", session=session)
        jobs["a"].priority = 0
        jobs["b"].priority = jobs["b"].priority
    assert track.started == ["blocker", "a", "b", "c"]


@both_layers
async def test_a_job_that_runs_or_has_ended_has_no_priority_to_set(
    autojump_clock: MockClock, session: str | None
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(track.sleep, "a", session=session, priority=3)
        cancelled = lanes.submit_nowait(track.sleep, "b", session=session)
        cancelled.cancel()
        for wait in (job.wait_started, job.wait):
            await wait()
            for value in (3, 4):
                with pytest.raises(RuntimeError, match="only while it waits"):
                    job.priority = value
            assert job.priority == 3
        with pytest.raises(RuntimeError, match="only while it waits"):
            cancelled.priority = 1


@both_layers
@pytest.mark.parametrize("bad", [float("nan"), 1.5, "1", None, True])
async def test_a_priority_that_is_no_whole_number_is_refused_and_changes_nothing(
    autojump_clock: MockClock, session: str | None, bad: Any
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        jobs = blocked(lanes, track, "a", "b", session=session)
        with pytest.raises((TypeError, ValueError), match=rf"priority.*{bad!r}"):
            jobs["b"].priority = bad
        assert jobs["b"].priority == 0
        with pytest.raises((TypeError, ValueError), match=rf"priority.*{bad!r}"):
            lanes.submit_nowait(track.sleep, "c", session=session, priority=bad)
        assert len(lanes.jobs()) == 3
    assert track.started == ["blocker", "a", "b"]


async def test_the_forwarded_job_that_is_raised_goes_behind_its_new_equals_in_its_lane(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(track.sleep, "blocker")
        job = lanes.submit_nowait(track.sleep, "a", session="alice")
        lanes.start_soon(track.sleep, "b", session="bob", priority=1)
        lanes.start_soon(track.sleep, "c", session="carol")
        job.priority = 1
    assert track.started == ["blocker", "b", "a", "c"]


async def test_the_forwarded_job_that_is_lowered_gives_its_place_to_the_next_of_its_session(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(track.sleep, "blocker")
        job = lanes.submit_nowait(track.sleep, "a0", session="alice")
        lanes.start_soon(track.sleep, "a1", session="alice")
        lanes.start_soon(track.sleep, "b", session="bob")
        job.priority = -1
        assert lanes.lane("main").statistics().waiting_in_lane == 2
    assert track.started == ["blocker", "a1", "b", "a0"]


async def test_a_higher_priority_in_a_session_counts_over_all_sessions_of_the_lane(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(track.sleep, "blocker")
        for name in ("bob", "carol"):
            for i in range(2):
                lanes.start_soon(track.sleep, f"{name}{i}", session=name)
        lanes.start_soon(track.sleep, "alice", session="alice", priority=1)
    assert track.started == ["blocker", "alice", "bob0", "carol0", "bob1", "carol1"]


def best_of_three(measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(3))


@pytest.mark.slow
@pytest.mark.trio_only("it measures what both doors share")
@both_layers
async def test_many_distinct_priorities_cost_n_log_n(
    autojump_clock: MockClock, session: str | None
) -> None:
    async def nothing() -> None:
        pass

    async with open_lanes({"main": 1}) as lanes:

        def submit_and_clear(n: int) -> float:
            lanes.pause()
            began = time.thread_time()
            for i in range(n):
                lanes.submit_nowait(nothing, session=session, priority=i * 7919 % n)
            lanes.clear()
            return time.thread_time() - began

        few = best_of_three(lambda: submit_and_clear(500))
        many = best_of_three(lambda: submit_and_clear(8_000))
        assert many < 16 * 5 * few  # n squared would be 256 times as long


@both_layers
async def test_a_thousand_distinct_priorities_start_in_order(
    autojump_clock: MockClock, session: str | None
) -> None:
    n = 1_000
    order: list[int] = []

    async def note(priority: int) -> None:
        order.append(priority)

    async with open_lanes({"main": 1}) as lanes:
        lanes.pause()
        for i in range(n):
            priority = i * 7919 % n - n // 2
            lanes.start_soon(note, priority, session=session, priority=priority)
        lanes.resume()
    assert order == list(range((n + 1) // 2 - 1, -n // 2 - 1, -1))[:n]


async def test_a_priority_set_by_a_hook_in_the_middle_of_a_transition_counts(
    autojump_clock: MockClock,
) -> None:
    track = Track()

    class RaiseOdd:
        def job_submitted(self, job: Job[Any]) -> None:
            if isinstance(job.meta, int) and job.meta % 2:
                job.priority = 1

    async with open_lanes({"main": 1}, instruments=[RaiseOdd()]) as lanes:
        lanes.start_soon(track.sleep, "blocker")
        for i in range(6):
            lanes.start_soon(track.sleep, i, meta=i, session="alice" if i < 3 else None)
    assert track.started == ["blocker", 1, 3, 5, 4, 0, 2]


async def test_changing_priorities_of_many_jobs_keeps_every_job(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    async with open_lanes({"main": 1}) as lanes:
        lanes.pause()
        jobs = [
            lanes.submit_nowait(track.sleep, i, session=f"s{i % 3}" if i % 2 else None)
            for i in range(100)
        ]
        for round_ in range(5):
            for i, job in enumerate(jobs):
                job.priority = i * (round_ + 3) % 7
        lanes.resume()
    assert sorted(track.started) == list(range(100))
    assert [job.state for job in jobs] == [JobState.SUCCEEDED] * 100
    assert trio.current_time() == 100.0
