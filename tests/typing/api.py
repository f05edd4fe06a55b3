"""What users' code looks like to type checkers: mypy and pyright read this, and it is not run.

Each `assert_type` says what is inferred. Each error that is ignored must be there: for both, an
ignore that ignores nothing is an error itself.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, assert_type

import trio

from trio_lanes import (
    Adaptive,
    DrainReport,
    Job,
    JobCancelledError,
    JobOptions,
    JobState,
    JobTimeoutError,
    Lane,
    LaneClearedError,
    LaneConfig,
    LaneError,
    LaneFullError,
    LaneInstrument,
    LaneNursery,
    LaneResetError,
    Lanes,
    LanesClosedError,
    LanesStatistics,
    LaneStatistics,
    QueueTimeoutError,
    SessionLane,
    UnknownLaneError,
    current_job,
    is_probe_lane,
    open_lanes,
    resolve_global_lane,
    resolve_session_lane,
    shutdown_on_signals,
)
from trio_lanes.instruments import LoggingInstrument
from trio_lanes.testing import LaneRecorder, RecordedJob


async def reply(user: str, length: int) -> bytes:
    return user[:length].encode()


async def greet(user: str, *, politely: bool = True) -> str:
    return user


async def nothing() -> None: ...


def plain(user: str) -> str:
    return user


class Client:
    async def call(self, user: str) -> float:
        return 1.0

    async def __call__(self, user: str) -> complex:
        return 1j


# ---- giving lanes something to run


async def running(lanes: Lanes) -> None:
    assert_type(await lanes.run(reply, "alice", 5), bytes)
    assert_type(await lanes.run(reply, "alice", 5, session="alice", priority=3), bytes)
    assert_type(await lanes.run(greet, "alice"), str)
    assert_type(await lanes.run(nothing), None)
    assert_type(await lanes.run(Client().call, "alice"), float)
    assert_type(await lanes.run(Client(), "alice"), complex)
    assert_type(await lanes.run(trio.Path("notes").read_bytes), bytes)
    assert_type(await lanes.run(lambda: reply("alice", 5)), bytes)
    assert_type(await lanes.lane("main").run(reply, "alice", 5), bytes)
    assert_type(await lanes.session("alice").run(reply, "alice", 5), bytes)


async def submitting(lanes: Lanes) -> None:
    assert_type(await lanes.submit(reply, "alice", 5), Job[bytes])
    assert_type(lanes.submit_nowait(reply, "alice", 5), Job[bytes])
    assert_type(lanes.submit_nowait(nothing), Job[None])
    assert_type(lanes.lane("main").submit_nowait(greet, "alice"), Job[str])
    assert_type(lanes.session("alice").submit_nowait(greet, "alice"), Job[str])
    lanes.start_soon(reply, "alice", 5, lane="cron")


async def refused(lanes: Lanes) -> None:
    await lanes.run(reply, "alice")  # type: ignore[arg-type]
    await lanes.run(reply, 5, "alice")  # type: ignore[arg-type]
    await lanes.run(plain, "alice")  # type: ignore[arg-type]
    await lanes.run(reply("alice", 5))  # type: ignore[arg-type]
    await lanes.submit(reply, "alice", "5")  # type: ignore[arg-type]
    lanes.submit_nowait(greet, "alice", politely=False)  # type: ignore[call-arg]
    lanes.submit_nowait(nothing, priority="high")  # type: ignore[arg-type]
    lanes.submit_nowait(nothing, sesion="alice")  # type: ignore[call-arg]
    lanes.start_soon(plain, "alice")  # type: ignore[arg-type]
    Lanes.submit_nowait(lanes, fn=nothing)  # type: ignore[call-arg]


async def nurseries(lanes: Lanes) -> None:
    async with lanes.open_nursery() as jobs:
        assert_type(jobs, LaneNursery)
        assert_type(jobs.submit_nowait(reply, "alice", 5, session="alice"), Job[bytes])
        assert_type(jobs.submit_nowait(nothing, lane="cron", timeout=1), Job[None])
        assert_type(jobs.start_soon(reply, "alice", 5), None)
        assert_type(jobs.clear(), int)
        assert_type(jobs.cancel_scope, trio.CancelScope)
        jobs.start_soon(reply, "alice")  # type: ignore[arg-type]
        jobs.start_soon(plain, "alice")  # type: ignore[arg-type]
        jobs.submit_nowait(nothing, sesion="alice")  # type: ignore[call-arg]
        await jobs.start_soon(nothing)  # type: ignore[misc]
    with lanes.open_nursery():  # type: ignore[attr-defined]
        pass


async def options(lanes: Lanes) -> None:
    def on_wait(job: Job[Any], waited: float) -> None: ...

    every: JobOptions = {
        "session": "alice",
        "lane": "main",
        "priority": 1,
        "timeout": 1.5,
        "queue_timeout": 2,
        "warn_after": 2.5,
        "on_wait": on_wait,
        "name": "reply",
        "meta": {"anything": 1},
    }
    none: JobOptions = {}
    assert_type(await lanes.run(reply, "alice", 5, **every), bytes)
    assert_type(lanes.submit_nowait(reply, "alice", 5, **none), Job[bytes])
    lanes.submit_nowait(nothing, session=None, on_wait=None)
    wrong: JobOptions = {"priority": "high"}  # type: ignore[typeddict-item]
    print(wrong)


# ---- handles


async def handles(job: Job[bytes]) -> None:
    assert_type(await job.wait(), bytes)
    assert_type(await job.wait_started(), None)
    assert_type(await job.wait_done(), None)
    assert_type(job.cancel(), bool)
    assert_type(job.cancel("reason"), bool)
    assert_type(job.id, int)
    assert_type(job.name, str)
    assert_type(job.session, str | None)
    assert_type(job.lane, str)
    assert_type(job.priority, int)
    job.priority = 5
    job.priority = "high"  # type: ignore[assignment]
    assert_type(job.state, JobState)
    job.state = JobState.FAILED  # type: ignore[misc]
    assert_type(job.done, bool)
    assert_type(job.cancel_called, bool)
    assert_type(job.exception, BaseException | None)
    assert_type(job.parent, Job[Any] | None)
    assert_type(job.submitted_at, float)
    assert_type(job.started_at, float | None)
    assert_type(job.finished_at, float | None)
    assert_type(current_job(), Job[Any] | None)


def a_job_of_something_narrower_is_one(job: Job[bool]) -> Job[int]:
    return job


def a_job_of_something_wider_is_none(job: Job[int]) -> Job[bool]:
    return job  # type: ignore[return-value]


# ---- lanes


async def opening() -> None:
    async with open_lanes() as lanes:
        assert_type(lanes, Lanes)
    async with open_lanes({"main": 4, "cron": 1}):
        pass
    counts = {"main": 4}  # a dict of ints, and a Mapping is asked for
    async with open_lanes(counts, sessions=LaneConfig(concurrency=2)):
        pass
    mixed: Mapping[str, int | float | LaneConfig] = {"a": 1, "b": float("inf"), "c": LaneConfig()}
    async with open_lanes(mixed, instruments=[Starts(), LaneRecorder(), LoggingInstrument()]):
        pass
    async with open_lanes({"main": "4"}):  # type: ignore[dict-item]
        pass
    with open_lanes():  # type: ignore[attr-defined]
        pass


def configuring(lanes: Lanes) -> None:
    lanes.configure({"main": 8, "cron": None, "new": LaneConfig(max_waiting=100)})
    config = LaneConfig(concurrency=3, max_waiting=5, warn_after=1.0, paused=True)
    assert_type(config.concurrency, int | float | Adaptive)
    config.paused = False  # type: ignore[misc]
    LaneConfig(3)  # type: ignore[call-arg]


async def looking(lanes: Lanes, lane: Lane, session: SessionLane) -> None:
    assert_type(lanes.lane("main"), Lane)
    assert_type(lanes.session("alice"), SessionLane)
    assert_type(lanes.jobs(), list[Job[Any]])
    assert_type(lanes.sessions(), list[str])
    assert_type(lanes.statistics(), LanesStatistics)
    assert_type(lanes.statistics().lanes["main"], LaneStatistics)
    assert_type(lane.statistics(), LaneStatistics)
    assert_type(lane.name, str)
    assert_type(lane.limiter, trio.CapacityLimiter)
    assert_type(lane.config, LaneConfig)
    assert_type(lane.concurrency, int | float)
    lane.concurrency = 4
    lane.concurrency = None  # type: ignore[assignment]
    assert_type(lane.waiting, int)
    assert_type(lane.active, int)
    assert_type(lane.generation, int)
    assert_type(lane.paused, bool)
    assert_type(session.waiting, int)
    assert_type(session.active, int)
    assert_type(resolve_global_lane(None), str)
    assert_type(resolve_session_lane("alice"), str)
    assert_type(is_probe_lane("auth-probe:x"), bool)


async def acting(lanes: Lanes, lane: Lane, session: SessionLane) -> None:
    assert_type(lanes.clear(), int)
    assert_type(lanes.clear("main", owner="alice", reason="enough"), int)
    assert_type(lane.clear(owner=None), int)
    assert_type(session.clear(reason="enough"), int)
    assert_type(lanes.reset("main"), int)
    assert_type(lane.reset(), int)
    lanes.pause("main")
    lanes.resume()
    assert_type(await lanes.wait_active("main", timeout=1.0), bool)
    assert_type(await lanes.wait_idle(), None)
    assert_type(await lanes.wait_empty("main"), None)
    assert_type(await lanes.wait_room(3), None)
    assert_type(await lane.wait_active(), bool)
    lanes.close("upgrade", retry_after=5)
    report = await lanes.drain(grace=1.0, cancel_grace=2, waiting="cancel")
    assert_type(report, DrainReport)
    assert_type(report.finished, int)
    await lanes.drain(waiting="never")  # type: ignore[arg-type]
    assert_type(await shutdown_on_signals(lanes, grace=1), DrainReport | None)
    await shutdown_on_signals(lanes, grace=1, reload=dict)
    await shutdown_on_signals(lane, grace=1)  # type: ignore[arg-type]
    await shutdown_on_signals(lanes, grace=1, signals="SIGTERM")  # type: ignore[arg-type]


# ---- errors


def errors(
    unknown: UnknownLaneError,
    full: LaneFullError,
    closed: LanesClosedError,
    cleared: LaneClearedError,
    reset: LaneResetError,
    late: JobTimeoutError,
    never: QueueTimeoutError,
) -> None:
    every: list[LaneError] = [unknown, full, closed, cleared, reset, late, never]
    print(every)
    lookup: LookupError = unknown
    would_block: trio.WouldBlock = full
    resource: trio.ClosedResourceError = closed
    cancelled: list[JobCancelledError] = [cleared, reset]
    too_slow: list[trio.TooSlowError] = [late, never]
    print(lookup, would_block, resource, cancelled, too_slow)
    assert_type(unknown.name, str)
    assert_type(closed.retry_after, float | None)
    assert_type(cleared.reason, str | None)
    assert_type(never.seconds, float)


# ---- instruments


class Starts(LaneInstrument):
    """Has one hook, as most do."""

    def job_started(self, job: Job[Any]) -> None:
        print(job.name)


class Wrong(LaneInstrument):
    def job_started(self, job: str) -> None: ...  # type: ignore[override]


def recording(recorder: LaneRecorder) -> None:
    recorder.check()
    assert_type(recorder.started, list[RecordedJob])
    assert_type(recorder.started[0].job, Job[Any] | None)
    assert_type(recorder.violations, list[str])
    assert_type(recorder.peak("main"), int)
    LoggingInstrument(logging.getLogger("mine"), level=logging.DEBUG, session_keys=True)
    LoggingInstrument("mine")  # type: ignore[arg-type]
