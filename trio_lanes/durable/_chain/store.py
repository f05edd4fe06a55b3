"""`StorageStore`: a store over a `Storage`: the rules of lanes, for any engine that has one."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Final, TypeVar, final

import trio

from .._contract.errors import StoreError
from .._contract.records import Opening
from .._rules.engine import Engine
from .._rules.engine_store import MAX_PAYLOAD, PATIENCE
from .._rules.queues import Queues
from .._sql.act_thread import ActThread
from .._sql.batching import BatchingStore
from .batches import StorageTables, TryAgainError, hint_of
from .storage import NO_HEAD, Storage, StorageError

T = TypeVar("T")

LOOKS_EVERY: Final = (2.0, 5.0)
"""Between which numbers of seconds a slow look follows the one before: a hint may be lost."""


@final
class StorageStore(BatchingStore):
    """A store over a storage.

    Args:
      connect: returns a new connection to the namespace, for an instance with a name, which is
        blank if it only looks. It is called for each instance, and for each look that reads very
        much.
      patience: seconds after which a call that got no answer raises `StoreUnavailableError`.
      max_payload: the largest payload, result or checkpoint, in bytes of its JSON text.
      make: whether to make the namespace if it is missing.
    """

    def __init__(
        self,
        connect: Callable[[str], Storage],
        *,
        patience: float = PATIENCE,
        max_payload: int = MAX_PAYLOAD,
        make: bool = True,
    ) -> None:
        super().__init__(max_payload, patience)
        self._connect: Final = connect
        self._name = "not opened yet"
        self._make: Final = make
        self._acts: StorageTables

    def __repr__(self) -> str:
        return f"<trio_lanes.durable.storage.StorageStore {self._name}>"

    @asynccontextmanager
    async def open(self, opening: Opening) -> AsyncIterator[None]:
        self._begin_open(opening)
        me = uuid.uuid4().hex[:16]
        storage = self._connect(me)
        self._name = storage.name
        try:
            engine, tables = await trio.to_thread.run_sync(self._begin, storage, me, opening)
            self._acts = tables
            writer = ActThread(storage.name, tables, engine, self.patience, self._announce)

            async def listen() -> None:
                await self._listen(storage, tables)

            async with self._working(writer, listen):
                yield
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(storage.close)

    def _begin(self, storage: Storage, me: str, opening: Opening) -> tuple[Engine, StorageTables]:
        """Connect, and write the lanes that the store lacks. Runs in a thread."""
        tables = StorageTables(storage, me, self._clock.current_time, self._renew_soon)
        tables.reads_homes = opening.affinity > 0

        def begin(now: float) -> Engine:
            if tables.batch == NO_HEAD and not self._make:
                raise StoreError(f"{storage.name} has no store: a worker makes it")
            engine = Engine(tables, opening)
            engine.now = now
            return engine

        return _in_a_batch(storage, tables, begin, write=True), tables

    async def _listen(self, storage: Storage, tables: StorageTables) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_slowly, tables)
            async with aclosing(storage.hints()) as hints:
                async for text in hints:
                    self._hear(tables, text)

    def _hear(self, tables: StorageTables, text: str | None) -> None:
        hint = None if text is None else hint_of(text)
        tables.hear(hint)
        if hint is None or hint.look:
            self._look_again()
        if hint is None or hint.news is None:
            self._wake_waiters()
        else:
            for id, end in hint.news:
                self._waiters.changed(id, end)

    async def _look_slowly(self, tables: StorageTables) -> None:
        while True:
            await trio.sleep(random.uniform(*LOOKS_EVERY))
            self._hear(tables, None)

    def _look(self, look: Callable[[Queues], T]) -> T:
        storage = self._connect("")
        tables = StorageTables(storage, "", self._clock.current_time, lambda: None)
        queues = Queues(tables, self._opening)

        def answer(now: float) -> T:
            queues.now = now
            return look(queues)

        try:
            return _in_a_batch(storage, tables, answer, write=False)
        finally:
            storage.close()


def _in_a_batch(
    storage: Storage, tables: StorageTables, call: Callable[[float], T], *, write: bool
) -> T:
    """Connect, and make a call in a batch of its own, with its time; return its result."""
    try:
        storage.open()
        while True:
            try:
                found = call(tables.begin(write=write))
                tables.commit(look=False, news=())
            except TryAgainError as error:
                tables.undo_acts([], error)
            else:
                return found
    except StorageError as error:
        raise tables.translated(error) from error
