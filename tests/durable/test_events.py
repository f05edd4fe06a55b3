"""The lines that a worker writes to the log."""

import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_lanes.durable import (
    DurableJobError,
    MemoryStore,
    NoRetry,
    Retry,
    RetryPolicy,
    current_job,
    open_durable_lanes,
)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, "trio_lanes.durable.events")
    return lambda: [
        record.getMessage() for record in caplog.records if record.name.endswith("events")
    ]


async def act(what: Any) -> Any:
    run = current_job()
    assert run is not None
    await trio.sleep(2)
    if what == "no JSON":
        return object()
    if what == "fail":
        raise NoRetry("not\nlike this")
    if what == "later" and run.attempt == 1:
        raise Retry(5)
    if what == "die":
        raise ValueError("x" * 1000)
    if what == "stay":
        await trio.sleep_forever()


async def test_a_line_has_nothing_that_a_terminal_obeys(
    lines: Any, autojump_clock: MockClock
) -> None:
    async def act(what: Any) -> Any:
        raise NoRetry("\x1b[31mred\x07\x9b2J\u202e\x00 ü")

    name = "h\x1b[2J\r\n"
    async with open_durable_lanes(MemoryStore(), {name: act}, {"main": 1, "l\x07": 1}) as lanes:
        job = await lanes.submit(name, lane="l\x07")
        with pytest.raises(DurableJobError):
            await job.wait()
    begins, ends = lines()
    assert begins == f"h\\x1b[2J\\r\\n {job.id} begins in l\\x07, attempt 1"
    assert ends.endswith("NoRetry: \\x1b[31mred\\x07\\x9b2J\\u202e\\x00 ü")


async def test_how_a_run_begins_and_ends_is_one_line_each(
    lines: Any, autojump_clock: MockClock
) -> None:
    policy = RetryPolicy(max_attempts=2, backoff=(3.0, 3.0), jitter=0.0)
    async with open_durable_lanes(MemoryStore(), {"act": act}, {"main": 1}, retry=policy) as lanes:
        for what in ("well", "no JSON", "fail", "later", "die"):
            await lanes.submit("act", what, session="secret")
        with trio.move_on_after(60):
            await trio.sleep_forever()
        stopped = await lanes.submit("act", "stay")
        await trio.sleep(10)
        await lanes.cancel(stopped.id)
    begins = [line for line in lines() if "begins" in line]
    assert begins[0].endswith("begins in main, attempt 1")
    ends = [line.split(" ", 2)[2] for line in lines() if "begins" not in line]
    assert ends[0] == "succeeded after 2.000 s"
    assert ends[1].startswith("failed after 2.000 s: trio_lanes.durable.PayloadError: the result")
    assert ends[2] == "failed after 2.000 s: trio_lanes.durable.NoRetry: not like this"
    assert ends[3].startswith("is to be retried in 5 s, after 2.000 s: trio_lanes.durable.Retry")
    assert ends[4] == "succeeded after 2.000 s"
    assert ends[5].startswith("is to be retried in 3 s, after 2.000 s: ValueError: xxx")
    assert ends[6].startswith("is dead after 2.000 s: ValueError: xxx")
    assert len(ends[6]) < 600
    assert ends[7] == "was cancelled after 10.000 s"
    assert len(ends) == 8
    assert "secret" not in "".join(lines())


async def test_a_job_that_is_given_back_is_a_line_of_the_log(
    lines: Any, autojump_clock: MockClock
) -> None:
    async with open_durable_lanes(MemoryStore(), {"act": act}, {"main": 1}, grace=5) as lanes:
        await lanes.submit("act", "stay")
        await trio.sleep(1)
    assert lines()[-1].endswith("was given back after 6.000 s")


async def test_a_dead_job_is_a_warning_and_all_else_is_not(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    caplog.set_level(logging.WARNING, "trio_lanes.durable.events")
    policy = RetryPolicy(max_attempts=1)
    async with open_durable_lanes(MemoryStore(), {"act": act}, retry=policy) as lanes:
        await lanes.submit("act", "die")
        await lanes.submit("act", "well")
        await trio.sleep(5)
        await wait_all_tasks_blocked()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert " is dead after 2.000 s: ValueError" in record.getMessage()


async def test_dead_jobs_of_one_handler_and_error_are_one_warning_a_minute(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    async def fail(payload: Any) -> None:
        raise type(payload, (Exception,), {})("no")

    caplog.set_level(logging.INFO, "trio_lanes.durable.events")
    policy = RetryPolicy(max_attempts=1)
    async with open_durable_lanes(
        MemoryStore(), {"a": fail, "b": fail}, retry=policy, lease_ttl=1e6
    ) as lanes:
        for again in range(2):
            for number in range(100):  # more types of errors than are remembered for ever
                await lanes.submit("a", f"Error{number}")
            for name in ("a", "a", "a", "b"):
                await lanes.submit(name, "Same")
            await trio.sleep(59 if again else 61)
        await lanes.submit("b", "Same")
        await trio.sleep(1)
    lines = [
        (one.levelno, one.getMessage()) for one in caplog.records if "dead" in one.msg % one.args
    ]
    warnings = [text for level, text in lines if level == logging.WARNING]
    assert len(lines) == 2 * 104 + 1
    assert len(warnings) == 2 * 102
    assert sum("Same" in text for text in warnings) == 4
