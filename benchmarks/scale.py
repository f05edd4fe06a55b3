"""What one namespace of a Valkey server carries: `python -m benchmarks.scale [--jobs 1000000]`.

It prints the rows of `docs/design-durable.md`: the memory of a waiting job, the time of a cycle
(accepted, claimed, ended) with few and with very many waiting jobs, and the processor time of a job
at the server and at the client.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import attrs
import trio

from tests.durable.conformance.bench import Played, opening, ticket
from tests.durable.valkey.server import Server, programs
from trio_lanes.durable import (
    Finish,
    LaneLimit,
    SubmittedJob,
    Succeeded,
    ValkeyStore,
    open_durable_lanes,
)
from trio_lanes.durable.acts.orders import Pause

PAYLOAD: Final = '"' + "x" * 98 + '"'
FEW: Final = 10
AT_ONCE: Final = 200
CYCLES: Final = 200
ROUNDS: Final = 7
SHAPES: Final[dict[str, Callable[[int], str | None]]] = {
    "one session": lambda number: "s",
    "a session each": lambda number: f"s{number}",
    "no session": lambda number: None,
}


def memory(server: Server) -> int:
    """Return the bytes that the server uses."""
    lines = server.ask("INFO", "memory").splitlines()
    return int(next(line for line in lines if line.startswith("used_memory:")).split(":")[1])


async def cycles(store: Any) -> float:
    """Return the seconds of one cycle."""
    began = time.perf_counter()
    for n in range(CYCLES):
        job = SubmittedJob(name="echo", lane="cron", session=f"live{n % 10}", payload=PAYLOAD)
        await store.enqueue([job])
        (claim,) = (await store.step([], 1)).claims
        await store.step([Finish(claim.id, claim.fence, Succeeded("1"))], 0)
    return (time.perf_counter() - began) / CYCLES


@asynccontextmanager
async def paused(server: Server, namespace: str) -> AsyncIterator[Any]:
    """Open a namespace with a lane that is paused, and a lane that is not."""
    store = Played(ValkeyStore(server.url, namespace=namespace, patience=60))
    lanes = {"main": LaneLimit(4), "cron": LaneLimit(9)}
    async with store.store.open(attrs.evolve(opening(), lanes=lanes, lease_ttl=1e6)):
        await store.join()
        await store.do(Pause("main", None, 1e9), ticket())
        yield store


async def waiting(server: Server, shape: str, jobs: int) -> None:
    """Print what very many waiting jobs cost, beside a namespace that has few."""

    def some(first: int, last: int) -> list[SubmittedJob]:
        return [
            SubmittedJob(name="echo", session=SHAPES[shape](number), payload=PAYLOAD)
            for number in range(first, last)
        ]

    async with paused(server, "few") as few, paused(server, "many") as many:
        await few.enqueue(some(0, FEW))
        await many.enqueue(some(0, FEW))
        before = memory(server)
        for first in range(FEW, jobs, AT_ONCE):
            await many.enqueue(some(first, min(first + AT_ONCE, jobs)))
        size = (memory(server) - before) / (jobs - FEW) - len(PAYLOAD)
        # in turns, since other programs use the machine too
        ratios = [await cycles(many) / await cycles(few) for _ in range(ROUNDS)]
    ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    print(f"| {shape} | {size:.0f} | {ratio} |", flush=True)


async def in_flight(server: Server, number: int, jobs: int) -> None:
    """Print the processor time of a job at the server and at the client."""

    async def echo(payload: Any) -> Any:
        return payload

    async def submit(lanes: Any, session: str, times: int) -> None:
        for _ in range(times):
            await (await lanes.submit("echo", PAYLOAD, session=session)).wait()

    store = ValkeyStore(server.url, namespace=f"flight-{number}")
    async with open_durable_lanes(store, {"echo": echo}, {"main": number}) as lanes:
        for times in (10, jobs // number):  # the first is to get warm
            server.ask("CONFIG", "RESETSTAT")
            began, used = time.perf_counter(), time.process_time()
            async with trio.open_nursery() as nursery:
                for session in range(number):
                    nursery.start_soon(submit, lanes, f"s{session}", times)
        took, used = time.perf_counter() - began, time.process_time() - used
    lines = server.ask("INFO", "commandstats").splitlines()
    calls = next(line for line in lines if line.startswith("cmdstat_fcall"))
    spent = int(calls.split("usec=")[1].split(",")[0])
    print(
        f"| {number} | {jobs / took:,.0f} | {spent / jobs:.0f} | {used / jobs * 1e6:.0f} |",
        flush=True,
    )


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="waiting jobs")
    jobs: int = parser.parse_args().jobs
    print(f"| {jobs:,} waiting | bytes a job, beside its payload | cycle, of one with 10 |")
    print("|---|---|---|")
    for shape in SHAPES:
        with own_server() as server:
            trio.run(waiting, server, shape, jobs)
    print("\n| in flight | jobs a second | server, µs a job | client, µs a job |")
    print("|---|---|---|---|")
    for number, total in ((1, 1_500), (10, 4_000), (100, 20_000)):
        with own_server() as server:
            trio.run(in_flight, server, number, total)


@contextmanager
def own_server() -> Iterator[Server]:
    """Run a server for the time of a block."""
    server = Server(programs()["valkey"], appendonly="no")
    try:
        server.start()
        yield server
    finally:
        server.remove()


if __name__ == "__main__":
    main()
