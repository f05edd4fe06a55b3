"""The defaults that a lane gives its jobs, and the log line when lanes open."""

from __future__ import annotations

import gc
import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.bodies import raises_at_once
from trio_lanes import (
    JobTimeoutError,
    LaneConfig,
    QueueTimeoutError,
    RateLimit,
    open_lanes,
)

LIMITS = ["timeout", "queue_timeout", "idle_timeout"]


@pytest.mark.parametrize(("limit", "error"), [(limit, JobTimeoutError) for limit in LIMITS[::2]])
async def test_a_job_has_the_limits_of_its_lane_unless_it_says_otherwise(
    autojump_clock: MockClock, limit: str, error: type[Exception]
) -> None:
    values: dict[str, Any] = {limit: 3}
    async with open_lanes({"main": LaneConfig(concurrency=9, **values), "cron": 9}) as lanes:
        job = lanes.submit_nowait(trio.sleep, 10)
        own: dict[str, Any] = {limit: 20}
        longer = lanes.submit_nowait(trio.sleep, 10, **own)
        elsewhere = lanes.submit_nowait(trio.sleep, 10, lane="cron")
        with pytest.raises(error):
            await job.wait()
        assert job.finished_at == 3
        await longer.wait()
        await elsewhere.wait()


async def test_a_lanes_queue_timeout_holds_for_jobs_that_do_not_have_their_own(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": LaneConfig(queue_timeout=3)}) as lanes:
        lanes.submit_nowait(trio.sleep, 10)
        job = lanes.submit_nowait(trio.sleep, 1, session="alice")
        patient = lanes.submit_nowait(trio.sleep, 1, queue_timeout=20)
        with pytest.raises(QueueTimeoutError):
            await job.wait()
        assert job.finished_at == 3
        await patient.wait()


async def test_configure_changes_the_defaults_of_later_jobs(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": LaneConfig(concurrency=9, timeout=3)}) as lanes:
        first = lanes.submit_nowait(trio.sleep, 10)
        lanes.configure({"main": LaneConfig(concurrency=9)})
        await lanes.run(trio.sleep, 10)
        assert isinstance(first.exception, JobTimeoutError)


@pytest.mark.parametrize("limit", [*LIMITS, "log_failures"])
def test_sessions_have_no_defaults_for_jobs(limit: str) -> None:
    value: dict[str, Any] = {limit: False if limit == "log_failures" else 3}
    with pytest.raises(ValueError, match=f"sessions cannot have {limit}="):
        open_lanes(sessions=LaneConfig(**value))


@pytest.mark.parametrize("log", [True, False])
async def test_a_lane_may_not_log_failures_that_are_never_retrieved(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, log: bool
) -> None:
    async with open_lanes({"main": LaneConfig(log_failures=log)}) as lanes:
        await lanes.submit_nowait(raises_at_once).wait_done()
        gc.collect()
    assert ("never retrieved" in caplog.text) is log


# ---- sessions=


async def test_configure_changes_live_sessions_at_once_and_keeps_overrides(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 9, "session:vip": 2}) as lanes:
        jobs = [lanes.submit_nowait(trio.sleep, 5, session="alice") for _ in range(3)]
        jobs += [lanes.submit_nowait(trio.sleep, 5, session="vip") for _ in range(3)]
        assert lanes.session("alice").active == 1
        lanes.configure(sessions=LaneConfig(concurrency=3))
        assert lanes.session("alice").active == 3
        assert lanes.session("vip").active == 2
        assert lanes.session("new").concurrency == 3


@pytest.mark.parametrize("bad", [LaneConfig(aging=3), 5, LaneConfig(timeout=3)])
async def test_a_bad_configuration_of_sessions_changes_nothing(
    autojump_clock: MockClock, bad: Any
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises((TypeError, ValueError), match="sessions"):
            lanes.configure({"main": 5, "new": 1}, sessions=bad)
        assert lanes.lane("main").concurrency == 1
        assert lanes.session("alice").concurrency == 1
        assert "new" not in lanes.statistics().lanes


# ---- opening


async def test_opening_says_once_how_many_jobs_each_lane_runs(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trio_lanes")
    lanes_given: dict[str, int | float | LaneConfig] = {
        "main": 4,
        "cron": LaneConfig(rate=RateLimit(1, per=1)),
        "shared": LaneConfig(limiter=trio.CapacityLimiter(3)),
    }
    async with open_lanes(lanes_given, sessions=LaneConfig(concurrency=2)) as lanes:
        await lanes.run(trio.sleep, 1)
    (line,) = [record for record in caplog.records if record.levelno == logging.INFO]
    assert line.getMessage().endswith(": main 4, cron 1, shared 3, each session 2")
