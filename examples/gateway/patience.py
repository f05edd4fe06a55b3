"""Transcripts whose store may be away for a while: a turn asks it again, and does not fail.

A folder is away while its disk is full or cannot be read, a shared store while it cannot be
reached. What the store may have done is its own affair: a shared one repeats it until its
lease is over.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

import trio

from trio_lanes import JobCancelledError
from trio_lanes.agents import TranscriptStore
from trio_lanes.durable import LockLostError, StoreError, StoreUnavailableError

logger: Final = logging.getLogger(__name__)
T = TypeVar("T")
Commit = list[dict[str, Any]]
AGAIN_SECONDS: Final = 1.0
# what a store raises that is away, or whose lease is over: nothing that ends a response
AWAY: Final = (StoreError, LockLostError, JobCancelledError, OSError)


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call of a store, again while it is away and has done nothing."""
    is_told = False
    while True:
        try:
            return await call()
        except (StoreUnavailableError, OSError) as error:
            if isinstance(error, StoreUnavailableError) and error.unknown:
                raise
            if not is_told:
                logger.warning("a turn waits for its store: %s", error)
            is_told = True
        await trio.sleep(AGAIN_SECONDS)


class Patient:
    """The transcripts of a turn. Whoever is not patient uses ``store`` itself."""

    def __init__(self, store: TranscriptStore) -> None:
        self._store: Final = store
        self.locks: Final = _Locks(store)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def load(self, thread_id: str, start: int = 0) -> Sequence[Commit]:
        return await insist(partial(self._store.load, thread_id, start))

    async def append(self, thread_id: str, commit: Commit) -> None:
        await insist(partial(self._store.append, thread_id, commit))


class _Locks:
    """The locks of the store, which are entered again while it is away."""

    def __init__(self, store: TranscriptStore) -> None:
        self._store: Final = store

    def shared(self, key: str) -> AbstractAsyncContextManager[object]:
        return self._held(partial(self._store.locks.shared, key))

    def exclusive(self, key: str) -> AbstractAsyncContextManager[object]:
        return self._held(partial(self._store.locks.exclusive, key))

    @asynccontextmanager
    async def _held(self, lock: Callable[[], Any]) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await insist(lambda: stack.enter_async_context(lock()))
            yield
