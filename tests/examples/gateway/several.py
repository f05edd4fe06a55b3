"""Several processes of the gateway in the test's own nursery: one store, one folder, one clock.

async with several(model, tmp_path) as (one, two):
    asked = await one.request("POST", "/v1/responses", {...})
    await two.request("POST", "/v1/responses", {...outputs...})
    one.end()  # as a process does that is given no time; the other goes on
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast
from unittest.mock import patch

import attrs
import httpx2
import trio

from examples.chat_agent.toolbox import open_toolbox
from examples.chat_agent.upstream import Upstream
from examples.gateway.engine import TURNS
from examples.gateway.serving import lanes_of, making, parser
from examples.gateway_processes.shared import SharedBacklog
from examples.openai_api.http import Requests
from trio_lanes import LaneConfig, open_lanes
from trio_lanes.durable import MemoryStore

from .inside import Gateway, _at_once


@attrs.define(eq=False)
class Process(Gateway):
    """One of the processes."""

    scope: trio.CancelScope
    another: Callable[[], Awaitable[Process]]  # starts one more

    @property
    def runs(self) -> int:
        """How many turns it runs, or holds open for their clients."""
        assert self.durable._worker is not None
        return len(self.durable._worker.running)

    def end(self) -> None:
        """Give back what it does, at once."""
        self.scope.cancel()


@asynccontextmanager
async def several(
    upstream: Upstream,
    folder: Path,
    *options: str,
    count: int = 2,
    store: MemoryStore | None = None,
) -> AsyncIterator[list[Process]]:
    """Open the processes: two turns at once over all of them, unless options say so."""
    chosen = parser().parse_args(["--limit", "2", "--grace", "0", *options])
    chosen.durable = folder
    first = MemoryStore() if store is None else store

    async def run(store: MemoryStore, task_status: trio.TaskStatus[Process]) -> None:
        with trio.CancelScope() as scope:
            async with (
                open_toolbox(chosen.tool_timeout, chosen.mcp) as tools,
                httpx2.AsyncClient(verify=False) as client,
                open_lanes(lanes_of(chosen)) as lanes,
                trio.open_nursery() as beside,
            ):
                parts = upstream, tools, client, folder
                turns = LaneConfig(concurrency=chosen.limit, max_waiting=chosen.waiting)
                own = store, SharedBacklog, {TURNS: turns}, math.inf
                async with making(chosen, parts, Requests(), lanes, beside, *own) as made:
                    app, engine, kept = made
                    process = Process(app, engine, lanes, kept, scope, another)
                    task_status.started(process)
                    await trio.sleep_forever()

    async def another() -> Process:
        return cast("Process", await nursery.start(run, first.another()))

    with patch("trio.to_thread.run_sync", _at_once):
        async with trio.open_nursery() as nursery:
            yield [await nursery.start(run, first), *[await another() for _ in range(count - 1)]]
            nursery.cancel_scope.cancel()
