"""`MemoryStore`: a store in memory, for tests on virtual time.

It behaves as a store of many instances does: with leases, and with several instances over the same
data. The data live as long as the object. So a test can let an instance crash and open another
instance over the same data.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar, final

import trio

from .._contract.errors import StoreUnavailableError
from .._contract.records import Opening
from .._rules.commits import Commits
from .._rules.engine import Engine, is_refusal
from .._rules.engine_store import MAX_PAYLOAD, NO_LOOKUPS, EngineStore, Lookups
from .._rules.queues import Queues
from .tables import MemoryTables

T = TypeVar("T")


@final
class MemoryStore(EngineStore):
    """A store in memory, for tests. Its time is Trio's clock, so it must not outlive a `trio.run`.

    Args:
      max_payload: the largest payload, result or checkpoint, in bytes of its JSON text.
    """

    def __init__(self, *, max_payload: int = MAX_PAYLOAD) -> None:
        super().__init__(max_payload)
        self._tables = MemoryTables()
        self._open: list[MemoryStore] = []  # all stores that are open over these tables
        self._engine: Engine | None = None

    def another(self) -> MemoryStore:
        """Return a store for another instance, over the same data."""
        other = MemoryStore(max_payload=self.max_payload)
        other._tables = self._tables
        other._open = self._open
        return other

    @asynccontextmanager
    async def open(self, opening: Opening) -> AsyncIterator[None]:
        self._engine = Engine(self._tables, opening)
        self._commits = Commits()
        self._open.append(self)
        try:
            yield
        finally:
            self._open.remove(self)
            self._engine = None
            self._wake_waiters()  # tasks that wait for a job get StoreUnavailableError

    def jump(self, seconds: float) -> None:
        """Set the clock of the store ahead, for all instances over the same data."""
        self._tables.ahead += seconds

    async def _transact(
        self, act: Callable[[Engine], T], ticket: str = "", lookups: Lookups = NO_LOOKUPS
    ) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        engine = self._opened()
        try:
            result = engine.once(ticket, act)
        except Exception as error:
            if is_refusal(error):
                engine.keep_refusal(ticket, error)
            raise
        finally:
            self._tables.commit_answers()  # nothing is undone
        self._commits.made += 1
        for store in self._open:
            elsewhere = store is not self and engine.work_elsewhere
            store._announce(engine.accepted, engine.news, engine.work_ready or elsewhere)
        engine.forget_effects()
        await trio.lowlevel.cancel_shielded_checkpoint()
        return result

    async def _read(self, look: Callable[[Queues], T], *, long: bool = False) -> T:
        await trio.lowlevel.checkpoint()
        return look(self._opened())

    def _opened(self) -> Engine:
        """Return the engine, at the present time."""
        if self._engine is None:
            raise StoreUnavailableError("the store is not open")
        self._engine.now = trio.current_time() + self._tables.ahead
        return self._engine
