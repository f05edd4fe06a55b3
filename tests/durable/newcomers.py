"""Processes that start after the clock of a server was set, or after a long time."""

from __future__ import annotations

from collections.abc import Callable

from tests.durable.conformance.bench import Bench, new_job

LEASE = 3600.0
"""Long, since the calls of stores on virtual time have much patience."""
DELAY = 5 * LEASE
STEP = 10 * LEASE
FIRST = ("writes", "reads", "worker")
"""What the first newcomer does."""


async def newcomers(bench: Bench, set_clock: Callable[[float], None], first: str) -> None:
    """Let a newcomer be the first to call after the clock was set ahead; nothing is over."""
    async with bench.instance(lease_ttl=LEASE) as lanes:
        long = await lanes.submit("gate", "long")
        await lanes.submit("echo", "late", delay=DELAY)
        await bench.advance(LEASE / 4)  # with no call since
        set_clock(STEP)
        if first == "worker":
            async with bench.instance(lease_ttl=LEASE):
                await bench.settle()
        else:
            async with bench.instance(worker=False) as web:
                await web.statistics()
                if first == "writes":
                    await web.submit("echo", "later", delay=STEP)
        async with bench.instance(lease_ttl=LEASE):
            await bench.settle()
        for _ in range(4):
            await bench.advance(LEASE / 4)
        assert bench.log == ["long begins"]
        bench.gate("long").set()
        await long.wait()
        assert [run.how for run in (await long.status()).history] == ["succeeded"]
        for _ in range(int(DELAY / LEASE * 4) + 1):
            await bench.advance(LEASE / 4)
        assert bench.log == ["long begins", "long ends", "late"]


async def all_dead(bench: Bench, jump: Callable[[float], None]) -> None:
    """Let all workers die, and time pass: it counts, though a client without a lease is there."""
    async with bench.instance(worker=False) as web:
        await web.submit("echo", "late", delay=DELAY)
        async with bench.doomed(new_job("again")):
            pass
        jump(STEP)
        async with bench.instance(), bench.instance():
            await bench.settle()
            assert sorted(bench.log) == ["again", "late"]
