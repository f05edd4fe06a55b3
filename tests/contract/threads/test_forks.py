"""A forked child process has a copy of the lanes, in which nothing would ever run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio

from tests.support.bodies import returns_at_once
from trio_lanes import Lanes, LanesPortal, open_lanes

Call = Callable[[Lanes, LanesPortal], Any]

CALLS: dict[str, Call] = {
    "submit_nowait": lambda lanes, portal: lanes.submit_nowait(returns_at_once),
    "start_soon": lambda lanes, portal: lanes.start_soon(returns_at_once),
    "map": lambda lanes, portal: lanes.map(trio.sleep, [0]),
    "clear": lambda lanes, portal: lanes.clear(),
    "pause": lambda lanes, portal: lanes.pause(),
    "configure": lambda lanes, portal: lanes.configure({"main": 3}),
    "cancel": lambda lanes, portal: lanes.jobs()[0].cancel(),
    "portal": lambda lanes, portal: lanes.portal(),
    "portal.submit": lambda lanes, portal: portal.submit(returns_at_once),
    "portal.run": lambda lanes, portal: portal.run(returns_at_once),
    "portal.run elsewhere": lambda lanes, portal: in_thread(portal.run, returns_at_once),
}


def in_thread(call: Callable[..., Any], *args: Any) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call(*args)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(5)
    if raised:
        raise raised[0]


def in_child(call: Callable[[], object]) -> str:
    """Make ``call`` in a forked child; return what it raised."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call()
        except BaseException as error:
            os.write(writes, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writes)
    os.waitpid(child, 0)
    with open(reads, encoding="utf-8") as answer:
        return answer.read()


@pytest.mark.real_processes
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("name", CALLS)
async def test_a_forked_child_is_refused_and_its_parent_works_on(name: str) -> None:
    async with open_lanes({"main": 2}) as lanes:
        portal = lanes.portal()
        job = lanes.submit_nowait(trio.sleep, 0)
        told = in_child(lambda: CALLS[name](lanes, portal))
        assert told.startswith("RuntimeError: these lanes belong to the parent")
        await job.wait()
        assert await lanes.run(returns_at_once) == "value"
        assert await trio.to_thread.run_sync(portal.run, returns_at_once) == "value"


@pytest.mark.real_processes
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
async def test_a_forked_child_that_has_left_the_run_may_open_lanes_of_its_own() -> None:
    async def main() -> None:
        async with open_lanes() as lanes:
            raise KeyError(await lanes.run(returns_at_once))

    def run() -> None:  # in another thread: the copy of this thread is inside a run
        in_thread(trio.run, main)

    async with open_lanes():
        assert "ExceptionGroup" in in_child(run)
