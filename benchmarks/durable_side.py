"""Durable lanes, over SQLite: accepted, run and told, each job by three transactions at most."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import trio

from benchmarks.trio_peers import LOOP as LOOP
from benchmarks.workloads import Cycles, Drive
from trio_lanes.durable import SqliteStore, open_durable_lanes


class DurableCycles:
    """A session for each that submits, so that order is kept as well."""

    keeps = frozenset({"order"})

    def __init__(self, synchronous: Literal["FULL", "NORMAL"]) -> None:
        self._synchronous: Literal["FULL", "NORMAL"] = synchronous

    @asynccontextmanager
    async def open(self, folder: Path, log: list[int], in_flight: int) -> AsyncIterator[Drive]:
        async def job(i: int) -> int:
            log.append(i)
            return i

        store = SqliteStore(folder / "jobs.db", synchronous=self._synchronous)
        async with open_durable_lanes(store, {"job": job}, {"main": in_flight}) as lanes:

            async def drive(n: int) -> list[object]:
                results: list[object] = [None] * n

                async def submit(first: int) -> None:
                    for i in range(first, n, in_flight):
                        accepted = await lanes.submit("job", i, session=str(first))
                        results[i] = await accepted.wait()

                async with trio.open_nursery() as nursery:
                    for first in range(in_flight):
                        nursery.start_soon(submit, first)
                return results

            yield drive


CYCLES: dict[str, Callable[[], Cycles]] = {
    "full": lambda: DurableCycles("FULL"),
    "normal": lambda: DurableCycles("NORMAL"),
}
