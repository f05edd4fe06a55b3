"""Links over Unix sockets: a message is a line of JSON, which has no line break in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, final

import trio

from .link import Link
from .server import ServedStore, serve

MAX_RECEIVED: Final = 256 * 1024


@final
class SocketLink:
    """A `Link` over a stream. Cancelling a `send` cuts it if a part of the message is sent."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream: Final = stream
        self._received = bytearray()
        self._searched = 0

    async def send(self, message: str) -> None:
        left = memoryview(message.encode() + b"\n")
        whole = len(left)
        try:
            while left:
                left = left[await self._stream.socket.send(left) :]
        except OSError as error:
            self._stream.socket.close()
            raise trio.BrokenResourceError from error
        except BaseException:
            if len(left) < whole:
                self._stream.socket.close()
            raise

    async def receive(self) -> str:
        while True:
            end = self._received.find(b"\n", self._searched)
            if end >= 0:
                message = self._received[:end].decode()
                del self._received[: end + 1]
                self._searched = 0
                return message
            self._searched = len(self._received)
            more = await self._stream.receive_some(MAX_RECEIVED)
            if not more:
                raise trio.EndOfChannel
            self._received += more


@asynccontextmanager
async def connect_unix(path: str) -> AsyncIterator[Link]:
    """Connect to the server at a path. Raise OSError if there is none."""
    async with await trio.open_unix_socket(path) as stream:
        yield SocketLink(stream)


async def serve_unix(
    path: str,
    make: Callable[[], ServedStore],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a store at a path, until this is cancelled.

    Args:
      path: of a socket that does not exist yet. Each process that can reach it can do anything
        with the store, so it belongs in a folder that only this user can enter.
      make: makes a store object for each connection.
    """
    with trio.socket.socket(trio.socket.AF_UNIX) as listening:
        await listening.bind(path)
        listening.listen()
        task_status.started()  # who connects from now on is served in a moment
        await trio.serve_listeners(partial(_serve, make), [trio.SocketListener(listening)])


async def _serve(make: Callable[[], ServedStore], stream: trio.SocketStream) -> None:
    async with stream:
        await serve(SocketLink(stream), make())
