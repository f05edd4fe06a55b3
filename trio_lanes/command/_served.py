"""One SQLite file for the worker processes of a supervisor, which owns the file and serves it.

The socket is in a folder that only this user can enter.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Final, final

import trio

from ..durable import SqliteStore, Store
from ..durable._sqlite.guest import host
from ..durable._sqlite.life_lock import forget_life, hold_life
from ..durable._wire.client import ServedStoreClient
from ..durable._wire.sockets import connect_unix, serve_unix
from ..durable._wire.substitute import substituted
from ._exits import CommandError


@asynccontextmanager
async def serve_file(path: Path) -> AsyncIterator[str]:
    """Own a SQLite file and serve it to processes of this user; the value is the socket's path."""
    async with host(SqliteStore(path)) as owner:
        with tempfile.TemporaryDirectory(prefix="trio-lanes-") as folder:
            socket = os.path.join(folder, "store")
            async with trio.open_nursery() as nursery:
                await nursery.start(serve_unix, socket, owner.guest)
                yield socket
                nursery.cancel_scope.cancel()


@cache  # an application of asyncio is found in one run of Trio, and opened in another
def served_file(path: Path | None, socket: str) -> ServedFile:
    """Return the file that the supervisor of this process serves: the same for all of it."""
    return ServedFile(path, socket)


@final
class ServedFile:
    """The file that the supervisor of this process serves.

    Args:
      path: the file, as the option ``--store`` names it; None: there was no such option.
      socket: the socket at which it is served.
    """

    def __init__(self, path: Path | None, socket: str) -> None:
        self._path: Final = path
        self._socket: Final = socket
        self._clients: Final[list[ServedStoreClient]] = []
        self._lives: Final[list[str]] = []
        self._is_gone = False

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        """Let the lanes of the application, in this block, use it."""
        with substituted(self._find):
            yield
        # else its file says when this has ended; that is so in a process of its own alone
        if self._path is not None and not self._is_gone:  # pragma: no branch
            forget_life(self._path, *self._lives)

    def _find(self, store: Store) -> Store:
        of_file = os.path.realpath(store.path) if isinstance(store, SqliteStore) else None
        if self._path is None or of_file != os.path.realpath(self._path):
            raise CommandError(
                f"the application works on {store!r}, and --store names {self._path}"
            )
        client = ServedStoreClient(
            lambda: connect_unix(self._socket), name=f"sqlite:{self._path}, served"
        )
        self._clients.append(client)
        return client

    def joins(self, incarnation: str) -> None:
        """Note that this process is going to be an incarnation in the file."""
        assert self._path is not None
        hold_life(self._path, incarnation)
        self._lives.append(incarnation)

    def is_gone(self) -> None:
        """Let all calls fail at once from now on: the supervisor has ended."""
        self._is_gone = True
        for client in self._clients:
            client.give_up("the parent of this process, which served it, has ended")
