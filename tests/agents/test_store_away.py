"""A store that is away delays a durable turn, and fails none: at each of its writes."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_lanes.agents import (
    Conversation,
    DurableInbox,
    DurableTurn,
    SharedRunRegistry,
    SharedTranscripts,
    WhenBusy,
    inbox_handler,
)
from trio_lanes.durable import MemoryStore, StoreUnavailableError, open_durable_lanes

# what a durable turn asks its store
WRITES = ("checkpoint", "take", "emit_event", "lend_slot", "regain_slot", "enqueue", "cancel")
IN_A_CONVERSATION = ("acquire", "write_log")
READS = ("queue_of", "receive", "log_page", "all_instances", "served")
ASKED = (*WRITES, *IN_A_CONVERSATION, *READS)
AWAY = (1.0, 6.0, 60.0)
PATIENCE = 5.0


class AwayStore(MemoryStore):
    """A store that is away for some seconds from its first call with a name on."""

    def __init__(self, name: str, seconds: float, unknown: bool) -> None:
        super().__init__()
        self.name, self.seconds, self.unknown = name, seconds, unknown
        self.back_at: float | None = None
        self.asked: list[str] = []
        self.armed = False

    async def _away(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if not self.armed:
            return await call()
        self.asked.append(name)
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

    async def do(self, act: Any, ticket: str) -> Any:
        return await self._away(act.name, partial(MemoryStore.do, self, act, ticket))

    async def look(self, question: Any) -> Any:
        return await self._away(question.name, partial(MemoryStore.look, self, question))

    async def served(self, request: int) -> Any:
        return await self._away("served", partial(MemoryStore.served, self, request))

    async def receive(self, id: int, fence: int, after: int) -> Any:
        call = partial(MemoryStore.receive, self, id, fence, after)
        return await self._away("receive", call)


for _name in ("step", "join", "beat"):

    def _make(name: str) -> Any:
        async def call(self: AwayStore, *args: Any) -> Any:
            return await self._away(name, partial(getattr(MemoryStore, name), self, *args))

        return call

    setattr(AwayStore, _name, _make(_name))


@pytest.mark.parametrize("seconds", AWAY)
@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("name", ASKED)
async def test_a_store_that_is_away_delays_a_turn_and_never_makes_it_a_failure(
    name: str, unknown: bool, seconds: float, autojump_clock: MockClock
) -> None:
    store = AwayStore(name, seconds, unknown and name not in READS)
    attempts: list[int] = []
    seen: list[Any] = []

    async def answer(turn: DurableTurn) -> list[Any]:
        if turn.messages == ["later"]:
            return ["later"]
        attempts.append(turn.run.attempt)
        while not store.armed:
            await trio.sleep(0.1)
        await turn.checkpoint({"step": 1})
        async with Conversation("thread", transcripts).turn(*turn.messages) as exchange:
            await exchange.append("hello")
        taken = await turn.take()
        async with turn.run.yield_slot():
            await trio.sleep(0.1)
        decision = await turn.approve({"id": "c", "name": "delete"})
        seen.append((decision.kind, decision.value))
        turn.queue_message("later")  # posted at the end
        if name == "cancel":
            turn.abort("enough")
            await trio.sleep_forever()
        return [turn.checkpoint_data, taken]

    async with open_durable_lanes(store, {"answer": inbox_handler(answer)}) as lanes:
        transcripts = SharedTranscripts(lanes)
        inbox = DurableInbox(lanes, "s", "answer")
        async with transcripts.locks.exclusive("thread"):  # so the turn has to wait for it
            receipt = await inbox.post("first")
            steer = await inbox.post("second", when_busy=WhenBusy.STEER)
            store.armed = True
            await wait_all_tasks_blocked()
        registry, is_decided = SharedRunRegistry(lanes), False
        while not is_decided:  # who is outside of the turn hears that the store is away
            with contextlib.suppress(StoreUnavailableError):
                is_decided = bool(await registry.submit("s", {"c": "yes"}, key="once"))
            await trio.sleep(0.5)
        settled = await receipt.settled()
        assert name in store.asked and store.back_at is not None
        if name == "cancel":
            assert settled.kind == "cancelled"
        else:
            assert settled.kind == "ran", settled
            assert settled.result[0] == {"step": 1}
            assert settled.result[1][0] == "second"  # then what an attempt had posted at its end
            assert (await steer.settled()).kind == "steered"
        # when the lease is over, the turn is attempted anew, with what the store has of it
        assert len(attempts) <= (1 if seconds < 20 else 2)
        assert set(seen) == {("result", "yes")}
        store.armed = False
        while await inbox.is_busy():
            await trio.sleep(1.0)
        assert (await lanes.check()).problems == ()
