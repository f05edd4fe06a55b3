"""`SqlStore`: the calls of a store in a SQL database, whose acts one thread does."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import trio
from outcome import Outcome

from .._contract.act import NO_LOOKUPS, Lookups
from .._contract.errors import StoreUnavailableError
from .._rules.engine import Engine
from .._rules.engine_store import EngineStore
from .._rules.queues import Queues
from .act_thread import ActThread

T = TypeVar("T")


class SqlStore(EngineStore):
    """A store of which one connection does the acts, and another one the long looks."""

    def __init__(self, max_payload: int, patience: float) -> None:
        if not patience > 0:
            raise ValueError(f"patience must be a positive number of seconds, got {patience!r}")
        super().__init__(max_payload, patience)
        self.claims_last = True
        self._writer: ActThread | None = None
        self._one_reader: Final = trio.CapacityLimiter(1)

    @asynccontextmanager
    async def _working(
        self, writer: ActThread, listen: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[None]:
        """Do acts in a thread until the end of the block; ``listen`` hears of other processes."""
        self._writer = writer
        self._commits = writer.commits
        writer.start()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen)
                yield
                nursery.cancel_scope.cancel()
        finally:
            await writer.close()
            self._writer = None
            self._wake_waiters()  # tasks that wait for a job get StoreUnavailableError

    def _opened(self) -> ActThread:
        if self._writer is None:
            raise StoreUnavailableError(f"{self!r} is not open")
        return self._writer

    def _now(self) -> float | None:
        """Return the store's time; None: the beginning of a transaction finds it out."""
        return None

    def _transact(
        self, act: Callable[[Engine], T], ticket: str = "", lookups: Lookups = NO_LOOKUPS
    ) -> Coroutine[Any, Any, T]:
        return self._opened().act(act, self._now(), ticket, lookups=lookups)

    def _begin_act(
        self,
        act: Callable[[Engine], T],
        ticket: str,
        lookups: Lookups,
        tell: Callable[[Outcome[T]], None],
    ) -> bool:
        """Do the same for a function: see `ActThread.begin`."""
        return self._opened().begin(act, self._now(), ticket, lookups, tell)

    async def _read(self, look: Callable[[Queues], T], *, long: bool = False) -> T:
        writer = self._opened()
        if long:  # on a connection of its own, so that the writer does not wait for it
            return await trio.to_thread.run_sync(
                # a caller that is cancelled leaves it behind, and the next waits for its end
                self._look,
                look,
                abandon_on_cancel=True,
                limiter=self._one_reader,
            )
        return await writer.act(look, self._now(), write=False)

    @abstractmethod
    def _look(self, look: Callable[[Queues], T]) -> T:
        """Call ``look`` on one snapshot of the store, however long it takes. Runs in a thread."""
