"""The parent's side and the worker's side of a served file, in one process."""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.command.test_supervisor import FakeChild
from tests.support.programs import PATIENCE
from trio_lanes.command import _children
from trio_lanes.command._exits import DONE, CommandError
from trio_lanes.command._served import ServedFile, serve_file
from trio_lanes.command._supervisor import supervise
from trio_lanes.command._worker import WorkerOptions, work
from trio_lanes.durable import MemoryStore, SqliteStore, open_durable_lanes
from trio_lanes.durable._sqlite import life_lock


async def echo(payload: Any) -> Any:
    return payload


async def test_a_supervisor_owns_the_file_and_its_workers_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"
    started: list[Sequence[str]] = []
    asked = trio.Event()
    child = FakeChild(os.getpid(), works=True, obeys=(signal.SIGTERM,))

    async def start(arguments: Sequence[str]) -> FakeChild:
        started.append(arguments)
        asked.set()
        await trio.lowlevel.checkpoint()
        return child

    monkeypatch.setattr("trio_lanes.command._supervisor.start_worker", start)
    options = WorkerOptions(application="app:lanes", grace=1, cancel_grace=1, store=path)
    codes: list[int] = []

    async def supervised() -> None:
        codes.append(await supervise(options, 1, 1.0, "info"))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervised)
            await asked.wait()
            (store,) = [one for one in started[0] if one.startswith("--store=")]
            (served,) = [one for one in started[0] if one.startswith("--served=")]
            assert store == f"--store=sqlite:{path}"
            socket = served.removeprefix("--served=")
            assert stat.S_IMODE(os.stat(os.path.dirname(socket)).st_mode) == 0o700
            async with ServedFile(path, socket).used():
                async with open_durable_lanes(SqliteStore(path), {"echo": echo}) as lanes:
                    assert "served" in repr(lanes._store)
                    assert await (await lanes.submit("echo", 7)).wait() == 7
                for other in (MemoryStore(), SqliteStore(tmp_path / "other.db")):
                    with pytest.raises(CommandError, match="and --store names"):
                        open_durable_lanes(other, {"echo": echo})
            signal.raise_signal(signal.SIGTERM)
    assert codes == [DONE]
    assert not await trio.Path(socket).exists()


@pytest.mark.parametrize("parent_dies", [True, False])
async def test_a_worker_of_a_served_file_holds_a_life_lock_until_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent_dies: bool
) -> None:
    path = tmp_path / "jobs.db"
    clocks: list[float] = []
    monkeypatch.setenv("TEST_JOBS", str(path))
    monkeypatch.setattr(_children, "end_by_clock", clocks.append)
    monkeypatch.setattr(_children, "LISTENERS_END_AFTER", PATIENCE)
    monkeypatch.setattr(life_lock, "_held", [])
    line, theirs = socket.socketpair()

    def lives() -> list[str]:
        return [one.name for one in tmp_path.iterdir() if ".life-" in one.name]

    with line:
        async with serve_file(path) as served:
            options = WorkerOptions(
                application="tests.command.app:served",
                grace=0,
                cancel_grace=1,
                line=theirs.detach(),
                store=path,
                served=served,
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work, options)
                said = await trio.to_thread.run_sync(line.makefile("r").readline)
                assert lives() == [f"jobs.db.life-{said.split()[1]}"]
                assert len(life_lock._held) == 1
                await trio.to_thread.run_sync(line.recv, 100)  # it is ready
                if parent_dies:
                    line.shutdown(socket.SHUT_RDWR)
                else:
                    signal.raise_signal(signal.SIGTERM)
    assert bool(lives()) is bool(clocks) is parent_dies
    os.close(life_lock._held.pop())
