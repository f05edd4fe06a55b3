"""What users' code of `trio_lanes.aio.agents` looks like to mypy and pyright: it is not run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import Any, assert_type

from trio_lanes import Job
from trio_lanes.aio import open_lanes
from trio_lanes.aio.agents import (
    ActionGate,
    Conversation,
    ConversationTurn,
    DurableInbox,
    DurableReceipt,
    DurableTurn,
    Emit,
    Feed,
    Inbox,
    Inboxes,
    MemoryTranscript,
    Receipt,
    RunRegistry,
    Settled,
    SharedRunRegistry,
    SharedTranscripts,
    ThreadLocks,
    ToolCall,
    ToolEvent,
    ToolResult,
    ToolRun,
    TranscriptStore,
    Turn,
    WhenBusy,
    inbox_handler,
    run_tools,
)
from trio_lanes.durable import DurableLanes


async def tool(emit: Emit) -> int:
    await emit({"piece": 1})
    return 5


async def handler(turn: Turn) -> int:
    assert_type(turn.take(), list[Any])
    assert_type(turn.job, Job[Any])
    async with turn.job.yield_slot():
        assert_type(await ActionGate(["a"]).wait(), list[ToolResult])
    async with run_tools([ToolCall("a", tool)], limit=3) as run:
        assert_type(run, ToolRun)
        async for event in run:
            assert_type(event, ToolEvent)
    return 5


def no_handler(turn: Turn) -> int:
    return 5


async def inboxes(registry: RunRegistry) -> None:
    async with open_lanes() as lanes:
        inbox = Inbox(lanes, "alice", handler, steers_first=False)
        Inbox(lanes, "alice", no_handler)  # type: ignore[arg-type]
        receipt = inbox.post("hello", when_busy=WhenBusy.INTERRUPT)
        assert_type(receipt, Receipt)
        assert_type(await receipt.settled(), Settled)
        assert_type(await inbox.abort("enough"), bool)
        assert_type(await inbox.stop(then="hold"), bool)
        assert_type(Inboxes(lanes, handler).post("alice", 5), Receipt)
        assert_type(await registry.abort_and_wait("alice"), bool)


async def durable_inboxes(lanes: DurableLanes) -> None:
    async def handler(turn: DurableTurn) -> str:
        assert_type(await turn.take(), list[Any])
        assert_type(await turn.approve("call"), ToolResult)
        await turn.run.emit("event")
        return "answer"

    inbox_handler(handler)
    inbox = DurableInbox(lanes, "alice", "answer")
    assert_type(await inbox.post("x"), DurableReceipt)
    async with SharedRunRegistry(lanes).running(inbox):  # type: ignore[arg-type]
        pass
    stores: list[TranscriptStore] = [SharedTranscripts(lanes), MemoryTranscript()]
    async with Conversation("thread", stores[0]).turn("x") as turn:
        assert_type(turn, ConversationTurn)
        await turn.append("x")


async def others(feed: Feed[str], locks: ThreadLocks) -> None:
    async for number, item in feed.read(after=3):
        assert_type(number, int)
        assert_type(item, str)
    async with locks.shared("key"):
        pass
