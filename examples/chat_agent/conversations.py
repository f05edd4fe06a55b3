"""Where conversations are kept between turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from .model import Message


class Conversations:
    """The message history of every session; in memory here, behind an interface that may wait.

    It has no lock, and needs none: `load`, change, `save` is done only inside a job of the
    session, and of those there is one at a time. With two at once, the later `save` would
    silently undo the earlier one.
    """

    def __init__(self) -> None:
        self._saved: Final[dict[str, tuple[Message, ...]]] = {}

    async def load(self, session: str) -> list[Message]:
        """A copy of what was saved last; a checkpoint, as a database would be."""
        await trio.lowlevel.checkpoint()
        return list(self._saved.get(session, ()))

    async def save(self, session: str, messages: Sequence[Message]) -> None:
        """Replace what is kept of the session; a checkpoint, before anything has changed."""
        await trio.lowlevel.checkpoint()
        self._saved[session] = tuple(messages)

    def __contains__(self, session: str) -> bool:
        return session in self._saved

    def transcripts(self) -> dict[str, tuple[Message, ...]]:
        """Everything, for a look from outside."""
        return dict(self._saved)
