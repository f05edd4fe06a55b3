"""procrastinate over PostgreSQL, with its worker in the same process, woken by its notices.

It has no results: a waiter hears from the task itself, before its end is in the database. So
its locks, with which it keeps an order, are not used: a job that is submitted before the end of its
predecessor is there would wait for the next poll, five seconds later.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import procrastinate

from benchmarks.asyncio_peers import LOOP as LOOP
from benchmarks.durable_side import DSN
from benchmarks.workloads import Cycles, Drive


class ProcrastinateCycles:
    """Jobs without locks have no order."""

    keeps = frozenset[str]()

    @asynccontextmanager
    async def open(self, folder: Path, log: list[int], in_flight: int) -> AsyncIterator[Drive]:
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        connections = min(in_flight, 10)
        connector = procrastinate.PsycopgConnector(
            conninfo=os.environ[DSN], min_size=connections, max_size=connections + 2
        )
        app = procrastinate.App(connector=connector)
        told: dict[int, asyncio.Future[int]] = {}

        @app.task(name="job")
        async def job(i: int) -> None:
            log.append(i)
            told[i].set_result(i)

        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            worker = asyncio.create_task(
                app.run_worker_async(concurrency=in_flight, install_signal_handlers=False)
            )

            async def drive(n: int) -> list[object]:
                results: list[object] = [None] * n

                async def submit(first: int) -> None:
                    for i in range(first, n, in_flight):
                        told[i] = asyncio.get_running_loop().create_future()
                        await job.defer_async(i=i)
                        results[i] = await told[i]
                        del told[i]

                async with asyncio.TaskGroup() as group:
                    for first in range(in_flight):
                        group.create_task(submit(first))
                return results

            yield drive
            worker.cancel()
            await asyncio.wait([worker])


CYCLES: dict[str, Callable[[], Cycles]] = {"postgres": ProcrastinateCycles}
