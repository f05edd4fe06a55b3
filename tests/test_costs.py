"""What a job costs, in counts that do not depend on the machine: a guard, not a benchmark.

A figure here is what was counted when it was written, and a little more. When a change needs more,
and is worth it, raise the figure in that change and say why; `make bench` tells the time.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import trio
from trio.testing import MockClock

from trio_lanes import Job, Lanes, open_lanes

JOBS = 1_000
SESSIONS = 100
MOST_CALLS = 88  # of Python functions, Trio's included, from a job's submission to its end


async def no_op(value: int) -> int:
    return value


async def one_checkpoint(value: int) -> int:
    await trio.lowlevel.checkpoint()
    return value


class Steps(trio.abc.Instrument):
    """Counts tasks and the steps that they take."""

    def __init__(self) -> None:
        self.tasks = 0
        self.steps = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.tasks += 1

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1


def burst(fn: Callable[[int], Any] | None) -> Steps:
    """JOBS jobs in SESSIONS sessions, submitted at once into a lane of 10; or none, without fn."""
    steps = Steps()

    async def main() -> None:
        async with open_lanes({"main": 10}) as lanes:
            if fn is not None:
                submit(lanes, fn)
            await lanes.wait_idle()

    trio.run(main, clock=MockClock(autojump_threshold=0), instruments=[steps])
    return steps


def submit(lanes: Lanes, fn: Callable[[int], Any]) -> list[Job[int]]:
    return [lanes.submit_nowait(fn, n, session=str(n % SESSIONS)) for n in range(JOBS)]


def test_jobs_that_never_block_share_their_tasks() -> None:
    steps = burst(no_op)
    assert steps.tasks <= 15  # the lane's ten workers, Trio's own, the timer of long waits
    assert steps.steps <= 30


def test_a_job_that_blocks_costs_one_task_and_two_steps() -> None:
    idle = burst(None)
    steps = burst(one_checkpoint)
    assert steps.tasks - idle.tasks <= JOBS + 40
    assert steps.steps - idle.steps <= 2 * JOBS + 40


def test_the_way_of_a_job_takes_no_more_calls_than_it_did() -> None:
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    async def main() -> None:
        async with open_lanes({"main": 10}) as lanes:
            submit(lanes, no_op)
            await lanes.wait_idle()

    sys.setprofile(count)
    try:
        trio.run(main, clock=MockClock(autojump_threshold=0))
    finally:
        sys.setprofile(None)
    assert calls / JOBS <= MOST_CALLS


def test_a_waiting_job_weighs_less_than_a_kilobyte_and_an_idle_session_nothing() -> None:
    async def main() -> tuple[float, float]:
        async with open_lanes({"main": 1}) as lanes:
            await lanes.run(no_op, 0, session="warm up")
            lanes.pause()
            gc.collect()
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            jobs = submit(lanes, no_op)
            waiting, _ = tracemalloc.get_traced_memory()
            lanes.resume()
            await lanes.wait_idle()
            jobs.clear()
            for n in range(JOBS):
                await lanes.run(no_op, n, session=f"used once {n}")
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            return (waiting - before) / JOBS, (after - before) / JOBS

    waiting, idle = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert waiting <= 1024
    assert idle <= 32  # what a hundred sessions at once left in the pool of spare parts
