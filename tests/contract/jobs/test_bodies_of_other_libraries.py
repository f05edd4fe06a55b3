"""Bodies of asyncio, by trio-asyncio, and of anyio, in lanes of a Trio application."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from trio.testing import MockClock

from tests.support.programs import PATIENCE, ROOT
from trio_lanes import JobTimeoutError, LaneDeadlockError, current_job, open_lanes


@pytest.mark.real_processes
def test_asyncio_bodies_run_by_trio_asyncio() -> None:
    tests = Path(__file__).with_name("bodies_by_trio_asyncio.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr


async def test_anyio_bodies_run_as_they_are(autojump_clock: MockClock) -> None:
    async def child(seconds: float, *, task_status: anyio.abc.TaskStatus[str]) -> None:
        task_status.started(f"{current_job()}")
        await anyio.sleep(seconds)

    async def body(user: str) -> str:
        async with anyio.create_task_group() as tasks:
            assert await tasks.start(child, 1) == f"{current_job()}"
            with anyio.move_on_after(0.5):
                await anyio.sleep_forever()
            tasks.cancel_scope.cancel()
        return await anyio.to_thread.run_sync(anyio.from_thread.run, echo, user)

    async def echo(user: str) -> str:
        return user

    async def again() -> None:
        await lanes.run(body, "nested", session="ann")

    async with open_lanes({"main": 2}) as lanes:
        jobs = [lanes.submit_nowait(body, user, session=user) for user in ("ann", "bob")]
        assert [await job.wait() for job in jobs] == ["ann", "bob"]
        with pytest.raises(JobTimeoutError):
            await lanes.run(anyio.sleep_forever, timeout=1)
        with pytest.raises(LaneDeadlockError):
            await lanes.run(again, session="ann")
