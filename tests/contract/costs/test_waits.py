"""What a wait inside a job costs, in calls of functions: no more where very many jobs wait."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import trio

from tests.contract.costs.test_costs import calls_of
from tests.support.bodies import this_job
from trio_lanes import Job, LaneConfig, open_lanes

pytestmark = pytest.mark.slow

FEW, MANY = 50, 400

Shape = Callable[[int, int], Sequence[int]]
"""The numbers of the jobs that a job waits for, by its number and by how many jobs there are."""


def chain(number: int, count: int) -> Sequence[int]:
    return [number - 1] if number else []


def star(number: int, count: int) -> Sequence[int]:
    """All wait for one job, which waits itself."""
    return [min(number - 1, 1)] if number else []


def tree(number: int, count: int) -> Sequence[int]:
    return [(number - 1) // 2] if number else []


def tree_from_its_root(number: int, count: int) -> Sequence[int]:
    """Each job waits for two others, as for its children."""
    return [child for child in (2 * number + 1, 2 * number + 2) if child < count]


async def live(
    shape: Shape,
    count: int,
    *,
    order: str = "at once",
    width: float = math.inf,
    lends: bool = False,
) -> None:
    """Run jobs that wait for each other in that shape, and begin to do so in that order."""
    jobs: list[Job[None]] = []
    delays = [*range(count)]
    match order:
        case "at once":
            delays = [0] * count
        case "backwards":
            delays.reverse()
        case "any":
            random.Random(count).shuffle(delays)

    async def wait(number: int) -> None:
        if lends:
            async with this_job().yield_slot():
                await jobs[number].wait()
        else:
            await jobs[number].wait()

    async def body(number: int) -> None:
        if delays[number]:
            await trio.sleep(delays[number])
        others = shape(number, count)
        if not others:
            await trio.sleep(2 * count)
        elif len(others) == 1:
            await wait(others[0])
        else:
            async with trio.open_nursery() as nursery:
                for other in others:
                    nursery.start_soon(wait, other)

    config = LaneConfig(concurrency=width, warn_after=math.inf)
    async with open_lanes({"main": config}) as lanes:
        jobs += [lanes.submit_nowait(body, number) for number in range(count)]


@pytest.mark.parametrize("order", ["at once", "forwards", "backwards", "any"])
@pytest.mark.parametrize("shape", [chain, star, tree, tree_from_its_root])
def test_a_wait_costs_as_much_however_many_jobs_wait_for_each_other(
    shape: Shape, order: str
) -> None:
    few, many = (
        calls_of(partial(live, shape, count, order=order)) / count for count in (FEW, MANY)
    )
    assert many <= 1.5 * few


@pytest.mark.parametrize(("width", "lends"), [(50, False), (50, True), (math.inf, True)])
def test_a_wait_costs_as_much_in_a_lane_that_is_full_and_where_jobs_lend_their_slots(
    width: float, lends: bool
) -> None:
    few, many = (
        calls_of(partial(live, chain, count, width=width, lends=lends)) / count
        for count in (FEW, MANY)
    )
    assert many <= 1.5 * few


def test_a_wait_costs_as_much_in_a_long_chain_while_jobs_of_other_lanes_wait_for_starts() -> None:
    async def main(count: int) -> None:
        async def runs_another() -> None:
            await lanes.run(trio.sleep, 1, lane="busy")

        async def waits(before: Job[None] | None) -> None:
            if before is not None:
                await before.wait()
            await trio.sleep_forever()

        async with open_lanes({"main": math.inf, "other": math.inf, "busy": 1}) as lanes:
            lanes.submit_nowait(trio.sleep_forever, lane="busy")
            for _ in range(10):
                lanes.submit_nowait(runs_another, lane="other")
            job = None
            for _ in range(count):
                job = lanes.submit_nowait(waits, job)
            await trio.sleep(1)
            lanes.clear("busy")
            lanes.reset()

    few, many = (calls_of(partial(main, count)) / count for count in (FEW, MANY))
    assert many <= 1.5 * few


def test_a_wait_costs_as_much_once_no_job_waits_that_a_lowered_limit_held_up() -> None:
    async def main(count: int) -> None:
        async def lends() -> None:
            async with this_job().yield_slot():
                await trio.sleep(1)

        async def outer() -> None:
            await lanes.run(lends, lane="narrow")

        async def waits(before: Job[None] | None) -> None:
            if before is not None:
                await before.wait()
            await trio.sleep_forever()

        async with open_lanes({"main": math.inf, "narrow": 2}) as lanes:
            held_up = lanes.submit_nowait(outer, lane="narrow")
            await trio.sleep(0.5)
            lanes.configure({"narrow": 1})
            await trio.sleep(1)
            lanes.lane("main").concurrency = count  # it is still held up
            held_up.cancel()
            await held_up.wait_done()
            job = None
            for _ in range(count):
                job = lanes.submit_nowait(waits, job)
            await trio.sleep(1)
            lanes.reset()

    few, many = (calls_of(partial(main, count)) / count for count in (FEW, MANY))
    assert many <= 1.5 * few


def test_a_wait_costs_as_much_in_a_full_lane_when_no_job_waits_for_a_start_any_more() -> None:
    async def main(count: int) -> None:
        async def runs_another() -> None:
            await lanes.run(trio.sleep_forever, lane="busy")

        async def waits(number: int, before: Job[None] | None) -> None:
            await trio.sleep(2 + number / count)
            if before is not None:
                await before.wait()
            await trio.sleep_forever()

        async with open_lanes({"main": count, "other": 1, "busy": 1}) as lanes:
            lanes.submit_nowait(trio.sleep, 1, lane="busy")
            lanes.submit_nowait(runs_another, lane="other")  # that one starts after a second
            job = None
            for number in range(count + 1):
                job = lanes.submit_nowait(waits, number, job)
            await trio.sleep(4)
            lanes.clear()
            lanes.reset()

    few, many = (calls_of(partial(main, count)) / count for count in (FEW, MANY))
    assert many <= 1.5 * few
