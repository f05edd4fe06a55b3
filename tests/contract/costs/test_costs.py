"""What a job costs, in counts that do not depend on the machine: two sizes, or two ways, compared.

How many calls a job takes is printed by `python -m benchmarks.steps`, and no test fails for it.
"""

from __future__ import annotations

import gc
import math
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_lanes import Job, LaneConfig, Lanes, open_lanes

pytestmark = pytest.mark.slow

JOBS = 500
SESSIONS = 100


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


def burst(fn: Callable[[int], Any] | None, concurrency: int = 10) -> Steps:
    """JOBS jobs in SESSIONS sessions, submitted at once into one lane; or none, without fn."""
    steps = Steps()

    async def main() -> None:
        async with open_lanes({"main": concurrency}) as lanes:
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


@pytest.mark.parametrize("concurrency", [10, SESSIONS])
def test_jobs_that_block_share_their_tasks_and_cost_one_step_each(concurrency: int) -> None:
    idle = burst(None)
    steps = burst(one_checkpoint, concurrency)
    assert steps.tasks - idle.tasks <= concurrency + 10
    assert steps.steps - idle.steps <= JOBS + 2 * concurrency + 40


@pytest.mark.parametrize("concurrency", [10, SESSIONS])
def test_a_job_that_blocks_costs_one_task_and_two_steps_where_no_task_is_reused(
    concurrency: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes._flow.workers.REUSES_TASKS", False)
    idle = burst(None)
    steps = burst(one_checkpoint, concurrency)
    assert steps.tasks - idle.tasks <= JOBS + 40
    assert steps.steps - idle.steps <= 2 * JOBS + 40


def test_jobs_that_never_block_have_few_tasks_in_a_wide_lane_too() -> None:
    steps = burst(no_op, concurrency=100)
    assert steps.tasks <= 13  # eight workers, Trio's own, the timer of long waits


@pytest.mark.many_seeds(10)
async def test_a_hundred_jobs_that_block_start_within_five_passes_of_the_scheduler() -> None:
    async def blocks(value: int) -> int:
        await trio.sleep_forever()
        return value

    async with open_lanes({"main": 100}) as lanes:
        jobs = [lanes.submit_nowait(blocks, n) for n in range(100)]
        for _ in range(5):
            await trio.lowlevel.cancel_shielded_checkpoint()
        begun = [job for job in jobs if [*job.iter_await_frames()]]
        lanes.reset()
    assert begun == jobs


def test_runs_one_after_another_share_a_task_and_then_leave_none() -> None:
    steps = Steps()

    async def main() -> int:
        async with open_lanes({"main": 10}) as lanes:
            await lanes.run(no_op, 0, session="alice")
            tasks = steps.tasks
            for n in range(100):
                await lanes.run(no_op, n, session="alice")
            await wait_all_tasks_blocked()
            assert not trio.lowlevel.current_task().child_nurseries[0].child_tasks
            return steps.tasks - tasks

    assert trio.run(main, clock=MockClock(autojump_threshold=0), instruments=[steps]) == 0


def calls_of(main: Callable[[], Awaitable[None]]) -> int:
    """How often Python functions are called while Trio runs ``main``."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        trio.run(main, clock=MockClock(autojump_threshold=0))
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("fn", [no_op, one_checkpoint])
def test_the_way_of_a_job_takes_as_many_calls_among_many_jobs_as_among_few(
    fn: Callable[[int], Any],
) -> None:
    async def main(jobs: int) -> None:
        async with open_lanes({"main": 10}) as lanes:
            for n in range(jobs):
                lanes.submit_nowait(fn, n, session=str(n % SESSIONS))
            await lanes.wait_idle()

    few, many = (calls_of(partial(main, jobs)) / jobs for jobs in (JOBS, 4 * JOBS))
    assert many <= 1.02 * few


def test_a_run_alone_takes_as_many_calls_after_many_runs_as_after_few() -> None:
    async def main(runs: int) -> None:
        async with open_lanes({"main": 10}) as lanes:
            for n in range(runs):
                await lanes.run(no_op, n, session="alice")

    few, many = (calls_of(partial(main, runs)) / runs for runs in (JOBS // 2, 2 * JOBS))
    assert many <= 1.02 * few


def test_accounting_for_waits_costs_a_job_that_does_not_wait_at_most_a_twentieth() -> None:
    async def main(*, accounting: bool) -> None:
        async with open_lanes({"main": 10}, wait_accounting=accounting) as lanes:
            for n in range(JOBS):
                await lanes.run(no_op, n, session="alice")

    without, with_it = (calls_of(partial(main, accounting=one)) for one in (False, True))
    assert with_it <= 1.05 * without


def test_accounting_for_waits_costs_a_job_that_waits_as_much_among_many_as_among_few() -> None:
    async def main(jobs: int, *, accounting: bool) -> None:
        async with open_lanes({"main": 4}, wait_accounting=accounting) as lanes:
            for n in range(jobs):
                lanes.submit_nowait(no_op, n, session=str(n % SESSIONS))
            await lanes.wait_idle()

    def more(jobs: int) -> float:
        without, with_it = (calls_of(partial(main, jobs, accounting=one)) for one in (False, True))
        return (with_it - without) / jobs

    assert more(4 * JOBS) <= 1.1 * more(JOBS)


def test_a_session_that_comes_and_goes_takes_as_many_calls_after_many_as_after_few() -> None:
    async def main(sessions: int) -> None:
        async with open_lanes({"main": 10}) as lanes:
            for n in range(sessions):
                lanes.submit_nowait(no_op, n, session=str(n))
                if n % SESSIONS == SESSIONS - 1:
                    await lanes.wait_idle()

    few, many = (calls_of(partial(main, number)) / number for number in (JOBS, 4 * JOBS))
    assert many <= 1.02 * few


def test_a_job_pays_for_the_options_that_it_was_given_and_for_no_other() -> None:
    async def main(**options: Any) -> None:
        async with open_lanes({"main": 10}) as lanes:
            for n in range(JOBS):
                lanes.submit_nowait(no_op, n, session=str(n % SESSIONS), **options)
            await lanes.wait_idle()

    without, with_two = (
        calls_of(partial(main, **options)) for options in ({}, {"name": "answer", "meta": 1})
    )
    assert with_two <= 1.15 * without


def test_many_jobs_that_wait_for_their_own_lane_look_at_each_other_only_when_they_must() -> None:
    async def barrier(n: int) -> None:
        async def body() -> None:
            await lanes.wait_idle("main")
            await lanes.wait_active("main")

        async with open_lanes({"main": n}) as lanes:
            for _ in range(n):
                lanes.submit_nowait(body)  # all but the first get a `LaneDeadlockError`

    few, many = (calls_of(partial(barrier, n)) for n in (10, 40))
    assert many <= 8 * few


def test_jobs_that_wait_for_a_lane_do_not_look_at_each_other_while_other_jobs_run_there() -> None:
    async def main(waits: int, jobs: int) -> None:
        async with open_lanes({"main": math.inf, "busy": 2, "other": 1}) as lanes:
            for _ in range(2):
                lanes.submit_nowait(trio.sleep_forever, lane="busy")
            for n in range(waits):
                lanes.submit_nowait(lanes.wait_active if n % 2 else lanes.wait_idle, "busy")
            await wait_all_tasks_blocked()
            for n in range(jobs):
                await lanes.run(no_op, n, lane="other")
            lanes.reset()

    def calls_of_jobs(waits: int) -> int:
        return calls_of(partial(main, waits, 20)) - calls_of(partial(main, waits, 0))

    few, many = (calls_of_jobs(waits) for waits in (10, 40))
    assert many <= 20 * few  # when they looked, it was 55 times, of 30 times as many calls


def test_many_waits_for_as_many_busy_sessions_add_no_calls_to_a_job_of_another() -> None:
    async def main(waits: int, jobs: int) -> None:
        gate = trio.Event()
        async with open_lanes({"main": math.inf}) as lanes, trio.open_nursery() as nursery:
            for n in range(waits):
                lanes.start_soon(gate.wait, session=str(n))
                nursery.start_soon(lanes.wait_idle, f"session:{n}")
            await wait_all_tasks_blocked()
            for n in range(1 + jobs):  # the first has each wait find what it is to wait for
                await lanes.run(no_op, n, session="another")
            gate.set()

    def calls_of_jobs(waits: int) -> int:
        return calls_of(partial(main, waits, 20)) - calls_of(partial(main, waits, 0))

    # The order of tasks changes some, and so do warnings on a slow machine; a look at each wait
    # would be 10,000 calls, four times as many.
    assert calls_of_jobs(500) <= 2 * calls_of_jobs(0)


def test_waiting_for_room_in_a_lane_where_none_may_wait_costs_as_much_among_many_sessions() -> None:
    async def main(sessions: int) -> None:
        async with open_lanes({"main": LaneConfig(concurrency=4, max_waiting=0)}) as lanes:
            async with trio.open_nursery() as nursery:
                for n in range(sessions):
                    for _ in range(2):
                        nursery.start_soon(partial(lanes.run, no_op, n, session=str(n)))

    few, many = (calls_of(partial(main, n)) / n for n in (100, 800))
    assert many <= 1.5 * few


def test_a_submission_costs_as_much_however_many_jobs_its_session_may_start() -> None:
    async def seconds(width: int) -> float:
        async with open_lanes({"main": 1}, sessions=LaneConfig(concurrency=width)) as lanes:
            lanes.pause("main")
            for n in range(width):
                lanes.submit_nowait(no_op, n, session="alice")
            began = time.process_time()
            for n in range(100):
                lanes.submit_nowait(no_op, n, session="alice")
            took = time.process_time() - began
            lanes.clear()
            return took

    narrow, wide = (min(trio.run(seconds, width) for _ in range(2)) for width in (10, 20_000))
    assert wide <= 10 * narrow + 0.01  # when all jobs that are forwarded were looked at: 50 times


def test_a_wait_inside_a_job_costs_as_much_however_many_jobs_of_a_session_are_before_it() -> None:
    async def seconds(waiting: int) -> float:
        async with open_lanes({"main": 1, "paused": 1, "other": 1}) as lanes:
            lanes.pause("paused")
            for n in range(waiting):
                last = lanes.submit_nowait(no_op, n, session="alice", lane="paused")
            lanes.submit_nowait(trio.sleep_forever, session="bob", lane="other")
            lanes.submit_nowait(no_op, 0, session="alice", lane="other")

            async def waits() -> float:
                began = time.process_time()
                for _ in range(200):
                    with trio.CancelScope() as scope:
                        scope.cancel()
                        await last.wait_done()
                return time.process_time() - began

            took = await lanes.run(waits)
            lanes.clear()
            lanes.reset()
            return took

    few, many = (min(trio.run(seconds, waiting) for _ in range(2)) for waiting in (10, 20_000))
    assert many <= 10 * few + 0.01  # when all jobs before it were looked at: 40 times


def test_a_submission_takes_no_memory_for_the_tasks_that_wait_inside_jobs() -> None:
    async def most_bytes(waits: int) -> int:
        gate = trio.Event()
        async with open_lanes({"main": math.inf, "other": 0}) as lanes:
            first = lanes.submit_nowait(gate.wait)
            for _ in range(waits):
                lanes.submit_nowait(first.wait)
            await wait_all_tasks_blocked()
            lanes.submit_nowait(no_op, 0, lane="other")
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            lanes.submit_nowait(no_op, 0, lane="other")
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            gate.set()
            lanes.clear()
            return most - before

    few, many = (trio.run(most_bytes, waits) for waits in (10, 2_000))
    assert many <= few + 1_000


def test_a_waiting_job_weighs_less_than_a_kilobyte_and_an_idle_session_nothing() -> None:
    async def main() -> tuple[float, float]:
        async with open_lanes({"main": 1}) as lanes:
            tracemalloc.start()
            submit(lanes, no_op)  # what these sessions leave, later sessions use again
            await lanes.wait_idle()
            lanes.pause()
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            jobs = submit(lanes, no_op)
            waiting, _ = tracemalloc.get_traced_memory()
            lanes.resume()
            await lanes.wait_idle()
            jobs.clear()
            for n in range(1_000):
                await lanes.run(no_op, n, session=f"used once {n}")
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            return (waiting - before) / JOBS, after - before

    waiting, idle = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert waiting <= 1024
    assert idle <= 16_000


def test_of_a_peak_of_sessions_less_than_a_megabyte_stays() -> None:
    async def main() -> int:
        async with open_lanes({"main": 1}) as lanes:
            await lanes.run(no_op, 0, session="warm up")
            gc.collect()
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            for n in range(5_000):
                lanes.submit_nowait(no_op, n, session=str(n))
            await lanes.wait_idle()
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            return after - before

    assert trio.run(main, clock=MockClock(autojump_threshold=0)) <= 1_000_000
