"""One SQLite file for the worker processes of a supervisor, which owns the file and serves it.

The socket is in a folder that only this user can enter.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, final

import trio

from ..durable import SqliteStore, Store, StoreError
from ..durable._sqlite.guest import SqliteHost, host
from ..durable._wire.client import ServedStoreClient
from ..durable._wire.sockets import connect_unix, serve_unix
from ..durable._wire.stand_in import standing_in
from ._exits import CommandError

logger: Final = logging.getLogger("trio_lanes.command")

NOT_BURIED: Final = (
    "the jobs of process %d could not be given back, which the end of its lease does: %s"
)


@final
class ServedFile:
    """A file that this process owns and serves.

    Attributes:
      socket: the path of the socket.
    """

    def __init__(self, owner: SqliteHost, socket: str) -> None:
        self._owner: Final = owner
        self.socket: Final = socket

    async def bury(self, pid: int) -> None:
        """Give back at once what a process ran that has ended."""
        try:
            await self._owner.bury(pid)
        except StoreError as error:
            logger.error(NOT_BURIED, pid, error)


@asynccontextmanager
async def serve_file(path: Path) -> AsyncIterator[ServedFile]:
    """Own a SQLite file, and serve it to the processes of this user that know the socket."""
    async with host(SqliteStore(path)) as owner:
        with tempfile.TemporaryDirectory(prefix="trio-lanes-") as folder:
            socket = os.path.join(folder, "store")
            async with trio.open_nursery() as nursery:
                await nursery.start(serve_unix, socket, owner.guest)
                yield ServedFile(owner, socket)
                nursery.cancel_scope.cancel()


@asynccontextmanager
async def served_by(path: Path | None, socket: str) -> AsyncIterator[None]:
    """Let the lanes of the application use the file that the supervisor serves."""

    def find(store: Store) -> Store:
        if not isinstance(store, SqliteStore) or path is None or not _same(store.path, path):
            raise CommandError(f"the application works on {store!r}, and --store names {path}")
        return ServedStoreClient(lambda: connect_unix(socket), name=f"sqlite:{path}, served")

    with standing_in(find):
        yield


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
