"""Loops: of all kinds, one after the other, and closed too early."""

import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path

import outcome
import pytest
import trio

from tests.support.loops import LOOPS
from tests.support.programs import PATIENCE
from trio_lanes import Job, JobCancelledError, LanesClosedError
from trio_lanes.aio import Lanes, open_lanes
from trio_lanes.aio._guest import guest_here


class LoopWithoutReaders(asyncio.SelectorEventLoop):
    """As the proactor of Windows: Trio waits in its thread."""

    def add_reader(self, *arguments: object) -> None:
        raise NotImplementedError


async def work(lanes: Lanes) -> None:
    order: list[int] = []

    async def body(n: int) -> int:
        order.append(n)
        await asyncio.sleep(0)
        return n

    async def inside() -> int:
        return await lanes.run(body, 9, lane="cron")

    jobs = [lanes.submit_nowait(body, n, session="alice") for n in range(5)]
    assert [await job.wait() for job in jobs] == order == [0, 1, 2, 3, 4]
    assert await lanes.run(inside) == 9
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await lanes.run(asyncio.sleep, 60)
    await lanes.submit(asyncio.sleep, 0, delay=0.001, queue_timeout=60)
    await lanes.wait_idle()
    portal = lanes.portal()
    assert await asyncio.to_thread(portal.run, body, 7) == 7
    of_trio = lanes.trio.submit_nowait(trio.to_thread.run_sync, int, "8")
    await lanes.wait_idle()
    assert of_trio.outcome == outcome.Value(8)


@pytest.mark.parametrize("new_loop", [*LOOPS, pytest.param(LoopWithoutReaders, id="a thread")])
def test_lanes_work_in_any_loop_and_leave_no_thread(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> None:
        async with open_lanes() as lanes:
            await work(lanes)

    for _ in range(2):
        with asyncio.Runner(loop_factory=new_loop, debug=True) as runner:
            runner.run(main())
            runner.run(main())
    assert not trio.lowlevel.in_trio_run()


def test_trio_waits_in_its_thread_if_its_version_keeps_its_state_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with open_lanes() as lanes:
            guest = guest_here()
            assert guest is not None
            assert not guest._clock.loop_waits
            await work(lanes)

    monkeypatch.setattr("trio_lanes.aio._guest._internals", attrgetter("elsewhere"))
    asyncio.run(main())


def test_the_loop_waits_for_trio_without_a_thread() -> None:
    async def main() -> None:
        async with open_lanes() as lanes:
            await lanes.run(asyncio.sleep, 0, delay=0.001)
            await lanes.wait_idle()
            assert threading.active_count() == before

    before = threading.active_count()
    asyncio.run(main())


def test_two_lanes_of_a_loop_share_one_guest_run() -> None:
    async def main() -> None:
        async with open_lanes() as one:
            token = trio.lowlevel.current_trio_token()
            async with open_lanes() as other:
                assert trio.lowlevel.current_trio_token() is token

                async def body() -> str:
                    return await other.run(asyncio.sleep, 0, "value")

                assert await one.run(body) == "value"
            await work(one)

    asyncio.run(main())


def test_lanes_may_be_opened_while_those_before_are_still_being_left() -> None:
    async def use() -> None:
        async with open_lanes() as lanes:
            await lanes.run(asyncio.sleep, 0)

    async def main() -> None:
        for turns in range(20):
            first = asyncio.create_task(use())
            for _ in range(turns):
                await asyncio.sleep(0)
            await asyncio.gather(first, use())

    asyncio.run(main())


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.ERROR and record.name == "trio_lanes"
    ]


def test_a_loop_that_ends_while_lanes_are_open_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        lanes = await open_lanes().__aenter__()
        running.append(lanes.submit_nowait(asyncio.sleep, 60))
        waiting.append(lanes.submit_nowait(asyncio.sleep, 0, delay=60))
        await asyncio.sleep(0)

    waiting: list[Job[None]] = []
    running: list[Job[None]] = []
    asyncio.run(main())
    assert isinstance(running[0].exception, JobCancelledError)
    (error,) = (error for error in errors_in(caplog) if "never retrieved" not in error)
    assert "closed while lanes were open" in error
    assert isinstance(waiting[0].exception, LanesClosedError)
    assert not trio.lowlevel.in_trio_run()


CLOSED_AS_IT_IS = """
import asyncio, logging
from trio_lanes.aio import open_lanes

async def main():
    lanes = await open_lanes().__aenter__()
    await lanes.run(asyncio.sleep, 0)

async def again():
    async with open_lanes() as lanes:
        print(await lanes.run(asyncio.sleep, 0, "works"))

logging.basicConfig()
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
loop.close()
del loop
asyncio.run(again())
"""


@pytest.mark.real_processes  # what is collected in the middle of what it does would disturb others
def test_a_loop_that_is_closed_as_it_is_says_so_once_it_is_collected() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLOSED_AS_IT_IS], timeout=PATIENCE, capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("works\n", 0), done.stderr
    (line,) = done.stderr.splitlines()
    assert "closed while lanes were open" in line


IN_A_FORKED_CHILD = """
import asyncio, gc, os, trio, trio_lanes
from trio_lanes.aio import open_lanes

async def of_asyncio():
    async with open_lanes() as lanes:
        return await lanes.run(asyncio.sleep, 0, "asyncio")

async def of_trio():
    async with trio_lanes.open_lanes() as lanes:
        return await lanes.run(trio.sleep, 0) or "trio"

async def main():
    async with open_lanes() as lanes:
        async def body():
            child = os.fork()
            if not child:
                print(asyncio.run(of_asyncio()), trio.run(of_trio), asyncio.run(of_asyncio()))
                try:
                    lanes.submit_nowait(asyncio.sleep, 0)
                except RuntimeError as error:
                    print("parent" in str(error), flush=True)
                gc.collect()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            return "the parent goes on"
        print(await lanes.run(body), await of_asyncio())

asyncio.run(main())
"""


@pytest.mark.real_processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process is forked here")
def test_a_forked_child_opens_lanes_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", IN_A_FORKED_CHILD],
        timeout=PATIENCE,
        capture_output=True,
        text=True,
    )
    lines = ["asyncio trio asyncio", "True", "the parent goes on asyncio"]
    assert (done.stdout.splitlines(), done.returncode, done.stderr) == (lines, 0, "")


PYTEST_ASYNCIO = """
import asyncio, pytest, pytest_asyncio
from trio_lanes.aio import open_lanes

@pytest_asyncio.fixture
async def lanes():
    async with open_lanes() as lanes:
        yield lanes

@pytest.mark.asyncio
async def test_a_fixture(lanes):
    assert await lanes.run(asyncio.sleep, 0, "value", session="alice") == "value"
"""

ANYIO = """
import anyio, asyncio, pytest
from trio_lanes.aio import open_lanes

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.fixture
async def lanes():
    async with open_lanes() as lanes:
        yield lanes

async def body():
    with anyio.move_on_after(0.001) as scope:
        await anyio.sleep(60)
    assert scope.cancelled_caught
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 0)
    return "value"

async def returns_anyway():
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        await asyncio.sleep(0.001)
    return "value"

@pytest.mark.anyio
async def test_a_fixture(lanes):
    assert await lanes.run(body, session="alice") == "value"
    with anyio.move_on_after(0.001) as scope:
        await lanes.run(anyio.sleep, 60)
    assert scope.cancelled_caught
    with anyio.move_on_after(0.001) as scope:
        assert await lanes.run(returns_anyway) == "value"
        await anyio.sleep(60)
    assert scope.cancelled_caught
    with pytest.raises(ExceptionGroup):
        async with anyio.create_task_group() as group:
            group.start_soon(lanes.run, anyio.sleep, 60)
            raise ValueError
    assert lanes.jobs() == []
"""


@pytest.mark.real_processes
@pytest.mark.parametrize(
    ("text", "options"),
    [
        pytest.param(
            PYTEST_ASYNCIO,
            ["-o", "asyncio_default_fixture_loop_scope=function"],
            id="pytest-asyncio",
            marks=pytest.mark.needs("pytest-asyncio"),
        ),
        pytest.param(ANYIO, ["-p", "no:asyncio"], id="anyio"),
    ],
)
def test_lanes_are_a_fixture_of_plugins(text: str, options: list[str], tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:trio", *options]
    done = subprocess.run(
        [*command, "test_it.py"], cwd=tmp_path, timeout=PATIENCE, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_ten_thousand_jobs_leave_nothing_behind() -> None:
    async def many(lanes: Lanes, number: int) -> None:
        for _ in range(number // 100):
            for n in range(100):
                lanes.submit_nowait(asyncio.sleep, 0, session=str(n))
            await lanes.wait_idle()

    async def main() -> None:
        async with open_lanes({"main": 8}) as lanes:
            await many(lanes, 1_000)
            gc.collect()
            before = len(gc.get_objects())
            await many(lanes, 10_000)
            gc.collect()
            assert len(gc.get_objects()) - before < 500

    asyncio.run(main())
