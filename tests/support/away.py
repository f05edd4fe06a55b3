"""A store that is away for a while, from a call of a given name on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from trio_lanes.durable import MemoryStore, StoreUnavailableError

AWAY_SECONDS = (1.0, 6.0, 60.0)  # less than the patience of a store, more, and more than a lease
PATIENCE = 5.0


class Absence:
    """When the store is away: for some seconds from the first call with a name on, once armed.

    Args:
      unknown: whether that call is done, and only its answers are lost.
    """

    def __init__(self, name: str, seconds: float, unknown: bool) -> None:
        self.name, self.seconds, self.unknown = name, seconds, unknown
        self.back_at: float | None = None
        self.asked: set[str] = set()  # the names of all calls
        self.armed = False

    async def call(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call of the store, unless it is away."""
        if not self.armed:
            return await call()
        self.asked.add(name)
        if name == self.name and self.back_at is None:
            self.back_at = trio.current_time() + self.seconds
            if self.unknown:  # it is done, and its answer is lost
                await call()
        if self.back_at is not None and trio.current_time() < self.back_at:
            await trio.sleep(min(PATIENCE, self.back_at - trio.current_time()))
            error = StoreUnavailableError("the store is away")
            error.unknown = self.unknown
            raise error
        return await call()


class AwayStore(MemoryStore):
    """A connection to a store that may be away."""

    absence: Absence

    @classmethod
    def made(cls, absence: Absence) -> AwayStore:
        store = cls()
        store.absence = absence
        return store

    def another(self) -> AwayStore:
        other = AwayStore.made(self.absence)
        other._tables, other._open = self._tables, self._open
        return other

    async def do(self, act: Any, ticket: str) -> Any:
        return await self.absence.call(act.name, partial(MemoryStore.do, self, act, ticket))

    async def look(self, question: Any) -> Any:
        return await self.absence.call(question.name, partial(MemoryStore.look, self, question))


for _name in ("step", "join", "beat", "served", "receive"):

    def _make(name: str) -> Any:
        async def call(self: AwayStore, *args: Any) -> Any:
            return await self.absence.call(name, partial(getattr(MemoryStore, name), self, *args))

        return call

    setattr(AwayStore, _name, _make(_name))
