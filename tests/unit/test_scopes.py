"""The cancel scope of a job: from the call that submits it until it has settled.

Private names are used here: a job's scope is none of the public ones.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_lanes import (
    Job,
    JobCancelledError,
    LaneClearedError,
    LaneConfig,
    Lanes,
    current_job,
    open_lanes,
)


def scope_of(job: Job[Any]) -> trio.CancelScope:
    assert job._scope is not None
    return job._scope


async def own_scope() -> tuple[trio.CancelScope, bool]:
    """The scope of the job that runs this, and whether it is the same after the job has blocked."""
    job = current_job()
    assert job is not None
    scope = scope_of(job)
    await trio.sleep(1)
    return scope, scope_of(job) is scope


async def own_scope_at_once() -> trio.CancelScope:
    job = current_job()
    assert job is not None
    return scope_of(job)


async def test_a_job_has_its_scope_from_the_call_that_submits_it(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        jobs = [lanes.submit_nowait(trio.sleep, 1) for _ in range(3)]
        scopes = [scope_of(job) for job in jobs]
        assert len({*map(id, scopes)}) == 3
        assert not any(scope.cancel_called for scope in scopes)


async def test_its_timeout_is_the_relative_deadline_of_its_scope(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 10)
        job = lanes.submit_nowait(trio.sleep, 100, timeout=7, idle_timeout=9)
        scope = scope_of(job)
        assert scope.relative_deadline == 7
        await trio.sleep(11)
        assert scope_of(job) is scope
        assert scope.deadline == 17
        await job.wait_done()
        assert scope.cancelled_caught
        assert trio.current_time() == 17


@pytest.mark.parametrize("name", [None, "main", "session:alice"])
async def test_clear_cancels_the_scope_of_each_job_that_waits_and_of_no_other(
    autojump_clock: MockClock, name: str | None
) -> None:
    async with open_lanes({"main": 2, "cron": 1}) as lanes:
        jobs = [lanes.submit_nowait(trio.sleep, 1, session="alice") for _ in range(3)]
        jobs += [lanes.submit_nowait(trio.sleep, 1, session=None) for _ in range(3)]
        jobs += [lanes.submit_nowait(trio.sleep, 1, lane="cron") for _ in range(2)]
        jobs.append(lanes.submit_nowait(trio.sleep, 1, session="alice", delay=5))
        await wait_all_tasks_blocked()
        scopes = {job: scope_of(job) for job in jobs}
        cleared = {
            job
            for job in jobs
            if job.started_at is None
            and (name is None or name in (job.lane, f"session:{job.session}"))
        }
        assert lanes.clear(name) == len(cleared) > 0
        assert {job for job in jobs if scopes[job].cancel_called} == cleared
        for job in jobs:
            if job in cleared:
                assert isinstance(job.exception, LaneClearedError)
            else:
                await job.wait()


async def cancels(lanes: Lanes, job: Job[Any]) -> None:
    job.cancel("enough")


async def resets(lanes: Lanes, job: Job[Any]) -> None:
    lanes.reset()


async def waits_for_the_timeout(lanes: Lanes, job: Job[Any]) -> None:
    await trio.sleep(5)
    await wait_all_tasks_blocked()


@pytest.mark.parametrize("act", [cancels, resets, waits_for_the_timeout])
@pytest.mark.parametrize("option", ["timeout", "idle_timeout"])
async def test_what_stops_a_running_job_cancels_its_scope(
    autojump_clock: MockClock, act: Any, option: str
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        options: dict[str, Any] = {option: 5}
        job = lanes.submit_nowait(trio.sleep, 100, **options)
        await wait_all_tasks_blocked()
        scope = scope_of(job)
        await act(lanes, job)
        await job.wait_done()
        await wait_all_tasks_blocked()
        assert scope.cancel_called
        assert scope.cancelled_caught


async def test_a_job_that_blocks_has_a_scope_that_no_later_job_shares(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        jobs = [lanes.submit_nowait(own_scope) for _ in range(4)]
        ends = [await job.wait() for job in jobs]
        assert all(stays for _, stays in ends)
        assert len({id(scope) for scope, _ in ends}) == 4


async def test_jobs_that_never_block_may_share_a_scope_that_was_not_touched(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        jobs = [lanes.submit_nowait(own_scope_at_once) for _ in range(4)]
        scopes = [await job.wait() for job in jobs]
        assert not any(scope.cancel_called for scope in scopes)
        blocks = lanes.submit_nowait(own_scope)
        await trio.sleep(0.5)
        blocks.cancel()
        await blocks.wait_done()
        assert all(job.outcome is not None and not job.cancel_called for job in jobs)


async def test_no_job_runs_under_a_scope_that_was_cancelled_for_another(
    autojump_clock: MockClock,
) -> None:
    async def cancels_itself() -> trio.CancelScope:
        job = current_job()
        assert job is not None
        job.cancel()
        return scope_of(job)

    async with open_lanes({"main": LaneConfig(concurrency=1)}) as lanes:
        cancelled = lanes.submit_nowait(cancels_itself)
        later = lanes.submit_nowait(own_scope_at_once)
        blocks = lanes.submit_nowait(own_scope)
        spoilt = await cancelled.wait()
        assert await later.wait() is not spoilt
        scope, _ = await blocks.wait()
        assert scope is not spoilt
        assert not scope.cancel_called


async def test_a_job_that_was_cancelled_before_it_ran_does_not_take_over_a_scope(
    autojump_clock: MockClock,
) -> None:
    async def cancels_the_other() -> None:
        other.cancel()

    async with open_lanes({"main": 2}) as lanes:
        lanes.submit_nowait(cancels_the_other)
        other = lanes.submit_nowait(trio.sleep, 5)
        await other.wait_done()
        assert isinstance(other.exception, JobCancelledError)
        assert trio.current_time() == 0
