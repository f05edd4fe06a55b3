"""huey over SQLite, with its consumer's threads in the same process, as its documentation has it.

A consumer polls its queue. Here each worker does so every millisecond when it has nothing to do, a
hundred times as often as by default, or the figures would be those of its pauses. A waiter
for a result is woken by the signal that huey sends at the end of a task; by itself it polls, too.
There are ten workers at most: more only stand in each other's way, since the job is no work.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import huey  # type: ignore[import-untyped]
import huey.signals  # type: ignore[import-untyped]
import trio

from benchmarks.trio_peers import LOOP as LOOP
from benchmarks.workloads import Cycles, Drive

POLLS_EVERY = 0.001
WORKERS = 10


class HueyCycles:
    """Tasks have neither order nor a session."""

    keeps = frozenset[str]()

    def __init__(self, fsync: bool) -> None:
        self._fsync = fsync

    @asynccontextmanager
    async def open(self, folder: Path, log: list[int], in_flight: int) -> AsyncIterator[Drive]:
        queue = huey.SqliteHuey(filename=str(folder / "huey.db"), fsync=self._fsync)
        told: dict[str, threading.Event] = {}

        @queue.task()  # type: ignore[untyped-decorator]
        def job(i: int) -> int:
            log.append(i)
            return i

        @queue.signal(huey.signals.SIGNAL_COMPLETE)  # type: ignore[untyped-decorator]
        def complete(signal: str, task: huey.api.Task) -> None:
            told.setdefault(task.id, threading.Event()).set()

        consumer = queue.create_consumer(
            workers=min(in_flight, WORKERS),
            periodic=False,
            initial_delay=POLLS_EVERY,
            max_delay=POLLS_EVERY,
        )
        consumer.start()

        async def drive(n: int) -> list[object]:
            results: list[object] = [None] * n

            def submit(first: int) -> None:
                for i in range(first, n, in_flight):
                    result = job(i)
                    told.setdefault(result.id, threading.Event()).wait()
                    results[i] = result.get()
                    del told[result.id]

            threads = trio.CapacityLimiter(in_flight)
            async with trio.open_nursery() as nursery:
                for first in range(in_flight):
                    nursery.start_soon(_in_thread, submit, first, threads)
            return results

        try:
            yield drive
        finally:
            consumer.stop(graceful=True)


async def _in_thread(
    call: Callable[[int], None], first: int, limiter: trio.CapacityLimiter
) -> None:
    await trio.to_thread.run_sync(call, first, limiter=limiter)


CYCLES: dict[str, Callable[[], Cycles]] = {
    "full": lambda: HueyCycles(fsync=True),
    "off": lambda: HueyCycles(fsync=False),
}
