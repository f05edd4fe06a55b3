"""`Link`: a connection that carries messages between an instance and the server of its store."""

from __future__ import annotations

from typing import Final, Protocol

import trio

CUT: Final = (trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel)
"""What the ends of a link raise when it is cut."""


class Link(Protocol):
    """One connection. Messages may be lost, late or doubled; none is changed."""

    async def send(self, message: str) -> None:
        """Send a message. One task sends at a time.

        Raises:
          trio.BrokenResourceError, trio.ClosedResourceError: if the connection is cut.
        """

    async def receive(self) -> str:
        """Wait for a message, and return it. Raise as `send` does; also `trio.EndOfChannel`."""
