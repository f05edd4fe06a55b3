"""The stage of the tests of durable inboxes: lanes over a store, and a handler that they steer."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_lanes.agents import DurableHandler, DurableInbox, DurableTurn, Settled, inbox_handler
from trio_lanes.durable import (
    DurableLanes,
    MemoryStore,
    RetryPolicy,
    Store,
    open_durable_lanes,
)


class DurableStage:
    """A handler that logs its turns and does what a test tells it, on lanes over one store."""

    def __init__(self, store: Store, clock: MockClock, pause: float = 0.0) -> None:
        self.store = store
        self.clock = clock
        self._pause = pause  # real seconds in which a notice of a server comes
        self._rounds = 1 if isinstance(store, MemoryStore) else 12  # it has no thread
        self.log: list[Any] = []
        self.turns: list[DurableTurn] = []
        self.special: dict[str, DurableHandler] = {}
        """Handlers of turns, by their first message."""
        self._gates: dict[str, trio.Event] = {}
        self.lanes: DurableLanes

    def gate(self, message: str) -> trio.Event:
        """Return the event that a turn waits for, if its first message begins with a gate."""
        return self._gates.setdefault(message, trio.Event())

    async def handler(self, turn: DurableTurn) -> Any:
        self.turns.append(turn)
        self.log.append(list(turn.messages))
        first = turn.messages[0]
        if str(first) in self.special:
            return await self.special[first](turn)
        if isinstance(first, str) and first.startswith("gate"):
            try:
                await self.gate(first).wait()
            except trio.Cancelled:
                self.log.append(f"{first} is cancelled")
                raise
        if "take" in str(first):
            self.log.append(("took", await turn.take()))
        if first == "fail" or (first == "fail once" and turn.run.attempt == 1):
            raise ValueError("no")
        return f"answer to {first}"

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[DurableLanes]:
        options.setdefault("retry", RetryPolicy(max_attempts=2, backoff=(0.0, 0.0)))
        handlers = {"answer": inbox_handler(self.handler)}
        async with open_durable_lanes(self.store, handlers, {"main": 4}, grace=0, **options) as (
            self.lanes
        ):
            yield self.lanes

    def inbox(self, **options: Any) -> DurableInbox:
        return DurableInbox(self.lanes, "alice", "answer", **options)

    async def settle(self) -> None:
        """Wait until nothing more happens without the passage of time."""
        for _ in range(self._rounds):
            if self._pause:
                await trio.to_thread.run_sync(time.sleep, self._pause)
            await wait_all_tasks_blocked()
            await self.lanes.pause_for("session:unused", 0)  # returns after all earlier calls
            await self.lanes.statistics()  # and this after all that look in another thread
        await wait_all_tasks_blocked()

    async def advance(self, seconds: float) -> None:
        """Let time pass, and wait until nothing more happens."""
        self.clock.jump(seconds)
        await self.settle()


def brief(settled: Settled) -> Any:
    """Return the kind of an outcome, with the result if it has one."""
    return settled.kind.value if settled.result is None else (settled.kind.value, settled.result)
