"""Jobs that run child processes: what cancelling does to these, on virtual time."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Awaitable, Callable
from functools import partial
from signal import SIGKILL, SIGTERM

import pytest
import trio
from trio.testing import MockClock
from trio.testing import wait_all_tasks_blocked as settle_down

from examples.howto.service import end_group
from tests.support.programs import PATIENCE
from tests.support.signals import hear
from trio_lanes import (
    Job,
    JobCancelledError,
    LaneResetError,
    Lanes,
    open_lanes,
    shutdown_on_signals,
)

pytestmark = pytest.mark.real_processes

# What it does when it is asked to end; then it says that it is ready for that.
# The signal may come while it still says so, and what is buffered cannot be written in a handler.
CHILD = """
import os, signal, sys, time
def asked(signum, frame):
    os.write(1, b"asked")
    if sys.argv[1] == "obedient":
        sys.exit()
signal.signal(signal.SIGTERM, asked)
os.write(1, b"ready")
while True:
    time.sleep(1000)
"""


class Child:
    """A job's child process, and what it says."""

    def __init__(self, kind: str, **options: Callable[[trio.Process], Awaitable[object]]) -> None:
        self._command = [sys.executable, "-S", "-c", CHILD, kind]
        self._options = options
        self._process: trio.Process | None = None
        self._began = trio.Event()
        self.said = b""

    async def run(self) -> None:
        """The body of the job."""
        async with trio.open_nursery() as nursery:
            self._process = await nursery.start(
                partial(
                    trio.run_process,
                    self._command,
                    stdout=subprocess.PIPE,
                    process_group=0,
                    **self._options,
                )
            )
            self._began.set()

    async def says(self, wanted: bytes) -> None:
        await self._began.wait()
        assert self._process is not None
        assert self._process.stdout is not None
        while wanted not in self.said:
            data = await self._process.stdout.receive_some()
            assert data, self.said
            self.said += data

    def exit_code(self) -> int | None:
        assert self._process is not None
        return self._process.returncode


async def open_and_start(
    nursery: trio.Nursery, child: Child, cancel_grace: float = 10
) -> Job[None]:
    """In lanes that signals end, a job whose child is ready to be asked to end."""
    lanes: Lanes = await nursery.start(_open_lanes, cancel_grace)
    job = lanes.submit_nowait(child.run)
    await child.says(b"ready")
    return job


async def _open_lanes(
    cancel_grace: float, task_status: trio.TaskStatus[Lanes] = trio.TASK_STATUS_IGNORED
) -> None:
    async with open_lanes() as lanes:
        task_status.started(lanes)
        await shutdown_on_signals(lanes, grace=20, cancel_grace=cancel_grace)


async def test_a_cancel_asks_a_child_process_to_end_and_waits_for_it(
    mock_clock: MockClock,
) -> None:
    child = Child("obedient")
    async with trio.open_nursery() as nursery:
        job = await open_and_start(nursery, child)
        await hear(SIGTERM)
        assert child.exit_code() is None  # the drain leaves it alone
        await hear(SIGTERM)
        await child.says(b"asked")
        await job.wait_done()
    assert child.exit_code() == 0
    assert type(job.exception) is JobCancelledError
    assert trio.current_time() == 0


async def test_the_end_of_the_grace_asks_a_child_process_to_end(mock_clock: MockClock) -> None:
    child = Child("obedient")
    async with trio.open_nursery() as nursery:
        job = await open_and_start(nursery, child)
        await hear(SIGTERM)
        mock_clock.jump(20)
        await child.says(b"asked")
    assert child.exit_code() == 0
    assert type(job.exception) is JobCancelledError


@pytest.mark.parametrize("how", ["as Trio does", "with its group"])
async def test_a_child_process_that_does_not_end_is_killed_after_five_seconds(
    how: str, mock_clock: MockClock
) -> None:
    child = (
        Child("stubborn") if how == "as Trio does" else Child("stubborn", deliver_cancel=end_group)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Trio's, of a child that it has to kill
        async with trio.open_nursery() as nursery:
            job = await open_and_start(nursery, child)
            await hear(SIGTERM)
            await hear(SIGTERM)
            await child.says(b"asked")
            await settle_down()
            mock_clock.jump(4.9)
            await settle_down()
            assert child.exit_code() is None
            mock_clock.jump(0.1)
            await job.wait_done()
    assert child.exit_code() == -SIGKILL
    assert type(job.exception) is JobCancelledError
    assert trio.current_time() == 5


async def test_a_child_that_outlives_the_cancel_grace_is_given_up_and_killed_all_the_same(
    mock_clock: MockClock,
) -> None:
    child = Child("stubborn", deliver_cancel=end_group)
    async with trio.open_nursery() as nursery:
        job = await open_and_start(nursery, child, cancel_grace=3)
        await hear(SIGTERM)
        await hear(SIGTERM)
        await child.says(b"asked")
        await settle_down()
        mock_clock.jump(3)
        await job.wait_done()
        assert type(job.exception) is LaneResetError
        assert child.exit_code() is None
        mock_clock.jump(2)
    assert child.exit_code() == -SIGKILL


async def test_the_children_of_a_child_process_end_with_its_group(mock_clock: MockClock) -> None:
    """A shell does not hand on what it is told."""
    reading, writing = os.pipe()
    async with trio.lowlevel.FdStream(reading) as lifeline, trio.open_nursery() as nursery:
        lanes: Lanes = await nursery.start(_open_lanes, 10)
        try:
            command = "echo ready; sleep 1000; true"
            lanes.submit_nowait(
                partial(
                    trio.run_process,
                    ["/bin/sh", "-c", command],
                    process_group=0,
                    stdout=writing,
                    deliver_cancel=end_group,
                )
            )
            assert await lifeline.receive_some() == b"ready\n"
        finally:
            os.close(writing)
        await hear(SIGTERM)
        await hear(SIGTERM)
        with trio.fail_after(PATIENCE):
            assert await lifeline.receive_some() == b""  # no process is left that has it
