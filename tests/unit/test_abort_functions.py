"""Abort functions: what is called while Trio walks over the tasks that it cancels.

A task that is started in the status of one of these tasks meanwhile would end the whole run.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.lowlevel import Abort
from trio.testing import MockClock, wait_all_tasks_blocked

import trio_lanes
import trio_lanes.aio
from tests.support.bodies import never_ends, this_job
from trio_lanes import Job, LaneConfig, LaneInstrument, Lanes, open_lanes, shutdown_on_signals
from trio_lanes.agents import ThreadLocks, ToolCall, run_tools
from trio_lanes.durable import MemoryStore, open_durable_lanes

ROOT = Path(trio_lanes.__file__).parent

ABORTED: set[tuple[str, str]] = set()
"""The abort functions that were called here: the module, and the qualified name."""


def abort_functions() -> Iterator[tuple[str, str]]:
    """Yield those of the library that do more than to forget their task, or to refuse."""
    for path in ROOT.rglob("*.py"):
        text = path.read_text("utf-8")
        if "wait_task_rescheduled" not in text:
            continue
        tree = ast.parse(text)
        names = {
            ast.unparse(node.args[0]).removeprefix("self.")
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("wait_task_rescheduled")
        }
        assert all(name.isidentifier() or "Abort.FAILED" in name for name in names), names
        for name, function in functions(tree):
            if function.name in names and any(isinstance(n, ast.Call) for n in ast.walk(function)):
                yield path.relative_to(ROOT).as_posix(), name


def functions(node: ast.AST, above: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the functions in ``node`` with their qualified names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield above + child.name, child
        name = above
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            name += f"{child.name}.<locals>."
        elif isinstance(child, ast.ClassDef):
            name += f"{child.name}."
        yield from functions(child, name)


@pytest.fixture(autouse=True)
def spawned_in_abort(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Watch the abort functions of the library, and the tasks that are started in them."""
    park, start_soon = trio.lowlevel.wait_task_rescheduled, trio.Nursery.start_soon
    aborting: list[tuple[str, str]] = []
    spawned: list[str] = []

    def watched(abort: Callable[[Any], Abort]) -> Any:
        path = Path(abort.__code__.co_filename)
        if not path.is_relative_to(ROOT):
            return park(abort)
        where = path.relative_to(ROOT).as_posix(), abort.__qualname__

        def watched_abort(raise_cancel: Any) -> Abort:
            aborting.append(where)
            ABORTED.add(where)
            try:
                return abort(raise_cancel)
            finally:
                aborting.pop()

        return park(watched_abort)

    def start(nursery: trio.Nursery, fn: Any, *args: Any, name: object = None) -> None:
        spawned.extend(f"{where} has started {fn}" for where in aborting)
        start_soon(nursery, fn, *args, name=name)

    monkeypatch.setattr(trio.lowlevel, "wait_task_rescheduled", watched)
    monkeypatch.setattr(trio.Nursery, "start_soon", start)
    yield spawned
    assert spawned == []


class Reports(LaneInstrument):
    """Starts a task in the nursery of the application for all that it hears."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.count = 0

    def report(self, *args: object) -> None:
        self.count += 1
        self.nursery.start_soon(trio.sleep, 0)

    job_started = job_finished = job_submitted = lane_empty = lane_idle = report
    job_cancel_called = job_lent = job_regained = job_readmitted = report


async def runs(lanes: Lanes, nursery: trio.Nursery) -> None:
    nursery.start_soon(partial(lanes.run, never_ends))


async def runs_in_a_session(lanes: Lanes, nursery: trio.Nursery) -> None:
    nursery.start_soon(partial(lanes.run, never_ends, session="alice"))


async def withdraws_what_keeps_another_from_starting(lanes: Lanes, nursery: trio.Nursery) -> None:
    nursery.start_soon(partial(lanes.run, never_ends, session="alice", lane="closed"))
    await wait_all_tasks_blocked()
    lanes.submit_nowait(trio.sleep, 0, session="alice")


async def waits_for_room(lanes: Lanes, nursery: trio.Nursery) -> None:
    for _ in range(2):
        lanes.submit_nowait(trio.sleep, 2, lane="narrow")
    nursery.start_soon(partial(lanes.submit, never_ends, lane="narrow"))


async def waits_for_the_end(lanes: Lanes, nursery: trio.Nursery) -> None:
    job = lanes.submit_nowait(trio.sleep, 2)
    nursery.start_soon(job.wait)
    job.on_settled(lambda _: nursery.start_soon(trio.sleep, 0))


async def maps(lanes: Lanes, nursery: trio.Nursery) -> None:
    async def read() -> None:
        async with lanes.map(lambda _: never_ends(), range(3)) as results:
            async for _ in results:
                pass

    nursery.start_soon(read)


async def children(lanes: Lanes, nursery: trio.Nursery) -> None:
    async def opens() -> None:
        async with lanes.open_nursery() as jobs:
            jobs.start_soon(never_ends)
            await lanes.run(never_ends, session="alice")

    nursery.start_soon(opens)


async def lends(lanes: Lanes, nursery: trio.Nursery) -> None:
    async def body() -> None:
        async with this_job().yield_slot():
            lanes.submit_nowait(trio.sleep, 3, lane="one")
            await trio.lowlevel.checkpoint()

    nursery.start_soon(partial(lanes.run, body, lane="one"))


async def queues_again(lanes: Lanes, nursery: trio.Nursery) -> None:
    async def body(lending: bool) -> None:
        async with trio.open_nursery() as inner:
            job = this_job()
            lanes.pause("one")
            if lending:
                inner.start_soon(lend_later, job)
            await job.readmit()

    async def lend_later(job: Job[Any]) -> None:
        await trio.sleep(0.5)
        async with job.yield_slot():
            await trio.sleep_forever()

    nursery.start_soon(partial(lanes.run, body, False, lane="one"))
    await trio.sleep(2)
    nursery.cancel_scope.cancel()


async def drains(lanes: Lanes, nursery: trio.Nursery) -> None:
    lanes.submit_nowait(trio.sleep, 2)
    nursery.start_soon(lanes.drain)


async def waits_for_a_signal(lanes: Lanes, nursery: trio.Nursery) -> None:
    lanes.submit_nowait(trio.sleep, 2)
    nursery.start_soon(partial(shutdown_on_signals, lanes, grace=1))


async def calls_tools(lanes: Lanes, nursery: trio.Nursery) -> None:
    async def speaks(emit: Any) -> None:
        while True:
            await emit("something")

    async def call() -> None:
        calls = [ToolCall(str(n), speaks) for n in range(3)]
        async with run_tools(calls, limit=1, buffer=1) as events:

            def cancel_another(_: object) -> None:
                events.cancel("0")

            await lanes.run(
                never_ends, lane="closed", on_submit=lambda job: job.on_settled(cancel_another)
            )

    nursery.start_soon(call)


async def locks(lanes: Lanes, nursery: trio.Nursery) -> None:
    table = ThreadLocks()

    async def hold() -> None:
        async with table.exclusive("thread"):
            await lanes.run(never_ends)

    nursery.start_soon(hold)
    nursery.start_soon(hold)


WAYS = [
    runs,
    runs_in_a_session,
    withdraws_what_keeps_another_from_starting,
    waits_for_room,
    waits_for_the_end,
    maps,
    children,
    lends,
    queues_again,
    drains,
    waits_for_a_signal,
    calls_tools,
    locks,
]
LANES = {"main": 4, "one": 1, "closed": 0, "narrow": LaneConfig(max_waiting=1)}

REACHED = {
    ("_flow/parking.py", "run_for_caller.<locals>.abort"): "runs",
    ("_flow/parking.py", "wait_for_room.<locals>.abort"): "waits_for_room",
    ("_flow/parking.py", "park.<locals>.abort"): "waits_for_the_end",
    ("_map.py", "Window._park.<locals>.abort"): "maps",
    ("_flow/lending.py", "take_back.<locals>.abort"): "lends",
    ("_flow/lending.py", "readmit.<locals>.abort"): "queues_again",
    ("agents/_tools/run.py", "ToolRun._emit.<locals>.abort"): "calls_tools",
    ("agents/_conversations/locks.py", "ThreadLocks._acquire.<locals>.abort"): "locks",
    ("aio/_bridge.py", "in_asyncio.<locals>.abort"): "a map in asyncio",
    ("aio/_bridge.py", "Gate.wait.<locals>.abort"): "a block in asyncio",
}
"""By which way each abort function that does anything is called here."""

Way = Callable[[Lanes, trio.Nursery], Awaitable[None]]


def test_each_abort_function_is_called_here() -> None:
    assert {*abort_functions()} == {*REACHED}


def assert_reached(way: str) -> None:
    assert {where for where, by in REACHED.items() if by == way} <= ABORTED


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_a_hook_may_start_tasks_in_the_nursery_whose_tasks_are_cancelled(
    autojump_clock: MockClock, way: Way
) -> None:
    async with trio.open_nursery() as outer:
        reports = Reports(outer)
        async with open_lanes(LANES, instruments=[reports]) as lanes:
            async with trio.open_nursery() as nursery:
                reports.nursery = nursery
                await way(lanes, nursery)
                await wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            reports.nursery = outer
            assert lanes._scheduler.unserved is False  # what was cancelled has been served
            lanes.resume()
            if lanes.lane("closed").waiting:
                lanes.clear()
    assert_reached(way.__name__)
    assert reports.count
    assert reports in lanes._scheduler.hooks.instruments  # no hook has raised


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_the_run_goes_on_when_the_block_is_cancelled_however_it_waits(
    autojump_clock: MockClock, way: Way
) -> None:
    with trio.move_on_after(1) as scope:
        async with open_lanes(LANES) as lanes, trio.open_nursery() as nursery:
            await way(lanes, nursery)
    assert scope.cancelled_caught
    assert lanes.jobs() == []


async def test_the_block_of_durable_lanes_may_run_a_local_job_in_its_own_task(
    autojump_clock: MockClock,
) -> None:
    with trio.move_on_after(1) as scope:
        async with open_durable_lanes(MemoryStore(), {}, {"main": 4}) as durable:
            await durable.local.run(never_ends)
    assert scope.cancelled_caught


@pytest.mark.asyncio_only
async def test_a_task_of_asyncio_that_stands_for_one_of_trio_is_cancelled_in_an_abort_function(
    door: object,
) -> None:
    async def items() -> AsyncIterator[int]:
        yield 0
        await asyncio.sleep(100)

    async with trio_lanes.aio.open_lanes({"main": 1}) as lanes:
        async with lanes.map(asyncio.sleep, items()) as results:
            async for _ in results:
                break
    assert_reached("a map in asyncio")


@pytest.mark.asyncio_only
async def test_the_tasks_of_a_block_in_asyncio_are_cancelled_in_an_abort_function(
    door: object,
) -> None:
    async def fails() -> None:
        await asyncio.sleep(1)
        raise OSError

    with pytest.RaisesGroup(OSError):
        async with trio_lanes.aio.open_lanes({"main": 2}) as lanes:
            lanes.start_soon(fails)
            lanes.submit_nowait(lanes.run, asyncio.sleep, 100)
            await lanes.run(asyncio.sleep, 100)
    assert_reached("a block in asyncio")
