"""The gateway in the test's own nursery: no process, no socket, and no clock but the mock clock.

    async def test_something(autojump_clock: MockClock) -> None:
        model = Script(["one ", 5.0, "two"])  # 5 s pass between the words
        async with inside(model) as gateway:
            reply = await gateway.request("POST", "/v1/responses", {"input": "hello"})
            async with gateway.stream("POST", "/v1/responses", {...}) as stream:
                async for event in stream: ...  # leaving the block earlier hangs up

A restart is another `inside` with the same `durable` folder and the same `jobs`. What would run in
a thread runs at once, since the clock would jump while a thread works. So no `SqliteStore` here.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import attrs
import httpx2
import trio
from starlette.types import ASGIApp

from examples.chat_agent.model import Cut, Message, Settings, ToolCall, Usage
from examples.chat_agent.toolbox import Toolbox, open_toolbox
from examples.chat_agent.upstream import Upstream
from examples.gateway.backlog import LANE, Backlog
from examples.gateway.engine import TURNS, Engine
from examples.gateway.serving import lanes_of, making, parser
from examples.openai_api.http import Requests
from trio_lanes import Lanes, open_lanes
from trio_lanes.agents import JsonlTranscript
from trio_lanes.durable import DurableLanes, MemoryStore, Store

Json = dict[str, Any]


class Script:
    """An upstream whose model says what the test wrote: an answer a call, and the last again.

    An answer is a list of events, of seconds to sleep (a float), and of exceptions to raise.
    """

    name = "scripted"

    def __init__(self, *answers: Sequence[Any]) -> None:
        self.answers = [*answers] or [["all is well"]]
        self.prompts: list[Sequence[Message]] = []  # of each call
        self.offered: list[Sequence[Json]] = []  # the tools of each call
        self.settings: list[Settings] = []  # of each call

    def model(self, tools: Sequence[Json], settings: Settings) -> Script:
        self.offered.append(tools)
        self.settings.append(settings)
        return self

    @asynccontextmanager
    async def stream(self, messages: Sequence[Message]) -> AsyncIterator[AsyncIterator[Any]]:
        answer = self.answers[min(len(self.prompts), len(self.answers) - 1)]
        self.prompts.append([*messages])
        async with aclosing(self._events(answer)) as events:
            yield events

    async def _events(self, answer: Sequence[Any]) -> AsyncIterator[str | ToolCall | Usage | Cut]:
        for event in answer:
            if isinstance(event, float):
                await trio.sleep(event)
            elif isinstance(event, BaseException):
                raise event
            else:
                yield event


@attrs.define(eq=False)
class Reply:
    """The reply to a request; iterating reads its events."""

    status: int
    headers: dict[str, str]
    chunks: trio.MemoryReceiveChannel[bytes]  # of the body
    raw: bytes = b""

    @property
    def body(self) -> Any:
        """The JSON of a body that was read."""
        return json.loads(self.raw, parse_constant=lambda name: 1 / 0)  # NaN is no JSON

    def __aiter__(self) -> Reply:
        return self

    async def __anext__(self) -> Any:
        """Return the data of the next server-sent event, or "[DONE]"."""
        while True:
            event, ends, rest = self.raw.partition(b"\n\n")
            if not ends:
                self.raw += await anext(self.chunks)
                continue
            self.raw = rest
            for line in event.split(b"\n"):
                if line.startswith(b"data: "):
                    data = line.removeprefix(b"data: ").decode()
                    return data if data == "[DONE]" else json.loads(data)


@attrs.define(eq=False)
class Gateway:
    """The application, and a client of it."""

    app: ASGIApp
    engine: Engine
    lanes: Lanes
    durable: DurableLanes

    async def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Make a request, and read all of the reply."""
        async with self.stream(method, path, body, headers) as reply:
            reply.raw = b"".join([chunk async for chunk in reply.chunks])
        return reply

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Reply]:
        """Make a request, and enter when its reply has begun; leaving hangs up.

        The body is sent as JSON; bytes are sent as they are, and a list of bytes in chunks.
        """
        gone, began = trio.Event(), trio.Event()
        chunks_in, chunks_out = trio.open_memory_channel[bytes](0)  # a slow reader holds it up
        reply = Reply(0, {}, chunks_out)
        if not isinstance(body, bytes | list):
            body = b"" if body is None else json.dumps(body).encode()
        parts = body if isinstance(body, list) else [body]
        left = [*enumerate(reversed(parts))]

        async def receive() -> Json:
            await trio.lowlevel.checkpoint()
            if left:
                more, part = left.pop()
                return {"type": "http.request", "body": part, "more_body": bool(more)}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                pairs = message["headers"]
                reply.status = message["status"]
                reply.headers.update((n.decode().lower(), v.decode()) for n, v in pairs)
                began.set()
            elif message.get("body"):
                try:
                    await chunks_in.send(message["body"])
                except trio.BrokenResourceError:  # a server drops what a lost client does not read
                    await trio.lowlevel.checkpoint()

        pairs = {"host": "127.0.0.1", "content-type": "application/json", **(headers or {})}
        where, _, query = path.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.1"}, "method": method,
            "path": where, "raw_path": where.encode(), "query_string": query.encode(),
            "root_path": "", "scheme": "http", "http_version": "1.1", "client": ("127.0.0.1", 1),
            "headers": [(n.encode(), v.encode()) for n, v in pairs.items()],
        }  # fmt: skip

        async def call() -> None:
            async with chunks_in:
                try:
                    await self.app(scope, receive, send)
                except Exception:  # the application has answered with a bare 500, and raises it
                    if reply.status != 500:
                        raise
                finally:
                    began.set()  # status 0: the connection was closed without an answer

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await began.wait()
            async with chunks_out:
                yield reply
            gone.set()


async def _at_once(sync_fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return sync_fn(*args)


@asynccontextmanager
async def inside(
    upstream: Upstream,
    *options: str,
    durable: Path | None = None,
    jobs: Store | None = None,
    toolbox: Toolbox | None = None,
) -> AsyncIterator[Gateway]:
    """Open the gateway: one turn at once, and no grace at the end, unless options say so."""
    chosen = parser().parse_args(["--limit", "1", "--grace", "0", *options])
    chosen.durable = durable
    with ExitStack() as closing:
        folder = closing.enter_context(tempfile.TemporaryDirectory())
        closing.enter_context(patch("trio.to_thread.run_sync", _at_once))
        async with (
            open_toolbox(chosen.tool_timeout, chosen.mcp) as tools,
            httpx2.AsyncClient(verify=False) as client,
            open_lanes(lanes_of(chosen)) as lanes,
            trio.open_nursery() as beside,
        ):
            parts = upstream, toolbox or tools, client, durable or Path(folder)
            limits = {TURNS: chosen.limit, LANE: math.inf}
            own = jobs or MemoryStore(), Backlog, limits, math.inf
            async with making(chosen, parts, Requests(), lanes, beside, *own) as made:
                app, engine, durables = made
                assert isinstance(engine.store, JsonlTranscript)
                closing.callback(engine.store.close)  # the folder is free for the next
                yield Gateway(app, engine, lanes, durables)
            await lanes.drain(grace=0)
            beside.cancel_scope.cancel()
