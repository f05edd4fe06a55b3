"""taskiq over a Valkey stream, with its receiver in the same process.

Its results are polled for. So the task itself tells a waiter, before the end of the task is on
the server: what a poll would cost is left out.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from taskiq.receiver import Receiver
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.asyncio_peers import LOOP as LOOP
from benchmarks.durable_side import SOCKET
from benchmarks.workloads import Cycles, Drive


class TaskiqCycles:
    """Tasks have neither order nor a session."""

    keeps = frozenset[str]()

    @asynccontextmanager
    async def open(self, folder: Path, log: list[int], in_flight: int) -> AsyncIterator[Drive]:
        logging.getLogger("taskiq").setLevel(logging.CRITICAL)
        url = f"unix://{os.environ[SOCKET]}"
        results: RedisAsyncResultBackend[int] = RedisAsyncResultBackend(url)
        broker = RedisStreamBroker(url, xread_block=100).with_result_backend(results)
        told: dict[int, asyncio.Future[int]] = {}

        @broker.task
        async def job(i: int) -> None:
            log.append(i)
            told[i].set_result(i)

        await broker.startup()
        broker.is_worker_process = True
        finish = asyncio.Event()
        receiver = Receiver(broker, max_async_tasks=in_flight, run_startup=False)
        worker = asyncio.create_task(receiver.listen(finish))

        async def drive(n: int) -> list[object]:
            values: list[object] = [None] * n

            async def submit(first: int) -> None:
                for i in range(first, n, in_flight):
                    told[i] = asyncio.get_running_loop().create_future()
                    await job.kiq(i)
                    values[i] = await told[i]
                    del told[i]

            async with asyncio.TaskGroup() as group:
                for first in range(in_flight):
                    group.create_task(submit(first))
            return values

        yield drive
        finish.set()
        await worker
        await broker.shutdown()


CYCLES: dict[str, Callable[[], Cycles]] = {"valkey": TaskiqCycles}
