"""Two workers run jobs and take locks while their server comes back with older data."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import trio

from trio_lanes.durable import (
    DurableLanes,
    DurableState,
    DurableStatistics,
    LockLostError,
    StoreError,
    current_job,
    open_durable_lanes,
)
from trio_lanes.durable.store import Store

LEASE = 8.0
SLOTS, SESSIONS, LOCKS = 6, 12, 3


class Work:
    """What two workers do, and what of it runs."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.running: set[int] = set()
        self.ended = 0
        self.feeding = True

    async def __call__(self, payload: object) -> None:
        run = current_job()
        assert run is not None
        assert run.fence not in self.running
        self.running.add(run.fence)
        try:
            await trio.sleep(0.02 + self.dice.random() * 0.1)
        finally:
            self.running.remove(run.fence)
        self.ended += 1

    async def submit(self, lanes: DurableLanes) -> None:
        """Submit jobs, as many as two workers do."""
        number = 0
        while self.feeding:
            number += 1
            try:
                await lanes.submit("work", number, session=f"s{number % SESSIONS}")
            except StoreError:
                await trio.sleep(0.1)
            await trio.sleep(0.02)

    async def lock(self, lanes: DurableLanes, key: str) -> None:
        """Take a lock again and again."""
        while self.feeding:
            try:
                async with lanes.lock(key):
                    await trio.sleep(0.02)
            except (LockLostError, StoreError):
                await trio.sleep(0.1)
            await trio.sleep(0.03)


async def agree_again(
    make: Callable[[], Store], fail_over: Callable[[], Awaitable[None]], seed: int
) -> str:
    """Check that two workers and the store agree within a lease after a failover.

    Args:
      fail_over: returns when the workers can reach a server with older data.

    Return what was seen.
    """
    work = Work(random.Random(seed))
    async with AsyncExitStack() as opened:
        both = [
            await opened.enter_async_context(
                open_durable_lanes(
                    make(), {"work": work}, {"main": SLOTS}, capacity=4, lease_ttl=LEASE
                )
            )
            for _ in range(2)
        ]
        async with trio.open_nursery() as nursery:
            for lanes in both:
                nursery.start_soon(work.submit, lanes)
                for n in range(LOCKS):
                    nursery.start_soon(work.lock, lanes, f"lock {n}")
            await trio.sleep(1)
            await fail_over()
            back = trio.current_time()
            await trio.sleep(1)
            work.feeding = False
            ended = work.ended
            statistics = await settled(both[0], back)
            took = trio.current_time() - back
        running = await both[0].jobs(states=[DurableState.RUNNING], limit=-1)
        assert not running
        assert not work.running
        assert statistics.locks == ()
        assert (await both[0].check()).problems == ()
    return f"agreed {took:.1f} s after it was back, {work.ended - ended} jobs since"


async def settled(lanes: DurableLanes, back: float) -> DurableStatistics:
    """Wait until nothing waits or runs; fail if that takes longer than a lease and the jobs."""
    with trio.fail_after(back + 3 * LEASE + 20 - trio.current_time()):
        while True:
            try:
                now = await lanes.statistics()
                if not (now.waiting or now.running or now.locks):
                    return now
            except StoreError:
                pass
            await trio.sleep(0.1)
