"""Durable lanes: accepted, run and waited for, each job by three transactions at most.

Over SQLite, PostgreSQL and Valkey in one process; and shared by two worker processes, each of
which submits every second line of jobs and runs jobs of both.

A store is named as an attribute of the package, which imports it at its first use: a process has
the heap of the store that it measures, and not that of the drivers of the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import trio

from benchmarks.trio_peers import LOOP as LOOP
from benchmarks.workloads import Cycles, Drive
from trio_lanes import durable
from trio_lanes.durable import DurableLanes, Store, open_durable_lanes
from trio_lanes.durable._sqlite.guest import host
from trio_lanes.durable._wire.client import ServedStoreClient
from trio_lanes.durable._wire.sockets import connect_unix, serve_unix

DSN = "BENCHMARK_POSTGRES"
SOCKET = "BENCHMARK_VALKEY"
"""The variables of the environment with the connection string and the socket of the servers."""
LEASE = 3600.0
"""No lease ends here, however busy the machine is."""


async def submit_lines(
    lanes: DurableLanes, lines: range, step: int, n: int
) -> list[tuple[int, object]]:
    """Submit a job of each line, wait for its result, and submit the next."""
    results: list[tuple[int, object]] = []

    async def submit(first: int) -> None:
        for i in range(first, n, step):
            accepted = await lanes.submit("job", i, session=str(first))
            results.append((i, await accepted.wait()))

    async with trio.open_nursery() as nursery:
        for first in lines:
            nursery.start_soon(submit, first)
    return results


class DurableCycles:
    """A session for each that submits, so that order is kept as well."""

    keeps = frozenset({"order"})

    def __init__(self, make: Callable[[Path], Store]) -> None:
        self._make = make

    @asynccontextmanager
    async def open(self, folder: Path, log: list[int], in_flight: int) -> AsyncIterator[Drive]:
        async def job(i: int) -> int:
            log.append(i)
            return i

        limits, store = {"main": in_flight}, self._make(folder)
        async with open_durable_lanes(store, {"job": job}, limits, lease_ttl=LEASE) as lanes:

            async def drive(n: int) -> list[object]:
                told = await submit_lines(lanes, range(in_flight), in_flight, n)
                return [result for _, result in sorted(told)]

            yield drive


def sqlite(synchronous: Literal["FULL", "NORMAL"]) -> Callable[[Path], Store]:
    return lambda folder: durable.SqliteStore(folder / "jobs.db", synchronous=synchronous)


class TwoProcesses:
    """The same by two processes: over a file that this process owns and serves, or a server."""

    keeps = frozenset({"order"})

    def __init__(self, kind: Literal["served", "postgres", "valkey"]) -> None:
        self._kind = kind

    @asynccontextmanager
    async def open(self, folder: Path, log: list[int], in_flight: int) -> AsyncIterator[Drive]:
        async with AsyncExitStack() as stack:
            address = os.environ.get(SOCKET if self._kind == "valkey" else DSN, "")
            if self._kind == "served":
                address = str(folder.relative_to(Path.cwd()) / "store")  # at most 107 bytes
                owner = await stack.enter_async_context(
                    host(durable.SqliteStore(folder / "jobs.db"))
                )
                nursery = await stack.enter_async_context(trio.open_nursery())
                await nursery.start(serve_unix, address, owner.guest)
                stack.callback(nursery.cancel_scope.cancel)
            command = [sys.executable, "-m", "benchmarks.durable_side", self._kind, address]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            children = []
            for which in "01":
                child = subprocess.Popen(  # noqa: ASYNC220 - it is not measured
                    [*command, str(in_flight), which], text=True, **pipes
                )
                stack.push_async_callback(_end, child)
                children.append(child)

            async def drive(n: int) -> list[object]:
                results: list[object] = [None] * n
                runs: list[tuple[float, int]] = []

                async def ask(child: subprocess.Popen[str]) -> None:
                    for i, result in await trio.to_thread.run_sync(_ask, child, n):
                        results[i] = result

                async with trio.open_nursery() as asking:
                    for child in children:
                        asking.start_soon(ask, child)
                for child in children:  # a job may have run where it was not submitted
                    runs += await trio.to_thread.run_sync(_ask, child, -1)
                log.extend(i for _, i in sorted(runs))
                return results

            yield drive


async def _end(child: subprocess.Popen[str]) -> None:
    await trio.to_thread.run_sync(lambda: child.communicate())


def _ask(child: subprocess.Popen[str], n: int) -> Any:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{n}\n")
    child.stdin.flush()
    return json.loads(child.stdout.readline())


async def one_of_two(kind: str, address: str, in_flight: int, which: int) -> None:
    """Work as one of two processes, until the end of standard input."""
    runs: list[tuple[float, int]] = []

    async def job(i: int) -> int:
        runs.append((time.monotonic(), i))
        return i

    store: Store
    if kind == "served":
        store = ServedStoreClient(lambda: connect_unix(address), name="the served file")
    elif kind == "postgres":
        store = durable.PostgresStore(address)
    else:
        store = durable.ValkeyStore(f"unix://{address}")
    limits = {"main": in_flight}
    async with open_durable_lanes(store, {"job": job}, limits, lease_ttl=LEASE) as lanes:
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            if int(line) < 0:
                print(json.dumps(runs), flush=True)
                runs.clear()
            else:
                lines = range(which, in_flight, 2)
                print(
                    json.dumps(await submit_lines(lanes, lines, in_flight, int(line))), flush=True
                )


CYCLES: dict[str, Callable[[], Cycles]] = {
    "full": lambda: DurableCycles(sqlite("FULL")),
    "normal": lambda: DurableCycles(sqlite("NORMAL")),
    "served": lambda: TwoProcesses("served"),
    "postgres": lambda: DurableCycles(lambda folder: durable.PostgresStore(os.environ[DSN])),
    "postgres-2": lambda: TwoProcesses("postgres"),
    "valkey": lambda: DurableCycles(
        lambda folder: durable.ValkeyStore(f"unix://{os.environ[SOCKET]}")
    ),
    "valkey-2": lambda: TwoProcesses("valkey"),
}

if __name__ == "__main__":
    trio.run(one_of_two, sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
