"""A store that is away delays a durable turn, and fails none: at each of its writes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.away import AWAY_SECONDS, Absence, AwayStore
from trio_lanes.agents import (
    Conversation,
    DurableInbox,
    DurableTurn,
    SharedRunRegistry,
    SharedTranscripts,
    WhenBusy,
    inbox_handler,
)
from trio_lanes.durable import StoreUnavailableError, open_durable_lanes

# what a durable turn asks its store
WRITES = ("checkpoint", "take", "emit_event", "lend_slot", "regain_slot", "enqueue", "cancel")
IN_A_CONVERSATION = ("acquire", "write_log")
READS = ("queue_of", "receive", "log_page", "all_instances", "served")
ASKED = (*WRITES, *IN_A_CONVERSATION, *READS)


@pytest.mark.parametrize("seconds", AWAY_SECONDS)
@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("name", ASKED)
async def test_a_store_that_is_away_delays_a_turn_and_never_makes_it_a_failure(
    name: str, unknown: bool, seconds: float, autojump_clock: MockClock
) -> None:
    absence = Absence(name, seconds, unknown and name not in READS)
    store = AwayStore.made(absence)
    attempts: list[int] = []
    everything_posted = trio.Event()
    seen: list[Any] = []

    async def answer(turn: DurableTurn) -> list[Any]:
        if turn.messages == ["later"]:
            return ["later"]
        attempts.append(turn.run.attempt)
        await everything_posted.wait()
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
            absence.armed = True
            everything_posted.set()
            await wait_all_tasks_blocked()
        registry, is_decided = SharedRunRegistry(lanes), False
        while not is_decided:  # who is outside of the turn hears that the store is away
            with contextlib.suppress(StoreUnavailableError):
                is_decided = bool(await registry.submit("s", {"c": "yes"}, key="once"))
            await trio.sleep(0.5)
        settled = await receipt.settled()
        assert name in absence.asked
        assert absence.back_at is not None
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
        absence.armed = False
        await trio.sleep(100)
        assert not await inbox.is_busy()
        assert (await lanes.check()).problems == ()
