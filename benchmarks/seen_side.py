"""Lanes with something that watches them: the monitor without and with a viewer, and metrics.

The viewer is a connection to the application of the page, without a server: what a server and a
browser take is theirs.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import trio
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from benchmarks.checks import WIDTH
from benchmarks.lanes_side import LaneWaiters
from benchmarks.trio_peers import LOOP as LOOP
from benchmarks.workloads import Body, Submit
from trio_lanes import Job, LaneInstrument, open_lanes
from trio_lanes.instruments.prometheus import PrometheusInstrument
from trio_lanes.monitor import monitor


class Viewer:
    """An open page: it gets all frames, and drops them."""

    def __init__(self) -> None:
        self.frames = 0
        self._came = trio.Event()

    async def look(self, app: Starlette) -> None:
        """Look until cancelled."""
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": "/frames",
            "raw_path": b"/frames",
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"localhost")],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 80),
        }

        async def receive() -> dict[str, Any]:
            await trio.sleep_forever()
            raise AssertionError

        async def send(message: dict[str, Any]) -> None:
            if b"data: " in message.get("body", b""):
                self.frames += 1
                self._came.set()
                self._came = trio.Event()

        await app(scope, receive, send)  # type: ignore[arg-type]

    async def wait(self, frames: int) -> None:
        """Wait until so many frames came."""
        while self.frames < frames:
            await self._came.wait()


@asynccontextmanager
async def viewed(app: Starlette) -> AsyncIterator[Viewer]:
    """While a viewer looks; it has had its first frame."""
    async with trio.open_nursery() as nursery:
        viewer = Viewer()
        nursery.start_soon(viewer.look, app)
        await viewer.wait(1)
        yield viewer
        nursery.cancel_scope.cancel()


class WatchedSessions:
    """The burst of `LaneSessions`, over lanes that are watched."""

    keeps = frozenset({"order", "exclusion", "limit"})

    def __init__(self, how: str) -> None:
        self.how = how
        self.handles: list[Job[int]] = []

    @asynccontextmanager
    async def open(self, n: int, *, keep: bool) -> AsyncIterator[Submit]:
        metrics: list[LaneInstrument] = []
        if self.how == "prometheus":
            metrics = [PrometheusInstrument(CollectorRegistry())]
        async with open_lanes({"main": WIDTH}, instruments=metrics) as lanes:

            def submit(body: Body, i: int, key: str) -> None:
                self.handles.append(lanes.submit_nowait(body, i, session=key))

            if self.how == "prometheus":
                yield submit
                return
            app = monitor(lanes, authorize=lambda connection: "read")
            if self.how == "mounted":
                yield submit
                return
            async with viewed(app):
                yield submit
                await lanes.wait_idle()

    async def results(self) -> Sequence[object]:
        return [await handle.wait() for handle in self.handles]


class _Steps(trio.abc.Instrument):
    """The longest step of any task."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._since = time.perf_counter()  # it is added in the midst of a step

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._since = time.perf_counter()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, time.perf_counter() - self._since)


@contextmanager
def _steps() -> Iterator[_Steps]:
    steps = _Steps()
    trio.lowlevel.add_instrument(steps)
    try:
        yield steps
    finally:
        trio.lowlevel.remove_instrument(steps)


class WatchedWaiters(LaneWaiters):
    """Jobs behind a paused lane, with the page over it."""

    async def frames(self, count: int) -> list[float]:
        """Return for so many frames how long the loop was held: seconds."""
        found = []
        async with viewed(monitor(self._lanes, authorize=lambda connection: "read")) as viewer:
            for _ in range(count):
                with _steps() as steps:
                    await viewer.wait(viewer.frames + 1)
                found.append(steps.longest)
        return found


# A server has loaded it long before a page is opened; starlette would at the first request.
anyio.run(anyio.sleep, 0, backend="trio")

SESSIONS = {
    f"seen.{how}": lambda how=how: WatchedSessions(how)
    for how in ("mounted", "viewed", "prometheus")
}
WAITERS = {"seen.viewed": WatchedWaiters}
