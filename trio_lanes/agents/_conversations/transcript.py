"""The stores of conversations: an append-only log for each thread.

A log is a list of commits. A commit is written atomically: after a crash, the log has all of it or
none of it. A commit is a list of records, and a record is a JSON object. The module ``exchange``
gives records their meaning; a store only keeps them.
"""

from __future__ import annotations

import os
from collections.abc import MutableSet, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias, final

import attrs
import trio

from trio_lanes import LaneError

from .locks import ThreadLocks
from .recent import RecentThreads

Record: TypeAlias = dict[str, Any]
Commit: TypeAlias = list[Record]

Role: TypeAlias = Literal["user", "assistant", "tool"]
Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class TranscriptError(LaneError):
    """A message is not allowed at its place, or stored data is not a conversation.

    Nothing has changed.
    """


@final
class TranscriptLockedError(TranscriptError):
    """The folder of a `JsonlTranscript` belongs to another object, of this or another process.

    Attributes:
      folder: the folder.
      pid: the id of the owner's process, if it is known.
    """

    def __init__(self, folder: Path, pid: int | None) -> None:
        who = {None: "another process", os.getpid(): "another object of this process"}
        super().__init__(
            f"{str(folder)!r} is in use by {who.get(pid, f'process {pid}')}; a folder of "
            "transcripts belongs to one store object of one process"
        )
        self.folder: Final = folder
        self.pid: Final = pid


@final
@attrs.frozen
class Message:
    """A snapshot of one message of a conversation. Do not change it."""

    role: Role
    """The author: ``"user"``, ``"assistant"`` or ``"tool"``."""
    content: Any
    """The text, or another JSON value."""
    status: Status = "completed"
    """``"in_progress"``, ``"completed"`` or ``"incomplete"``. An answer is incomplete if it was cut
    off. The message of a tool is incomplete if it stands for a result that never came.
    """
    id: str = ""
    """The id of the message: unique in its thread, and constant."""
    tool_calls: tuple[dict[str, Any], ...] = ()
    """The calls that a message of the assistant asks for, each with an ``"id"``."""
    tool_call_id: str | None = None
    """The id of the call that a message of a tool answers."""
    usage: Any = None
    """The usage of a message of the assistant, as the application gave it."""


class TranscriptLocks(Protocol):
    """Shared and exclusive locks by thread id: `ThreadLocks`, or `SharedThreadLocks`."""

    def shared(self, key: str) -> AbstractAsyncContextManager[object]:
        """Hold ``key`` together with other tasks that share it."""
        ...

    def exclusive(self, key: str) -> AbstractAsyncContextManager[object]:
        """Hold ``key`` alone."""
        ...


class TranscriptStore(Protocol):
    """The interface of a store of threads, as `Conversation` uses it.

    A store may have a method ``reading(thread_id)``, in whose block a thread is read in place of
    that of the shared lock. A store belongs to one process, except `SharedTranscripts`. Concurrent
    calls of its methods must have the same effect as calls one after the other.
    """

    @property
    def locks(self) -> TranscriptLocks:
        """The locks by thread id, always the same object. Conversations acquire them."""
        ...

    @property
    def live(self) -> MutableSet[str]:
        """The ids of the turns that run now: always the same object, empty at first.

        Conversations maintain it. If the log has no end of a turn and this set does not have its
        id, a crash cut the turn off.
        """
        ...

    def check(self, thread_id: str) -> None:
        """Return if the store can keep a thread with this id; otherwise raise. Not a checkpoint.

        Raises:
          TypeError, ValueError: if the id is not valid in this store.
        """
        ...

    async def load(self, thread_id: str, start: int = 0) -> Sequence[Commit]:
        """Return the commits of a thread from index ``start``; none if there is no such thread.

        A checkpoint.

        Raises:
          TranscriptError: if the stored data cannot be read.
        """
        ...

    async def append(self, thread_id: str, commit: Commit) -> None:
        """Append ``commit`` to the log of the thread. A checkpoint.

        If this raises, even `trio.Cancelled`, the log has not changed.
        """
        ...


class MemoryTranscript:
    """A `TranscriptStore` in memory; its threads are lost with the object."""

    _locks_type: ClassVar[type[ThreadLocks]] = ThreadLocks

    def __init__(self) -> None:
        self.locks: Final = self._locks_type()
        self.live: Final[set[str]] = set()
        self._logs: Final[dict[str, list[Commit]]] = {}
        self._recent: Final[RecentThreads[Any]] = RecentThreads()

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
    """Return ``thread_id`` if it is a string that is not blank; otherwise raise.

    Raises:
      TypeError: if it is not a string.
      ValueError: if it is blank.
    """
    if not isinstance(thread_id, str):
        raise TypeError(f"a thread id must be a string, not {thread_id!r}")
    if not thread_id.strip():
        raise ValueError(f"a thread id must not be empty, got {thread_id!r}")
    return thread_id
