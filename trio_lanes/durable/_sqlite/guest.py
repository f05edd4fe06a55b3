"""`SqliteHost`: one process owns a SQLite file, and does the calls of several workers on it.

Theory of operation:

* The host holds the lock of the file and has its only writer. It claims nothing itself.
* Each worker has a `Guest`: a store object with an engine and an incarnation of its own, whose acts
  are transactions of the host's writer. The rules of many instances hold, with leases.
* When the host opens the file, the host of every instance in it has ended, so none of them can call
  any more; but the bodies of their runs may go on: see `life_lock`.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import trio
from outcome import Outcome

from .._contract.act import PortionedAct
from .._contract.errors import StoreUnavailableError
from .._contract.records import Opening, StoreActivity
from .._rules.engine import Engine
from .._rules.engine_store import NO_LOOKUPS, EngineStore, Lookups
from .._rules.queues import Queues
from .life_lock import forget_life

if TYPE_CHECKING:
    from .store import SqliteStore

T = TypeVar("T")

HOST: Final = Opening(
    names=frozenset(),
    lanes={},
    max_crashes=math.inf,
    hold=False,
    result_ttl=0,
    lease_ttl=0,
    worker=False,
)
"""The opening of a host, which writes no lanes and no rules: its workers write these."""


@final
class SqliteHost:
    """The owner of a SQLite file for several workers. Only `SqliteStore.host` makes one."""

    def __init__(self, store: SqliteStore) -> None:
        self.store: Final = store

    def guest(self) -> Guest:
        """Return a store object for one worker; it is not open."""
        return Guest(self)


@final
class Guest(EngineStore):
    """The store object of one worker on the file of a host."""

    def __init__(self, host: SqliteHost) -> None:
        super().__init__(host.store.max_payload, host.store.patience)
        self.claims_last = True
        self._host: Final = host
        self._engine: Engine | None = None

    @asynccontextmanager
    async def open(self, opening: Opening) -> AsyncIterator[None]:
        self._engine = await self._host.store._transact(
            lambda engine: Engine(engine.tables, opening)
        )
        self._host.store.guests.append(self)
        try:
            yield
        finally:
            self._host.store.guests.remove(self)
            self._engine = None
            self._wake_waiters()  # tasks that wait for a job get StoreUnavailableError

    async def _transact(
        self, act: Callable[[Engine], T], ticket: str = "", lookups: Lookups = NO_LOOKUPS
    ) -> T:
        call, wake_others = self._of_host(act)
        result = await self._host.store._transact(call, ticket, lookups)
        wake_others()
        return result

    def begin(
        self, name: str, arguments: tuple[Any, ...], tell: Callable[[Outcome[Any]], None]
    ) -> bool:
        if name == "step":
            act, ticket, lookups = self._of_step(*arguments)
        elif name == "do" and not isinstance(arguments[0], PortionedAct):
            act, ticket, lookups = self._of_act(*arguments)
        else:
            return False
        call, wake_others = self._of_host(act)

        def told(outcome: Outcome[Any]) -> None:
            wake_others()
            tell(outcome)

        return self._host.store._begin_act(call, ticket, lookups, told)

    def _of_host(
        self, act: Callable[[Engine], T]
    ) -> tuple[Callable[[Engine], T], Callable[[], None]]:
        """Return an act as the host's engine does it, and what wakes the other workers after it."""
        mine = self._opened()
        elsewhere = False

        def call(host: Engine) -> T:
            nonlocal elsewhere
            # a step meets what other acts of the transaction have made ready
            mine.now, mine.work_ready = host.now, host.work_ready
            try:
                result = act(mine)
                host.accepted += mine.accepted
                host.news += mine.news
                host.work_ready = mine.work_ready
                elsewhere = mine.work_elsewhere
                return result
            finally:
                mine.forget_effects()

        def wake_others() -> None:
            if elsewhere:
                for guest in self._host.store.guests:
                    if guest is not self:
                        guest._look_again()

        return call, wake_others

    async def _read(self, look: Callable[[Queues], T], *, long: bool = False) -> T:
        self._opened()
        return await self._host.store._read(look, long=long)

    def activity(self) -> StoreActivity | None:
        return self._host.store.activity()

    async def declare_dead(self, instance: str) -> None:
        await super().declare_dead(instance)
        await trio.to_thread.run_sync(forget_life, self._host.store.path, instance)

    def _opened(self) -> Engine:
        if self._engine is None:
            raise StoreUnavailableError("the store is not open")
        return self._engine


@asynccontextmanager
async def host(store: SqliteStore) -> AsyncIterator[SqliteHost]:
    """Open a file as the owner that does the calls of several workers.

    Raises:
      StoreLockedError: if the file has a worker or a host already.
    """
    async with store.open_as(HOST, owner=True):
        yield SqliteHost(store)
