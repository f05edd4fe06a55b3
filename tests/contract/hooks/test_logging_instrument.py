"""`LoggingInstrument`: one line for each event, with fields that come from a bounded set."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_lanes import JobState, LaneConfig, RateLimit, open_lanes
from trio_lanes.instruments import LoggingInstrument

LOGGER = logging.getLogger("test of LoggingInstrument")


class Boom(Exception):
    pass


async def reply(seconds: float = 1.0, *, fail: bool = False) -> None:
    await trio.sleep(seconds)
    if fail:
        raise Boom


class Kept(logging.Handler):
    """Keeps the records that were logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self.records]

    def fields(self, event: str) -> list[dict[str, Any]]:
        """What the records of ``event`` have besides what every record has."""
        plain = vars(logging.makeLogRecord({})).keys() | {"taskName", "message"}
        return [
            {name: value for name, value in vars(record).items() if name not in plain}
            for record in self.records
            if vars(record)["event"] == event
        ]


@pytest.fixture
def kept() -> Iterator[Kept]:
    kept = Kept()
    level = LOGGER.level
    LOGGER.setLevel(1)
    LOGGER.addHandler(kept)
    yield kept
    LOGGER.removeHandler(kept)
    LOGGER.setLevel(level)


async def test_every_event_of_a_job_is_one_line(autojump_clock: MockClock, kept: Kept) -> None:
    async with open_lanes({"main": 1}, instruments=[LoggingInstrument(LOGGER)]) as lanes:
        lanes.submit_nowait(reply, name="first", session="alice")
        job = lanes.submit_nowait(reply, name="second", priority=2)
        await job.wait()
    assert [line for line in kept.lines if line.startswith("job")] == [
        "job 1 'first' in lane 'main' was submitted",
        "job 1 'first' in lane 'main' was forwarded by its session",
        "job 1 'first' in lane 'main' started after 0.000 s",
        "job 2 'second' in lane 'main' was submitted",
        "job 1 'first' in lane 'main' succeeded after 1.000 s",
        "job 2 'second' in lane 'main' started after 1.000 s",
        "job 2 'second' in lane 'main' succeeded after 1.000 s",
    ]
    assert sorted(line for line in kept.lines if line.startswith("lane")) == [
        "lane 'main' has no waiting jobs",
        "lane 'main' is idle",
        "lane 'session:*' is idle",
    ]
    assert kept.lines[-1] == "the lanes are closed (the block was left)"
    assert {record.levelno for record in kept.records} == {logging.INFO}


async def test_the_end_of_a_job_is_logged_and_its_failure_is_not_retrieved_by_that(
    autojump_clock: MockClock, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": 1}, instruments=[LoggingInstrument(LOGGER)]) as lanes:
        lanes.submit_nowait(failing, name="bad")
        lanes.submit_nowait(reply, name="cleared")
        await trio.sleep(0.5)
        lanes.clear(reason="enough")
    assert "job 1 'bad' in lane 'main' failed after 1.000 s by Boom" in kept.lines
    cleared = "never started, and was cancelled after 0.500 s by LaneClearedError"
    assert f"job 2 'cleared' in lane 'main' {cleared}" in kept.lines
    assert "lane 'main' was cleared of 1 jobs" in kept.lines
    assert "its exception was never retrieved" in caplog.text


async def failing() -> None:
    await reply(fail=True)


async def test_the_facts_are_fields_of_the_record(autojump_clock: MockClock, kept: Kept) -> None:
    async with open_lanes({"main": 1}, instruments=[LoggingInstrument(LOGGER)]) as lanes:
        first = lanes.submit_nowait(reply, 3.0, name="first", session="alice", priority=7)
        second = lanes.submit_nowait(reply, name="second", warn_after=1.0)
        lanes.pause()
        await trio.sleep(2)
        second.cancel()
        lanes.resume()
        lanes.clear(reason="enough")
        lanes.reset("session:alice")
        lanes.close("upgrade", retry_after=5.0)
    of_first = {"lane": "main", "job_id": first.id, "job_name": "first", "priority": 7}
    assert kept.fields("job_submitted")[0] == {
        **of_first,
        "event": "job_submitted",
        "state": JobState.WAITING.value,
    }
    assert kept.fields("job_started") == [
        {**of_first, "event": "job_started", "state": "running", "waited": 0.0}
    ]
    of_second = {"lane": "main", "job_id": second.id, "job_name": "second", "priority": 0}
    assert kept.fields("job_waiting_long") == [
        {**of_second, "event": "job_waiting_long", "state": "waiting", "waited": 1.0}
    ]
    assert kept.fields("job_finished") == [
        {
            **of_second,
            "event": "job_finished",
            "state": "cancelled",
            "waited": 2.0,
            "ran": None,
            "error": "JobCancelledError",
        },
        {
            **of_first,
            "event": "job_finished",
            "state": "cancelled",
            "ran": 2.0,
            "error": "LaneResetError",
        },
    ]
    assert kept.fields("lane_paused") == [{"event": "lane_paused", "lane": "main"}]
    assert kept.fields("lane_resumed") == [{"event": "lane_resumed", "lane": "main"}]
    assert kept.fields("lane_cleared") == [
        {"event": "lane_cleared", "lane": "main", "count": 0, "reason": "enough"}
    ]
    assert kept.fields("lane_reset") == [
        {"event": "lane_reset", "lane": "session:*", "abandoned": 1}
    ]
    assert kept.fields("lanes_closing") == [
        {"event": "lanes_closing", "reason": "upgrade", "retry_after": 5.0}
    ]


async def test_a_rate_limit_is_told(autojump_clock: MockClock, kept: Kept) -> None:
    config = LaneConfig(concurrency=9, rate=RateLimit(1, 10.0, algorithm="sliding"))
    async with open_lanes({"main": config}, instruments=[LoggingInstrument(LOGGER)]) as lanes:
        lanes.submit_nowait(reply)
        lanes.submit_nowait(reply)
    assert kept.fields("lane_rate_limited") == [
        {"event": "lane_rate_limited", "lane": "main", "until": 10.0}
    ]
    assert "lane 'main' waits for a rate limit until 10.000" in kept.lines


async def test_an_event_that_needs_attention_is_a_warning(
    autojump_clock: MockClock, kept: Kept
) -> None:
    instrument = LoggingInstrument(LOGGER, level=logging.DEBUG)
    async with open_lanes({"main": 1}, instruments=[instrument]) as lanes:
        job = lanes.submit_nowait(reply)
        lanes.submit_nowait(reply, warn_after=0.5)
        await trio.sleep(0.75)
        lanes.reset("main")
        instrument.job_overdue(job, 12.0)
    warnings = [record for record in kept.records if record.levelno == logging.WARNING]
    assert [vars(record)["event"] for record in warnings] == [
        "job_waiting_long",
        "lane_reset",
        "job_overdue",
    ]
    assert warnings[2].getMessage().endswith("still runs 12.000 s after it was asked to stop")
    assert {record.levelno for record in kept.records} == {logging.DEBUG, logging.WARNING}


async def test_nothing_is_below_the_level_that_was_asked_for(
    autojump_clock: MockClock, kept: Kept
) -> None:
    instrument = LoggingInstrument(LOGGER, level=logging.ERROR)
    async with open_lanes({"main": 1}, instruments=[instrument]) as lanes:
        lanes.submit_nowait(reply)
        lanes.reset()
    assert {record.levelno for record in kept.records} == {logging.ERROR}


async def test_a_logger_that_is_not_enabled_gets_nothing(
    autojump_clock: MockClock, kept: Kept
) -> None:
    LOGGER.setLevel(logging.WARNING)
    async with open_lanes({"main": 1}, instruments=[LoggingInstrument(LOGGER)]) as lanes:
        await lanes.run(reply)
    assert kept.records == []


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
@pytest.mark.parametrize("session_keys", [False, True])
async def test_a_sessions_key_is_in_no_field_and_in_debug_messages_only_if_asked(
    level: int, session_keys: bool, autojump_clock: MockClock, kept: Kept
) -> None:
    instrument = LoggingInstrument(LOGGER, level=level, session_keys=session_keys)
    lane_of_its_own = {"main": 1, "tool:*": 1}
    async with open_lanes(lane_of_its_own, instruments=[instrument]) as lanes:
        session = lanes.session("alice")
        for lane in ("main", "tool:alice"):
            session.submit_nowait(reply, lane=lane)
            session.submit_nowait(reply, lane=lane, warn_after=0.5)
        await trio.sleep(1)
        session.pause()
        session.resume()
        session.clear()
        lanes.reset("session:alice")
    told = [record for record in kept.records if "alice" in record.getMessage()]
    assert bool(told) is (session_keys and level == logging.DEBUG)
    assert {record.levelno for record in told} <= {logging.DEBUG}
    for record in kept.records:
        named = {
            name: value for name, value in vars(record).items() if name not in {"args", "message"}
        }
        assert "alice" not in repr(named)
    assert {vars(record).get("lane") for record in kept.records} == {
        "main",
        "tool:*",
        "session:*",
        None,
    }


async def test_without_a_logger_it_writes_to_a_child_of_the_librarys_logger(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trio_lanes")
    async with open_lanes({"main": 1}, instruments=[LoggingInstrument()]) as lanes:
        await lanes.run(reply)
    opened, *told = caplog.records
    assert opened.getMessage().startswith("lanes opened")
    assert {record.name for record in told} == {"trio_lanes.events"}


@pytest.mark.parametrize("level", ["INFO", True, None])
def test_a_level_that_is_none_is_refused(level: Any) -> None:
    with pytest.raises(TypeError, match="level must be a number"):
        LoggingInstrument(LOGGER, level=level)


def test_a_logger_that_is_none_is_refused() -> None:
    name: Any = "trio_lanes"
    with pytest.raises(TypeError, match=r"logger must be a logging\.Logger, not 'trio_lanes'"):
        LoggingInstrument(name)


async def test_lanes_without_limits_do_not_log_how_many_jobs_they_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "trio_lanes")
    async with open_lanes({"main": math.inf}):
        pass
    assert not caplog.records
