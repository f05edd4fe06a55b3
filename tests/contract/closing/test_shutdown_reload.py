"""Signals that reset lanes, and that have them configured anew."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from signal import SIGHUP, SIGTERM, SIGUSR1
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.bodies import never_ends, returns, returns_in_spite_of_all
from tests.support.signals import hear
from trio_lanes import (
    JobState,
    LaneConfig,
    LaneGroup,
    LaneResetError,
    Lanes,
    open_lanes,
    shutdown_on_signals,
)


@asynccontextmanager
async def listening(reload: Callable[[], Any] | None = None) -> AsyncIterator[Lanes]:
    """Lanes that SIGUSR1 resets, and that SIGHUP has configured as ``reload`` says."""
    listen = partial(shutdown_on_signals, grace=10, reset_signal=SIGUSR1)
    if reload is not None:
        listen = partial(listen, reload_signal=SIGHUP, reload=reload)
    async with trio.open_nursery() as nursery, open_lanes({"main": 1, "cron": 1}) as lanes:
        await nursery.start(listen, lanes)
        yield lanes


def limits(lanes: Lanes) -> dict[str, float]:
    return {name: lane.concurrency for name, lane in lanes.statistics().lanes.items()}


def log(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    return [one for one in told if not one[1].startswith("lanes opened")]


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trio_lanes")


# ---- reset


async def test_the_reset_signal_gives_up_what_runs_and_lets_what_waits_start(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening() as lanes:
        stuck, next_one = (lanes.submit_nowait(returns_in_spite_of_all) for _ in range(2))
        await hear(SIGUSR1)
        assert type(stuck.exception) is LaneResetError
        assert next_one.state is JobState.RUNNING
        assert await lanes.run(returns, lane="cron") == "value"
    assert log(caplog) == [("WARNING", "SIGUSR1: reset; 1 running jobs were given up")]


async def test_the_reset_signal_may_come_during_a_drain(autojump_clock: MockClock) -> None:
    async with listening() as lanes:
        stuck, next_one = lanes.submit_nowait(never_ends), lanes.submit_nowait(returns)
        await hear(SIGTERM)
        await hear(SIGUSR1)
        assert stuck.done
    assert await next_one.wait() == "value"
    assert trio.current_time() == 2


# ---- reload


async def test_the_reload_signal_configures_what_the_function_returns(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    changes: Iterator[dict[str, Any]] = iter([{"main": 3}, {"cron": None, "other": LaneConfig()}])
    async with listening(lambda: next(changes)) as lanes:
        waiting = [lanes.submit_nowait(returns) for _ in range(3)][1:]
        await hear(SIGHUP)
        assert limits(lanes) == {"main": 3, "cron": 1}
        assert [job.state for job in waiting] == [JobState.RUNNING, JobState.RUNNING]
        await hear(SIGHUP)
        assert limits(lanes) == {"main": 3, "other": 1}
    assert log(caplog) == [("INFO", "SIGHUP: reloaded")] * 2


@pytest.mark.parametrize("lanes_too", [False, True])
async def test_a_reload_may_return_groups_as_well(
    lanes_too: bool, autojump_clock: MockClock
) -> None:
    def reload() -> Any:
        return {"main": 9} if lanes_too else None, {"both": LaneGroup(["main", "cron"], 1)}

    async with listening(reload) as lanes:
        await hear(SIGHUP)
        assert limits(lanes) == {"main": 9 if lanes_too else 1, "cron": 1}
        first, second = lanes.submit_nowait(returns), lanes.submit_nowait(returns, lane="cron")
        assert [blocker.kind for blocker in second.blocked_by()] == ["group"]
        await first.wait_done()
        await second.wait_done()


async def test_a_reload_that_returns_nothing_changes_nothing_more(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    opened: list[Lanes] = []
    async with listening(lambda: opened[0].configure({"main": 5})) as lanes:
        opened.append(lanes)
        await hear(SIGHUP)
        assert limits(lanes) == {"main": 5, "cron": 1}
    assert log(caplog) == [("INFO", "SIGHUP: reloaded")]


def raises() -> Any:
    raise OSError("there is no such file")


async def raises_later() -> Any:
    await trio.sleep(1)
    raise OSError("there is no such file")


@pytest.mark.parametrize(
    ("reload", "told"),
    [
        (raises, "no such file"),
        (raises_later, "no such file"),
        (lambda: {"main": 5, "cron": -1}, "concurrency must not be negative"),
        (lambda: {"main": 5, "unknown": None}, "unknown"),
        (lambda: ({"main": 5}, {"both": LaneGroup(["nowhere"])}), "nowhere"),
        (lambda: ({"main": 5}, {}, "too much"), "argument"),
        (lambda: "nonsense", "nonsense"),
    ],
)
async def test_a_bad_reload_changes_nothing_and_is_logged_with_its_cause(
    reload: Callable[[], Any],
    told: str,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    results = iter([reload, dict])
    async with listening(lambda: next(results)()) as lanes:
        await hear(SIGHUP)
        await trio.sleep(2)
        assert limits(lanes) == {"main": 1, "cron": 1}
        await hear(SIGHUP)  # the next signal is heard all the same
        assert await lanes.run(returns) == "value"
    assert log(caplog) == [
        ("ERROR", "SIGHUP: the reload failed, and nothing has changed"),
        ("INFO", "SIGHUP: reloaded"),
    ]
    assert told in caplog.text


async def test_a_base_exception_of_a_reload_is_not_hidden(
    autojump_clock: MockClock,
) -> None:
    class Stop(BaseException):
        pass

    def reload() -> Any:
        raise Stop

    with pytest.RaisesGroup(Stop, flatten_subgroups=True):
        async with listening(reload):
            await hear(SIGHUP)


async def test_a_slow_reload_holds_up_no_signal_and_is_done_again_if_asked_meanwhile(
    autojump_clock: MockClock,
) -> None:
    begun: list[float] = []

    async def reload() -> dict[str, int]:
        begun.append(trio.current_time())
        await trio.sleep(5)
        return {"main": len(begun)}

    async with listening(reload) as lanes:
        stuck = lanes.submit_nowait(never_ends)
        await hear(SIGHUP)
        for _ in range(3):
            await trio.sleep(1)
            await hear(SIGHUP)
        await hear(SIGUSR1)
        assert stuck.done
        await trio.sleep(20)
        assert begun == [0, 5]
        assert limits(lanes) == {"main": 2, "cron": 1}


async def test_a_reload_is_not_waited_for_at_the_end(autojump_clock: MockClock) -> None:
    cancelled: list[float] = []

    async def reload() -> None:
        try:
            await trio.sleep(100)
        finally:
            cancelled.append(trio.current_time())

    async with listening(reload) as lanes:
        lanes.submit_nowait(returns)
        await hear(SIGHUP)
        await hear(SIGTERM)
    assert cancelled == [2]


async def test_lanes_can_be_configured_while_they_drain(autojump_clock: MockClock) -> None:
    async with listening(lambda: {"main": 3}) as lanes:
        for _ in range(3):
            lanes.submit_nowait(returns)
        await hear(SIGTERM)
        await hear(SIGHUP)
    assert trio.current_time() == 2
