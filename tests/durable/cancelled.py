"""Cancels calls of a store at random moments, and looks at what they have done."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import trio

from tests.support.chaos import number
from trio_lanes import JobCancelledError
from trio_lanes.durable import DurableJob, DurableState, Store, open_durable_lanes

TASKS = 10
LONG = 300
"""Seconds for a busy machine to come to the end of the jobs."""
LONGEST = 0.01
"""Seconds until a call is cancelled: before it is sent, before its answer, or after it."""


async def cancel_calls(store: Store) -> None:
    """Each call is done as a whole or not at all, and the store goes on."""
    dice, each = random.Random(1), number("CANCELLED", 200) // TASKS
    ran: list[int] = []
    jobs: list[DurableJob] = []
    cut = 0

    async def echo(payload: Any) -> Any:
        ran.append(payload)
        await trio.lowlevel.checkpoint()

    def soon() -> trio.CancelScope:
        return trio.move_on_after(dice.random() ** 3 * LONGEST)

    async with open_durable_lanes(store, {"echo": echo}, {"main": 20}) as lanes:

        async def submit(task: int) -> None:
            nonlocal cut
            for n in range(task * each, (task + 1) * each):
                with soon() as scope:
                    await lanes.submit("echo", n, session=f"s{task}", key=str(n))
                cut += scope.cancelled_caught
                job = await lanes.submit("echo", n, session=f"s{task}", key=str(n))
                jobs.append(job)
                with soon() as scope:
                    await (job.wait() if n % 10 else lanes.cancel(job.id))
                cut += scope.cancelled_caught

        async with trio.open_nursery() as nursery:
            for task in range(TASKS):
                nursery.start_soon(submit, task)
        with trio.fail_after(LONG):
            for job in jobs:
                with suppress(JobCancelledError):
                    await job.wait()
        states = {int(job.key or ""): job.state for job in await lanes.jobs(limit=-1)}
        assert sorted(states) == list(range(each * TASKS))
        assert len(ran) == len(set(ran))
        for task in range(TASKS):
            mine = [n for n in ran if n // each == task]
            assert mine == sorted(mine)
        for n, state in states.items():
            assert state is DurableState.SUCCEEDED or (
                state is DurableState.CANCELLED and n % 10 == 0
            )
            assert n in ran or state is DurableState.CANCELLED
        assert (await lanes.check()).problems == ()
    assert cut > each, cut  # of 2 * TASKS * each calls
