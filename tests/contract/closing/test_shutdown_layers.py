"""Signals for a layer above lanes, which ends, resets and reloads as these do, in its own time."""

from __future__ import annotations

import logging
from functools import partial
from signal import SIGHUP, SIGTERM
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.bodies import returns
from tests.support.signals import hear
from trio_lanes import DrainReport, Lanes, open_lanes, shutdown_on_signals


class Layer:
    """Keeps the limits elsewhere, and records elsewhere how work has ended; both take a second."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self.close, self.reset = lanes.close, lanes.reset
        self.wait_closing, self.wait_idle = lanes.wait_closing, lanes.wait_idle

    async def configure(self, limits: dict[str, int]) -> None:
        await trio.sleep(1)
        self._lanes.configure(dict(limits))

    async def drain(self, *, grace: float, cancel_grace: float) -> DrainReport:
        report = await self._lanes.drain(grace=grace, cancel_grace=cancel_grace)
        await trio.sleep(1)
        return report


async def test_its_drain_is_waited_for_to_its_end(autojump_clock: MockClock) -> None:
    reports: list[DrainReport | None] = []

    async def listen(*, task_status: trio.TaskStatus[None]) -> None:
        reports.append(await shutdown_on_signals(Layer(lanes), grace=9, task_status=task_status))
        assert trio.current_time() == 3

    async with trio.open_nursery() as nursery, open_lanes({"main": 1}) as lanes:
        await nursery.start(listen)
        lanes.submit_nowait(returns)
        await hear(SIGTERM)
    assert reports == [DrainReport(finished=1, cancelled=0, abandoned=0)]


async def test_its_configure_is_waited_for_and_asked_for_nothing_if_nothing_is_to_change(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trio_lanes")
    changes: list[Any] = [{"main": 3}, {"main": -1}, None]
    reload = partial(changes.pop, 0)
    async with trio.open_nursery() as nursery, open_lanes({"main": 1}) as lanes:
        listen = partial(shutdown_on_signals, grace=9, reload_signal=SIGHUP, reload=reload)
        await nursery.start(listen, Layer(lanes))
        while changes:
            await hear(SIGHUP)
            await trio.sleep(2)
            assert lanes.lane("main").concurrency == 3
        levels = [record.levelname for record in caplog.records if "opened" not in record.message]
        assert levels == ["INFO", "ERROR", "INFO"]
        await hear(SIGTERM)
