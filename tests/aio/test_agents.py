"""What is asyncio's own in `trio_lanes.aio.agents`; all else is in the contract of tests/agents."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from inspect import iscoroutinefunction
from typing import Any

import pytest

from trio_lanes import agents
from trio_lanes import open_lanes as open_trio_lanes
from trio_lanes.aio import agents as door
from trio_lanes.aio import open_durable_lanes, open_lanes, to_thread
from trio_lanes.aio.agents import (
    DurableInbox,
    Emit,
    Inbox,
    SharedRunRegistry,
    SharedThreadLocks,
    ToolCall,
    Turn,
    WhenBusy,
    run_tools,
)
from trio_lanes.durable import MemoryStore
from trio_lanes.durable import open_durable_lanes as open_trio_durable_lanes

from .test_kin import EAGER
from .test_loops import LOOPS

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
@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("way", [abort, abort_the_inbox, interrupt, cancel_the_job])
@pytest.mark.parametrize("factory", [None, *EAGER])
def test_the_end_of_a_turn_closes_its_streams_and_waits_for_its_tools_and_their_threads(
    new_loop: Callable[[], asyncio.AbstractEventLoop], way: Callable[..., Any], factory: Any
) -> None:
    seen: list[str] = []

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(factory)
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
