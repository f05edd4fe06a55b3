"""What users' code of `trio_lanes.agents` looks like to mypy and pyright: it is not run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, assert_type

from trio_lanes import open_lanes
from trio_lanes.agents import (
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
    InboxStatistics,
    JsonlTranscript,
    MemoryTranscript,
    Message,
    Overflow,
    Receipt,
    Registered,
    Run,
    RunRegistry,
    RunStatus,
    SendRefused,
    SendResult,
    Settled,
    SharedRunRegistry,
    ThreadLocks,
    ToolCall,
    ToolEvent,
    ToolResult,
    ToolRun,
    TranscriptLocks,
    TranscriptStore,
    Turn,
    WhenBusy,
    check_transition,
    inbox_handler,
    run_tools,
)
from trio_lanes.durable import DurableLanes


class PlainRun:
    """Attributes are enough."""

    is_streaming = True
    is_compacting = False

    def queue_message(self, message: str) -> bool:
        return True

    def abort(self, reason: str | None = None) -> None: ...


class PropertyRun:
    """So are properties."""

    @property
    def is_streaming(self) -> bool:
        return True

    @property
    def is_compacting(self) -> bool:
        return False

    def queue_message(self, message: object, /) -> bool:
        return True

    def abort(self, reason: str | None = None) -> None: ...


class DeafRun:
    is_streaming = True
    is_compacting = False

    def abort(self, reason: str | None = None) -> None: ...


async def runs(registry: RunRegistry) -> None:
    assert_type(registry.register("alice", PlainRun()), Registered)
    with registry.running("alice", PropertyRun()) as registered:
        assert_type(registered, Registered)
    registry.register("alice", DeafRun())  # type: ignore[arg-type]
    assert_type(registry.get("alice"), Run | None)
    assert_type(registry.active(), dict[str, Run])
    sent = registry.send("alice", "hello")
    assert_type(sent, SendResult)
    assert_type(sent.reason, SendRefused | None)
    assert_type(await registry.wait_ended("alice"), bool)
    assert_type(await registry.abort_and_wait("alice", timeout=1), bool)
    check_transition("queued", RunStatus.IN_PROGRESS)


async def conversations(folder: Path) -> None:
    stores: list[TranscriptStore] = [MemoryTranscript(), JsonlTranscript(folder)]
    conversation = Conversation("alice", stores[0])
    async with conversation.turn("hello", [{"image": "…"}]) as turn:
        assert_type(turn, ConversationTurn)
        assert_type(turn.history, tuple[Message, ...])
        assert_type(turn.prompt, tuple[Message, ...])
        assert_type(turn.messages, tuple[Message, ...])
        turn.append("text")
        assert_type(await turn.call([{"id": "a"}, "b"]), None)
        await turn.result("a", 5)
        await turn.append(5)  # type: ignore[arg-type]
        await turn.finish(usage={"tokens": 5})
    (message,) = await conversation.messages()
    assert_type(message.role, Literal["user", "assistant", "tool"])
    assert_type(message.status, Literal["in_progress", "completed", "incomplete"])
    assert_type(message.content, Any)
    assert_type(await conversation.fork("bob"), Conversation)
    assert_type(await conversation.merge(conversation), None)
    assert_type(conversation.store.locks, TranscriptLocks)
    async with conversation.store.locks.exclusive("alice"):
        pass
    locks = MemoryTranscript().locks
    assert_type(locks, ThreadLocks)
    async with locks.shared("alice"), locks.exclusive(("bob", 1)):
        pass


async def tool(emit: Emit) -> int:
    await emit({"piece": 1})
    return 5


def no_tool(emit: Emit) -> int:
    return 5


async def tools() -> None:
    calls = [ToolCall("a", tool), ToolCall("b", tool, serial_group=1, final=True)]
    ToolCall("a", no_tool)  # type: ignore[arg-type]
    async with run_tools(calls, limit=3, order="completion") as run:
        assert_type(run, ToolRun)
        async for event in run:
            assert_type(event, ToolEvent)
            assert_type(event.kind, Literal["output", "result", "error", "cancelled"])
        assert_type(run.cancel("a"), bool)
    assert_type(run.results, list[ToolResult])
    assert_type(run.results[0].kind, Literal["result", "error", "cancelled"])
    run_tools(calls, order="random")  # type: ignore[arg-type]
    gate = ActionGate([*calls, {"id": "c"}, "d"])
    gate.submit({"a": 1})
    assert_type(await gate.wait(), list[ToolResult])


async def handler(turn: Turn) -> int:
    assert_type(turn.take(), list[Any])
    with turn.compacting():
        turn.is_streaming = True
    run: Run = turn
    assert_type(run.queue_message("x"), bool)
    return len(turn.messages)


def no_handler(turn: Turn) -> int:
    return 5


async def inboxes() -> None:
    async with open_lanes() as lanes:
        inbox = Inbox(lanes, "alice", handler, cap=5, overflow=Overflow.DROP_OLDEST)
        Inbox(lanes, "alice", no_handler)  # type: ignore[arg-type]
        receipt = inbox.post({"any": "thing"}, when_busy=WhenBusy.COLLECT, id=1, group=("a", 1))
        assert_type(receipt, Receipt)
        assert_type(await receipt.settled(), Settled)
        assert_type(await inbox.abort("enough", timeout=5), bool)
        assert_type(await inbox.stop("hold", reason="enough", timeout=5), bool)
        await inbox.stop("pause")  # type: ignore[arg-type]
        inbox.hold()
        assert_type((inbox.is_held, receipt.is_held), tuple[bool, bool])
        inbox.post("x", expected_turn=5)  # type: ignore[arg-type]
        assert_type(inbox.statistics(), InboxStatistics)
        assert_type(inbox.turn, Turn | None)
        assert_type(receipt.position, int | None)
        assert_type(receipt.edit("x"), bool)
        assert_type(receipt.cancel("why"), bool)
        inboxes = Inboxes(lanes, handler, hold_on_failure=True, steers_first=False)
        assert_type(await inboxes.stop("alice", "clear"), bool)
        assert_type(inboxes.held, list[str])
        assert_type(inboxes.post("alice", 5, when_busy=WhenBusy.ROLLBACK), Receipt)
        assert_type(inboxes.turn("alice"), Turn | None)
        assert_type(inboxes.statistics(), InboxStatistics)


async def durable_inboxes(lanes: DurableLanes) -> None:
    async def handler(turn: DurableTurn) -> str:
        assert_type(await turn.take(), list[Any])
        assert_type(turn.ids, list[str])
        run: Run = turn
        assert_type(run.queue_message("x"), bool)
        assert_type(await turn.approve({"id": "c"}, timeout=5), ToolResult)
        async with SharedRunRegistry(lanes).running(turn):
            turn.is_streaming = True
        return "answer"

    inbox = DurableInbox(lanes, "alice", "answer", overflow=Overflow.DROP_OLDEST)
    inbox_handler(handler)
    receipt = await inbox.post({"any": "thing"}, when_busy=WhenBusy.COLLECT, id="1", group="a")
    assert_type(receipt, DurableReceipt)
    assert_type(await receipt.settled(), Settled)
    assert_type(await receipt.outcome(), Settled | None)
    assert_type(await receipt.position(), int | None)
    assert_type(await receipt.edit({"any": "other"}), bool)
    assert_type(await inbox.waiting(), list[DurableReceipt])
    await inbox.post("x", id=5)  # type: ignore[arg-type]


async def feeds() -> None:
    feed: Feed[str] = Feed(keep=5)
    assert_type(feed.publish("x"), int)
    feed.publish(5)  # type: ignore[arg-type]
    async for number, item in feed.read(after=3):
        assert_type(number, int)
        assert_type(item, str)
    assert_type(feed.since(3), list[str])
