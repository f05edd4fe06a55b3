"""What is asyncio's own in `trio_lanes.aio.agents`; all else is in the contract of tests/agents."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from inspect import iscoroutinefunction
from typing import Any

import pytest
import trio

from tests.support.loops import ALL_LOOPS
from trio_lanes import JobCancelledError, LanesClosedError, agents
from trio_lanes import open_lanes as open_trio_lanes
from trio_lanes.aio import agents as door
from trio_lanes.aio import open_durable_lanes, open_lanes, to_thread
from trio_lanes.aio.agents import (
    ActionGate,
    Conversation,
    DurableInbox,
    Emit,
    Feed,
    Inbox,
    MemoryTranscript,
    RunRegistry,
    SharedRunRegistry,
    SharedThreadLocks,
    ThreadLocks,
    ToolCall,
    Turn,
    WhenBusy,
    run_tools,
)
from trio_lanes.durable import MemoryStore
from trio_lanes.durable import open_durable_lanes as open_trio_durable_lanes

OF_ASYNCIO = "use trio_lanes.aio.agents: .* are lanes of asyncio"
OF_TRIO = "for lanes of Trio use trio_lanes.agents"


async def answer(turn: Turn) -> Any:
    return turn.messages


# ---- doors


def test_every_name_and_every_async_verb_of_the_parts_has_a_door() -> None:
    names = {name for name in vars(agents) if not name.startswith("_")}
    assert {name for name in vars(door) if not name.startswith("_")} - {"TYPE_CHECKING"} == names
    for name in names:
        there, here = vars(agents)[name], vars(door)[name]
        if not isinstance(there, type) or getattr(there, "_is_protocol", False):
            continue
        for verb, method in vars(there).items():
            if iscoroutinefunction(method) and not verb.startswith("_"):
                assert hasattr(getattr(here, verb), "of_trio"), f"{name}.{verb}"


@pytest.mark.asyncio_only
async def test_the_parts_of_trio_refuse_lanes_of_asyncio() -> None:
    async with open_lanes() as lanes, open_durable_lanes(MemoryStore(), {}) as durable:
        for make in (
            lambda: agents.Inbox(lanes, "alice", answer),
            lambda: agents.Inboxes(lanes, answer),
            lambda: agents.DurableInbox(durable, "alice", "answer"),
            lambda: agents.SharedRunRegistry(durable),
            lambda: agents.SharedThreadLocks(durable),
            lambda: agents.SharedTranscripts(durable),
        ):
            with pytest.raises(TypeError, match=OF_ASYNCIO):
                make()
        agents.Inbox(lanes.trio, "alice", answer)  # type: ignore[attr-defined]


async def test_the_parts_of_asyncio_refuse_lanes_of_trio() -> None:
    async with (
        open_trio_lanes() as lanes,
        open_trio_durable_lanes(MemoryStore(), {}) as durable,
    ):
        for make in (
            lambda: Inbox(lanes, "alice", answer),
            lambda: door.Inboxes(lanes, answer),
            lambda: DurableInbox(durable, "alice", "answer"),
            lambda: SharedRunRegistry(durable),
            lambda: SharedThreadLocks(durable),
            lambda: door.SharedTranscripts(durable),
        ):
            with pytest.raises(TypeError, match=OF_TRIO):
                make()


@pytest.mark.asyncio_only
async def test_what_is_made_for_asyncio_is_what_isinstance_says() -> None:
    async with open_lanes() as lanes:
        inbox = Inbox(lanes, "alice", answer)
        receipt = inbox.post("x")
        assert isinstance(inbox, agents.Inbox)
        assert isinstance(receipt, door.Receipt)
        settled = await receipt.settled()
        assert isinstance(settled.turn, Turn)
        assert type(settled.turn.job) is type(lanes.submit_nowait(asyncio.sleep, 0))


@pytest.mark.asyncio_only
async def test_a_post_in_another_thread_or_after_the_block_is_refused_as_a_submission_is() -> None:
    async with open_lanes() as lanes:
        inbox, inboxes = Inbox(lanes, "alice", answer), door.Inboxes(lanes, answer)
        receipt = inbox.post("x")
        with pytest.raises(RuntimeError, match=r"use Lanes.portal\(\) in others"):
            await asyncio.to_thread(inbox.post, "y")
        settled = await receipt.settled()
    with pytest.raises(LanesClosedError):
        inbox.post("z")
    with pytest.raises(LanesClosedError):
        inboxes.post("alice", "z")
    assert len(inboxes) == 0
    assert await receipt.settled() is settled
    assert await inbox.stop("hold")
    assert await inboxes.abort("alice")
    assert inboxes.statistics().offered == 0


@pytest.mark.asyncio_only
async def test_of_a_group_that_a_handler_raises_the_receipt_has_all_but_its_cancellations() -> None:
    async def handler(turn: Turn) -> None:
        raise BaseExceptionGroup("", turn.messages[0])

    async with open_lanes() as lanes:
        inbox = Inbox(lanes, "alice", handler)
        settled = await inbox.post([asyncio.CancelledError(), ValueError()]).settled()
        assert isinstance(settled.error, ExceptionGroup)
        assert [type(error) for error in settled.error.exceptions] == [ValueError]
        settled = await inbox.post([asyncio.CancelledError()]).settled()
        assert settled.kind is door.SettledKind.FAILED
        assert isinstance(settled.error, JobCancelledError)


@pytest.mark.real_processes
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_handler_that_ends_the_program_leaves_no_message_unsettled(
    kind: type[BaseException],
) -> None:
    receipts: list[Any] = []

    async def handler(turn: Turn) -> None:
        await asyncio.sleep(0)
        raise kind

    async def main() -> None:
        async with open_lanes() as lanes:
            inbox = Inbox(lanes, "alice", handler, when_busy=WhenBusy.FOLLOWUP)
            receipts.extend([inbox.post("one"), inbox.post("two")])
            inbox.hold()
            inbox.release()
            await receipts[1].settled()

    with pytest.raises(kind):
        asyncio.run(main())
    assert [receipt.outcome.kind for receipt in receipts] == ["failed", "cancelled"]


# ---- what a cancellation of a turn reaches


class Model:
    """A server of a stream that ends when its client goes; how many streams are open."""

    def __init__(self) -> None:
        self.open = 0
        self.changed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nso\r\n")
        self._note(1)
        await reader.read()  # until the client closes the connection
        self._note(-1)
        writer.close()

    def _note(self, more: int) -> None:
        self.open += more
        self.changed.set()

    async def wait(self, streams: int) -> None:
        while self.open != streams:
            self.changed.clear()
            await self.changed.wait()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Callable[[], Any]]:
        import httpx2  # of the group `test-all`

        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        async with server, httpx2.AsyncClient(trust_env=False) as http:

            async def stream() -> None:
                async with http.stream("GET", f"http://{host}:{port}/") as response:
                    async for _ in response.aiter_raw():
                        pass

            yield stream


async def abort(inbox: Inbox, turn: Turn) -> None:
    turn.abort("enough")


async def abort_the_inbox(inbox: Inbox, turn: Turn) -> None:
    assert await inbox.abort("enough")


async def interrupt(inbox: Inbox, turn: Turn) -> None:
    inbox.post("over", when_busy=WhenBusy.INTERRUPT)


async def cancel_the_job(inbox: Inbox, turn: Turn) -> None:
    turn.job.cancel("enough")


@pytest.mark.real_processes
@pytest.mark.parametrize("new_loop", ALL_LOOPS)
@pytest.mark.parametrize("way", [abort, abort_the_inbox, interrupt, cancel_the_job])
def test_the_end_of_a_turn_closes_its_streams_and_waits_for_its_tools_and_their_threads(
    new_loop: Callable[[], asyncio.AbstractEventLoop], way: Callable[..., Any]
) -> None:
    seen: list[str] = []

    async def main() -> None:
        model, release = Model(), threading.Event()
        in_thread = asyncio.Event()
        loop = asyncio.get_running_loop()

        def block() -> None:
            loop.call_soon_threadsafe(in_thread.set)
            release.wait()
            seen.append("the thread has ended")

        async def in_a_thread(emit: Emit) -> None:
            await to_thread(block)

        async def streams(emit: Emit) -> None:
            await stream()

        async def handler(turn: Turn) -> None:
            if turn.messages == ["over"]:
                seen.append("the next turn")
                return
            calls = [ToolCall("thread", in_a_thread), ToolCall("stream", streams)]
            async with run_tools(calls) as run, asyncio.TaskGroup() as group:
                group.create_task(stream())
                async for _ in run:
                    raise AssertionError

        async with model.client() as stream, open_lanes() as lanes:
            inbox = Inbox(lanes, "alice", handler)
            receipt = inbox.post("hello")
            await asyncio.gather(model.wait(2), in_thread.wait())
            assert inbox.turn is not None
            ends = asyncio.create_task(way(inbox, inbox.turn))
            await model.wait(0)
            assert receipt.outcome is None  # the thread works
            assert seen == []
            release.set()
            assert (await receipt.settled()).kind is door.SettledKind.CANCELLED
            await ends
            if way is interrupt:
                await lanes.wait_idle()
                seen.remove("the next turn")
            assert seen == ["the thread has ended"]

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


@pytest.mark.asyncio_only
async def test_a_failure_that_is_read_at_once_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails(turn: Turn) -> None:
        raise ValueError

    async with open_lanes() as lanes:
        settled = await Inbox(lanes, "alice", fails).post("x").settled()
        assert isinstance(settled.error, ValueError)
        await lanes.wait_idle()
        del settled
        gc.collect()
    assert "never retrieved" not in caplog.text


# ---- stores of the application's


class LocksOfAsyncio:
    """Locks for one key each, which know no sharing; they write down what happens."""

    def __init__(self, log: list[str]) -> None:
        self._lock = asyncio.Lock()
        self._log = log

    @asynccontextmanager
    async def shared(self, key: str) -> AsyncIterator[None]:
        async with self._lock:
            await asyncio.sleep(0)
            self._log.append(f"shared {key}")
            try:
                yield
            finally:
                await asyncio.sleep(0)
                self._log.append("left")

    exclusive = shared


class StoreOfAsyncio:
    """A store that is written with nothing but asyncio."""

    def __init__(self, locks: Any = None, *, seconds: float = 0.0) -> None:
        self.log: list[str] = []
        self.locks: Any = LocksOfAsyncio(self.log) if locks is None else locks
        self.live: set[str] = set()
        self.commits: list[Any] = []
        self.seconds = seconds

    def check(self, thread_id: str) -> None:
        if thread_id == "bad":
            raise ValueError(thread_id)

    async def load(self, thread_id: str, start: int = 0) -> Sequence[Any]:
        await asyncio.sleep(0)
        return self.commits[start:]

    async def append(self, thread_id: str, commit: Any) -> None:
        async with asyncio.timeout(60):
            await asyncio.sleep(self.seconds)
        self.commits.append(commit)


class ReadableStore(StoreOfAsyncio):
    @asynccontextmanager
    async def reading(self, thread_id: str) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        self.log.append("reads")
        yield


@pytest.mark.asyncio_only
@pytest.mark.parametrize("kind", [StoreOfAsyncio, ReadableStore])
@pytest.mark.parametrize("make_locks", [lambda: None, ThreadLocks, agents.ThreadLocks])
async def test_a_store_that_knows_only_asyncio_keeps_conversations(
    kind: type[StoreOfAsyncio], make_locks: Callable[[], Any]
) -> None:
    store = kind(make_locks())
    conversation = Conversation("thread", store)
    assert conversation.store is store
    with pytest.raises(ValueError, match="bad"):
        Conversation("bad", store)
    async with conversation.turn("one") as turn:
        await turn.append("first")
    async with conversation.turn("two") as turn:
        await turn.finish("second")
    found = await Conversation("thread", store).messages()
    assert [one.content for one in found] == ["one", "first", "two", "second"]
    assert ("reads" in store.log) is (kind is ReadableStore)
    assert store.log.count("left") == sum(one.startswith("shared") for one in store.log)
    assert store.live == set()


@pytest.mark.asyncio_only
async def test_the_end_of_a_turn_that_is_cancelled_is_written_by_a_store_of_asyncio() -> None:
    store = StoreOfAsyncio(seconds=1)
    conversation = Conversation("thread", store)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2.5), conversation.turn("one") as turn:
            turn.append("half")
            await asyncio.sleep(100)
    assert asyncio.get_running_loop().time() == 3.5
    _, answer = await conversation.messages()
    assert (answer.content, answer.status) == ("half", "incomplete")
    store.seconds = 3
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(4), conversation.turn("two") as turn:
            turn.append("lost")
            await asyncio.sleep(100)
    assert asyncio.get_running_loop().time() == 3.5 + 4 + 2  # then the store is cancelled
    assert (await conversation.messages())[-1].content == ""


@pytest.mark.asyncio_only
async def test_a_lock_that_is_granted_as_its_task_is_cancelled_is_held_and_left() -> None:
    locks = ThreadLocks()
    held: list[int] = []

    async def hold() -> None:
        async with locks.exclusive("k"):
            held.append(len(locks))
            await asyncio.sleep(100)

    async with locks.exclusive("k"):
        second = asyncio.create_task(hold())
        await asyncio.sleep(1)
    second.cancel()  # it was granted the lock just now
    await asyncio.wait([second])
    assert second.cancelled()
    assert held == [1]
    assert len(locks) == 0
    assert asyncio.get_running_loop().time() == 1


# ---- what is left


@pytest.mark.asyncio_only
async def test_parts_without_lanes_work_beside_each_other_in_any_task() -> None:
    gate, feed, registry = ActionGate(["a"]), Feed[int](), RunRegistry()

    async def read() -> list[int]:
        return [item async for _, item in feed.read()]

    async def ends() -> bool:
        return await registry.wait_ended("alice", timeout=1)

    class Run:
        is_streaming = is_compacting = False

        def queue_message(self, message: object) -> bool:
            return False

        def abort(self, reason: str | None = None) -> None: ...

    with registry.running("alice", Run()):
        waiting = [asyncio.create_task(one) for one in (gate.wait(), read(), read(), ends())]
        await asyncio.sleep(0.5)
        feed.publish(1)
        await asyncio.sleep(2)
        gate.submit({"a": 2})
        feed.close()
        results = await asyncio.gather(*waiting)
    assert results == [[agents.ToolResult("a", "result", 2)], [1], [1], False]
    assert not trio.lowlevel.in_trio_run()


async def turns_of_all_kinds(number: int) -> list[weakref.ref[Any]]:
    """Play turns that end in each way, of sessions that come and go; return what they used."""
    used: list[weakref.ref[Any]] = []

    async def tool(emit: Emit) -> int:
        await emit("output")
        return 1

    async def handler(turn: Turn) -> Any:
        async with run_tools([ToolCall("a", tool), ToolCall("b", tool)]) as run:
            async for _ in run:
                pass
        async with Conversation("thread", store).turn("question") as said:
            await said.append("answer")
        if turn.messages[0] % 3 == 1:
            raise ValueError
        if turn.messages[0] % 3 == 2:
            turn.abort()
            await asyncio.sleep(1)
        return run.results

    async with open_lanes({"main": 10}) as lanes:
        inboxes = door.Inboxes(lanes, handler)
        for first in range(0, number, 10):
            store = MemoryTranscript()
            receipts = [inboxes.post(f"s{n % 5}", n) for n in range(first, first + 10)]
            for receipt in receipts:
                settled = await receipt.settled()
                used += [weakref.ref(one) for one in (receipt, settled, settled.turn) if one]
                del settled
            del receipts, receipt
        await lanes.wait_idle()
        assert len(inboxes) == 0
    return used


@pytest.mark.parametrize("number", [30, pytest.param(3_400, marks=pytest.mark.thorough)])
def test_turns_that_have_ended_leave_nothing(number: int) -> None:
    used: list[weakref.ref[Any]] = []
    objects: list[int] = []

    async def main() -> None:
        for _ in range(3):
            used.extend(await turns_of_all_kinds(number))
            gc.collect()
            objects.append(len(gc.get_objects()) - len(used))

    asyncio.run(main())
    gc.collect()
    assert len(used) >= number
    assert [one for one in used if one() is not None] == []
    assert objects[2] - objects[1] < 100
