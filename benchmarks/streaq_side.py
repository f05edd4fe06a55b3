"""streaq over Valkey, on Trio, with its worker in the same process, as its documentation has it.

A waiter listens on a channel of its own for the result.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import streaq
import trio

from benchmarks.durable_side import SOCKET
from benchmarks.trio_peers import LOOP as LOOP
from benchmarks.workloads import Cycles, Drive


class StreaqCycles:
    """Tasks have neither order nor a session."""

    keeps = frozenset[str]()

    @asynccontextmanager
    async def open(self, folder: Path, log: list[int], in_flight: int) -> AsyncIterator[Drive]:
        for name in ("streaq", "coredis"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        worker: streaq.Worker[Any] = streaq.Worker(
            redis_url=f"unix://{os.environ[SOCKET]}",
            redis_kwargs={"max_connections": in_flight + 10},  # each that waits has one
            concurrency=in_flight,
            handle_signals=False,
            anyio_backend="trio",
        )

        @worker.task
        async def job(i: int) -> int:
            log.append(i)
            return i

        async def drive(n: int) -> list[object]:
            values: list[object] = [None] * n

            async def submit(first: int) -> None:
                for i in range(first, n, in_flight):
                    task = await job.enqueue(i)
                    values[i] = (await task.result(60)).result

            async with trio.open_nursery() as nursery:
                for first in range(in_flight):
                    nursery.start_soon(submit, first)
            return values

        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run_async)
            yield drive
            nursery.cancel_scope.cancel()


CYCLES: dict[str, Callable[[], Cycles]] = {"valkey": StreaqCycles}
