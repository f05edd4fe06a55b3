"""Conversations and their stores, for asyncio.

The stores of this library serve both sides. One of the application's is asyncio's: each of its
verbs, and each entry and exit of a lock of its own, is awaited in a task of the loop of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Final, final

import trio

from ... import agents as of_trio
from .._bodies import to_trio
from .._bridge import blocks, call, in_asyncio, public_verbs, verbs
from .._durable import check_door
from .._guest import check_loop, this_task


@final
class ThreadLocks(of_trio.ThreadLocks):
    """A shared and exclusive lock for each key: `trio_lanes.agents.ThreadLocks`, for asyncio."""

    def _hold(self, key: Hashable, *, exclusive: bool) -> AbstractAsyncContextManager[None]:
        if trio.lowlevel.in_trio_task():
            return super()._hold(key, exclusive=exclusive)
        return _Held(self, key, exclusive)


@final
class _Held(AbstractAsyncContextManager[None]):
    """A lock that a task of asyncio's holds."""

    def __init__(self, locks: ThreadLocks, key: Hashable, exclusive: bool) -> None:
        self._locks: Final = locks
        self._key: Final = key
        self._exclusive: Final = exclusive

    async def __aenter__(self) -> None:
        check_loop()
        self._task = this_task()
        await call(self._locks._acquire, self._key, self._task, self._exclusive)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._locks._release(self._key, self._task)


@final
class SharedThreadLocks(of_trio.SharedThreadLocks):
    """The locks over all instances: `trio_lanes.agents.SharedThreadLocks`, for asyncio."""

    _check_lanes = staticmethod(check_door)


@final
@public_verbs
class MemoryTranscript(of_trio.MemoryTranscript):
    """A store of threads in memory: `trio_lanes.agents.MemoryTranscript`, for asyncio."""

    _locks_type = ThreadLocks


@final
@public_verbs
class JsonlTranscript(of_trio.JsonlTranscript):
    """A store of threads in a folder: `trio_lanes.agents.JsonlTranscript`, for asyncio."""

    _locks_type = ThreadLocks


@final
@public_verbs
class SharedTranscripts(of_trio.SharedTranscripts):
    """A store of threads for all instances: `trio_lanes.agents.SharedTranscripts`, for asyncio."""

    _locks_type = SharedThreadLocks


_OF_THIS_LIBRARY: Final = (
    of_trio.MemoryTranscript,
    of_trio.JsonlTranscript,
    of_trio.SharedTranscripts,
)


@final
@verbs("_commit")
class ConversationTurn(of_trio.ConversationTurn):
    """One turn of a conversation: `trio_lanes.agents.ConversationTurn`, for asyncio."""


@final
@blocks("turn")
@public_verbs
class Conversation(of_trio.Conversation):
    """One thread of messages in a store: `trio_lanes.agents.Conversation`, for asyncio.

    A store of the application's is asyncio's: ``load`` and ``append`` are coroutine functions, and
    its locks asynchronous context managers. Each call of them is a task of the loop.
    """

    _turn_type = ConversationTurn

    def __init__(self, thread_id: str, store: of_trio.TranscriptStore | None = None) -> None:
        super().__init__(thread_id, MemoryTranscript() if store is None else store)
        if not isinstance(self.store, _OF_THIS_LIBRARY):
            self._store = _StoreInTrio(self.store)


@final
class _StoreInTrio:
    """A store of the application's, as a store of Trio's."""

    def __init__(self, store: of_trio.TranscriptStore) -> None:
        self.live: Final = store.live
        self.check: Final = store.check
        self.load: Final = to_trio(store.load)
        self.append: Final = to_trio(store.append)
        self.locks: Final = _LocksInTrio(store.locks)
        self._reading: Final = getattr(store, "reading", None)

    def reading(self, thread_id: str) -> AbstractAsyncContextManager[object]:
        if self._reading is None:
            return self.locks.shared(thread_id)
        return _block_in_trio(self._reading(thread_id))


@final
class _LocksInTrio:
    """The locks of such a store: those of this library are Trio's as well."""

    def __init__(self, locks: of_trio.TranscriptLocks) -> None:
        ours = isinstance(locks, of_trio.ThreadLocks | of_trio.SharedThreadLocks)
        self._locks: Final = locks
        self._in_trio: Final = (lambda block: block) if ours else _block_in_trio

    def shared(self, key: str) -> AbstractAsyncContextManager[object]:
        return self._in_trio(self._locks.shared(key))

    def exclusive(self, key: str) -> AbstractAsyncContextManager[object]:
        return self._in_trio(self._locks.exclusive(key))


@asynccontextmanager
async def _block_in_trio(block: AbstractAsyncContextManager[object]) -> AsyncIterator[None]:
    """Hold asyncio's ``block`` in a task of Trio's; its entry and its exit are a task each."""
    await in_asyncio(block.__aenter__)
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await in_asyncio(block.__aexit__, None, None, None)
