"""One SQLite file for the worker processes of a supervisor, which owns the file and serves it.

The socket is in a folder that only this user can enter.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from ..durable import SqliteStore, Store
from ..durable._sqlite.guest import host
from ..durable._wire.client import ServedStoreClient
from ..durable._wire.sockets import connect_unix, serve_unix
from ..durable._wire.stand_in import standing_in
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


@asynccontextmanager
async def served_by(path: Path | None, socket: str) -> AsyncIterator[None]:
    """Let the lanes of the application use the file that the supervisor serves."""

    def find(store: Store) -> Store:
        of_file = os.path.realpath(store.path) if isinstance(store, SqliteStore) else None
        if path is None or of_file != os.path.realpath(path):
            raise CommandError(f"the application works on {store!r}, and --store names {path}")
        return ServedStoreClient(lambda: connect_unix(socket), name=f"sqlite:{path}, served")

    with standing_in(find):
        yield
