"""Stores that do each call in Trio's thread, so that a life on virtual time is the same each time.

`in_loop` takes the threads out of the stores of this library: the writer does an act when it is
handed over, and what would run in a thread of Trio runs at once. Virtual time stands still
meanwhile, also while a server answers. All else is the code that users run.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from queue import Empty
from typing import Any
from unittest import mock

import attrs
import trio

from trio_lanes.durable import SqliteStore
from trio_lanes.durable._rules.engine_store import EngineStore
from trio_lanes.durable._sql.act_thread import ActThread, HandedAct
from trio_lanes.durable._sqlite.guest import host
from trio_lanes.durable.storage import MemoryNamespace, MemoryStorage, StorageStore


class AtOnce:
    """Takes the place of the queue of a writer's thread."""

    def __init__(self, writer: ActThread) -> None:
        self.writer = writer

    def put(self, act: HandedAct[Any] | None) -> None:
        if act is not None:
            self.writer._do_and_deliver([act])

    def get_nowait(self) -> HandedAct[Any] | None:
        raise Empty


def _start(writer: Any) -> None:
    writer._handed_over = AtOnce(writer)


async def _close(writer: Any) -> None:
    writer._closed = True
    writer._at_end = None
    with trio.CancelScope(shield=True):
        while writer._outstanding:
            await trio.lowlevel.checkpoint()


async def _run_sync(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return call(*args)


@contextmanager
def in_loop() -> Iterator[None]:
    """Let stores do each call in Trio's thread."""
    with (
        mock.patch.object(ActThread, "start", _start),
        mock.patch.object(ActThread, "close", _close),
        mock.patch("trio.to_thread.run_sync", _run_sync),
        mock.patch("trio.from_thread.run_sync", lambda call: call()),
    ):
        yield


@attrs.frozen
class Shared:
    """The data of a cluster."""

    another: Callable[[], EngineStore]
    jump: Callable[[float], None]


@asynccontextmanager
async def served_sqlite() -> AsyncIterator[Shared]:
    """A SQLite file, whose owner does the calls of all instances."""
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder, "jobs.db"), synchronous="NORMAL")

        def jump(seconds: float) -> None:
            store._offset += seconds

        async with host(store) as owner:
            yield Shared(owner.guest, jump)


@asynccontextmanager
async def over_storage() -> AsyncIterator[Shared]:
    """A storage in memory, of which each connection of an instance has an image of its own."""
    clock, ahead = trio.lowlevel.current_clock(), [0.0]
    memory = MemoryNamespace(lambda: clock.current_time() + sum(ahead))
    yield Shared(lambda: StorageStore(lambda me: MemoryStorage(memory)), ahead.append)
