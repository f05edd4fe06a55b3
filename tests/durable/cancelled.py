"""Cancels calls of a store at random moments, and its opening after each step of a task."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

import outcome
import trio

from tests.support.chaos import number
from trio_lanes import JobCancelledError
from trio_lanes.durable import (
    DurableJob,
    DurableState,
    Store,
    StoreUnavailableError,
    open_durable_lanes,
)

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


class Cut(trio.abc.Instrument):
    """Cancels a scope after so many steps of all tasks of a run."""

    def __init__(
        self, scope: trio.CancelScope, steps: int, before: Callable[[], None] | None
    ) -> None:
        self._scope = scope
        self._left = steps
        self._before = before

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if self._left == 0:
            if self._before is not None:
                self._before()
            self._scope.cancel()


def cancel_open(
    make: Callable[[], Store],
    *,
    worker: bool = True,
    stand_still: Callable[[], None] | None = None,
    go_on: Callable[[], None] = lambda: None,
) -> None:
    """Opening lanes ends, as cancelled, after whichever step of a task it is cancelled.

    Each try is a run in a thread of its own, since no cancellation would end a try that hangs.

    Args:
      stand_still: stops the server before the cancellation; then an act may be unavailable.
      go_on: lets the server go on, after each try.
    """
    ends: list[outcome.Outcome[bool]] = []

    async def once(steps: int) -> bool:
        is_open = False
        with trio.CancelScope() as scope:
            cut = Cut(scope, steps, stand_still)
            trio.lowlevel.add_instrument(cut)
            with unavailable_if(stand_still is not None):
                async with open_durable_lanes(make(), {}, worker=worker, grace=0):
                    trio.lowlevel.remove_instrument(cut)
                    is_open = True
        assert is_open or stand_still or scope.cancelled_caught
        return scope.cancel_called

    def run(steps: int) -> None:
        ends.append(outcome.capture(trio.run, once, steps))

    for steps in range(1, 10_000, 4 if stand_still else 1):
        thread = Thread(target=run, args=[steps], daemon=True)
        thread.start()
        thread.join(LONG / 10)
        go_on()
        assert len(ends) == 1, f"lanes that were cancelled after {steps} steps are still opening"
        if not ends.pop().unwrap():
            break
    assert steps > 3


@contextmanager
def unavailable_if(expected: bool) -> Iterator[None]:
    """Let a store be unavailable in a block, if this is expected."""
    try:
        yield
    except* StoreUnavailableError:
        if not expected:
            raise


async def submitted_at_last(lanes: Any) -> None:
    """Submit, again while the store is away: its server begins, or the machine is slow."""
    with trio.fail_after(60):
        while True:
            try:
                await lanes.submit("a")
                return
            except StoreUnavailableError:
                await trio.sleep(0.05)
