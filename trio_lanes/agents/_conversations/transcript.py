"""Where conversations are kept: an append-only log for each thread, of which messages are made.

A log consists of commits. A commit is what is written together: after a crash it is in the log
whole or not at all. It is a list of records, which are JSON objects. What they mean is said in
``_exchange``; a store only keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias, final

import attrs
import trio

from trio_lanes import LaneError

from .locks import ThreadLocks

Record: TypeAlias = dict[str, Any]
Commit: TypeAlias = list[Record]

Role: TypeAlias = Literal["user", "assistant", "tool"]
Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class TranscriptError(LaneError):
    """A message may not stand there, or what is stored is no conversation; nothing has changed."""


@final
@attrs.frozen
class Message:
    """One message of a conversation, as it is now. To be read, not to be changed."""

    role: Role
    """Who says it: ``"user"``, ``"assistant"`` or ``"tool"``."""
    content: Any
    """Its text, or whatever JSON value was given."""
    status: Status = "completed"
    """``"in_progress"``, ``"completed"`` or ``"incomplete"``. Of an answer: whether it goes on, is
    whole, or was cut off. Of a tool's result: incomplete if it stands in for one that never came.
    """
    id: str = ""
    """Unique in its thread, and always the same."""
    tool_calls: tuple[dict[str, Any], ...] = ()
    """Of an assistant's message: the calls that it asks for, each with an ``"id"``."""
    tool_call_id: str | None = None
    """Of a tool's message: the call that it answers."""
    usage: Any = None
    """Of an assistant's message: what it has cost, as it was given."""


class TranscriptStore(Protocol):
    """Keeps threads, each under its id; what a `Conversation` needs, and no more.

    A store belongs to one process. What two of its methods do at the same time must be as if
    they had been called one after the other.
    """

    @property
    def locks(self) -> ThreadLocks:
        """Its locks, by thread id; the same object every time. Conversations take them."""
        ...

    @property
    def live(self) -> set[str]:
        """The turns that run now; the same object every time, empty at first.

        Conversations keep it. A turn that has no end in the log and is not in here was cut off
        by a crash.
        """
        ...

    def check(self, thread_id: str) -> None:
        """Return if it can keep a thread of this id. Not a checkpoint.

        Raises:
          TypeError, ValueError: if it cannot.
        """
        ...

    async def load(self, thread_id: str, start: int = 0) -> Sequence[Commit]:
        """The commits of a thread but the first ``start``; none if there is no such thread.

        A checkpoint.

        Raises:
          TranscriptError: if what is stored cannot be read.
        """
        ...

    async def append(self, thread_id: str, commit: Commit) -> None:
        """Put ``commit`` at the end of the thread's log. A checkpoint.

        If this raises, be it `trio.Cancelled`, the log is as it was.
        """
        ...


@final
class MemoryTranscript:
    """A `TranscriptStore` in memory: gone with the object."""

    def __init__(self) -> None:
        self.locks: Final = ThreadLocks()
        self.live: Final[set[str]] = set()
        self._logs: Final[dict[str, list[Commit]]] = {}

    def __repr__(self) -> str:
        return f"<trio_lanes.agents.MemoryTranscript at {id(self):#x}, {len(self._logs)} threads>"

    def check(self, thread_id: str) -> None:
        """Return if ``thread_id`` is a string that is not blank; see `TranscriptStore.check`."""
        check_thread_id(thread_id)

    async def load(self, thread_id: str, start: int = 0) -> Sequence[Commit]:
        """See `TranscriptStore.load`."""
        check_thread_id(thread_id)
        await trio.lowlevel.checkpoint()
        return self._logs.get(thread_id, [])[start:]

    async def append(self, thread_id: str, commit: Commit) -> None:
        """See `TranscriptStore.append`."""
        check_thread_id(thread_id)
        await trio.lowlevel.checkpoint()
        self._logs.setdefault(thread_id, []).append(commit)


def check_thread_id(thread_id: object) -> str:
    """``thread_id``, if it is a string that is not blank.

    Raises:
      TypeError, ValueError: if it is not.
    """
    if not isinstance(thread_id, str):
        raise TypeError(f"a thread id must be a string, not {thread_id!r}")
    if not thread_id.strip():
        raise ValueError(f"a thread id must not be empty, got {thread_id!r}")
    return thread_id
