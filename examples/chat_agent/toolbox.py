"""Tools that run on the gateway: the bundled ones, and those of MCP servers.

A request names the servers whose tools it wants: `{"type": "mcp", "server_label": "gateway"}`. Each
server has a lane of its own, `mcp:LABEL`, which limits its calls. A call that exceeds its timeout
holds its slot until it has really ended, so a server that hangs gets no more calls than its limit.
The timeout counts from the last progress that the tool has reported.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final

import trio

from trio_lanes import JobTimeoutError, Lanes, current_job
from trio_lanes.agents import Emit, run_tools
from trio_lanes.agents import ToolCall as Running

from .keys import what, without_secrets
from .model import ToolCall
from .tools import ToolError, argument_of, bundled_tools

logger: Final = logging.getLogger(__name__)
Json = dict[str, Any]
Servers = dict[str, list[str] | None]  # {label: its tools that are allowed, None: all}
BUNDLED: Final = "gateway"
CALL_SECONDS: Final = 30.0
PER_SERVER: Final = 4  # calls of one server at once
RECONNECT_SECONDS: Final = 1.0  # between two attempts to connect to a server
CONNECT_SECONDS: Final = 30.0  # for an attempt
TOOLS: Final = {
    name: tool for name, tool in bundled_tools().items() if name in ("time", "calc", "search")
}


@asynccontextmanager
async def open_toolbox(call_seconds: float, servers: Sequence[str]) -> AsyncIterator[Toolbox]:
    """Open the bundled tools, and those of servers ``NAME=COMMAND`` or ``NAME=URL``."""
    toolbox = Toolbox(call_seconds)
    async with AsyncExitStack() as stack:
        if servers:
            nursery = await stack.enter_async_context(trio.open_nursery())
            stack.callback(nursery.cancel_scope.cancel)
            for label, where in [server.split("=", 1) for server in servers]:
                await toolbox.connect(label, where, nursery)
        yield toolbox


class Toolbox:
    """The tools of all servers, by label of the server and name."""

    def __init__(self, call_seconds: float = CALL_SECONDS) -> None:
        self._call_seconds: Final = call_seconds
        self._servers: Final[dict[str, ToolServer]] = {}
        self._schemas: Final[dict[str, dict[str, Json]]] = {
            BUNDLED: {name: tool.schema() for name, tool in TOOLS.items()}
        }

    async def connect(self, label: str, where: Any, nursery: trio.Nursery) -> None:
        """Connect to an MCP server: a URL, or a command that speaks on standard output."""
        self._servers[label] = server = ToolServer(label, where, nursery)
        self._schemas[label] = server.schemas
        await server.client()

    def __contains__(self, label: object) -> bool:
        return label in self._schemas

    def schemas(self, servers: Servers) -> list[Json]:
        """Return the tools of these servers that are allowed, as in chat completions."""
        return [
            schema
            for label, allowed in servers.items()
            for name, schema in self._schemas[label].items()
            if allowed is None or name in allowed
        ]

    def server_of(self, name: str, servers: Servers) -> str | None:
        """Return the server that has the tool, and may run it; None if none of them does."""
        for label, allowed in servers.items():
            if name in self._schemas[label] and (allowed is None or name in allowed):
                return label
        return None

    def item(self, call: ToolCall, servers: Servers) -> Json:
        """Return the output item of a call that begins."""
        return {
            "id": f"mcp_{secrets.token_hex(12)}",
            "type": "mcp_call",
            "status": "in_progress",
            "server_label": self.server_of(call.name, servers),
            "name": call.name,
            "arguments": "",
            "output": None,
            "error": None,
            "approval_request_id": None,
        }

    async def run(self, lanes: Lanes, call: ToolCall, servers: Servers) -> str:
        """Run a call in the lane of its server, and return its text.

        Raises:
          ToolError: if the tool fails, or takes too long.
        """
        label = self.server_of(call.name, servers)
        assert label is not None
        if label != BUNDLED:
            await self._servers[label].client()  # to start a server is no part of a call
        try:
            return await lanes.run(
                self._call, label, call, lane=f"mcp:{label}", idle_timeout=self._call_seconds
            )
        except JobTimeoutError:
            raise ToolError(f"no answer after {self._call_seconds:g} s") from None

    async def run_all(
        self,
        lanes: Lanes,
        calls: Sequence[ToolCall],
        servers: Servers,
        ended: Callable[[int, Json], Awaitable[None]],
    ) -> None:
        """Run calls at once. ``ended`` gets the place of each, and its end, in their order."""

        async def use(call: ToolCall, emit: Emit) -> str:
            return await self.run(lanes, call, servers)

        async with run_tools([Running(call.id, partial(use, call)) for call in calls]) as run:
            async for event in run:
                fields = {"status": "completed", "output": event.data}
                if event.kind != "result":
                    fields = {"status": "failed", "error": f"error: {event.data}"}
                await ended(event.output_index, fields)

    async def _call(self, label: str, call: ToolCall) -> str:
        if label == BUNDLED:
            return await TOOLS[call.name].function(argument_of(TOOLS[call.name], call))
        try:
            arguments = json.loads(call.arguments or "{}")
        except ValueError:
            raise ToolError("the arguments are not JSON") from None
        text, failed = await self._servers[label].call(call.name, arguments)
        if failed:
            raise ToolError(text)
        return text


class ToolServer:
    """The connection to one MCP server. A call that finds it lost has it made again."""

    def __init__(self, label: str, where: Any, nursery: trio.Nursery) -> None:
        self.schemas: Final[dict[str, Json]] = {}  # of its tools, as in chat completions
        self._label, self._where, self._nursery = label, where, nursery
        self._client: Any = None  # None: the last attempt to connect has failed
        self._why = ""
        self._is_open: Callable[[], bool] = lambda: True
        self._lost = trio.Event()  # set: the connection is closed
        self._attempt: trio.Event | None = None  # to connect, if one is under way
        self._tried_at = -math.inf

    async def call(self, name: str, arguments: Json) -> tuple[str, bool]:
        """Call a tool in a job, whose progress it reports. Return its text, and whether it failed.

        Raises:
          ToolError: if the server cannot be reached, or ends before it has answered.
        """
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        job = current_job()
        assert job is not None

        async def progress(*report: object) -> None:
            job.progress()

        client = await self.client()
        try:
            result = await client.call_tool(name, arguments, progress_callback=progress)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED or error.message == "Session terminated":
                self._lost.set()  # the call may have done something, and is not repeated
            raise ToolError(without_secrets(str(error))) from None
        text = "\n".join(getattr(part, "text", "") for part in result.content)
        return text, bool(result.is_error)

    async def client(self) -> Any:
        """Return the client; if it is not connected, wait for an attempt, which outlives this call.

        Raises:
          ToolError: if the attempt fails.
        """
        if self._client is None or self._lost.is_set() or not self._is_open():
            if self._attempt is None:
                self._attempt = trio.Event()
                self._nursery.start_soon(self._connected, self._attempt)
            await self._attempt.wait()
        if self._client is None:
            raise ToolError(f"the server {self._label} cannot be reached: {self._why}")
        return self._client

    async def _connected(self, attempt: trio.Event) -> None:
        """Hold a connection until it is lost. It has to be closed in the task that opened it."""
        from mcp import Client

        self._lost.set()
        self._lost = lost = trio.Event()
        self._client = None
        await trio.sleep_until(self._tried_at + RECONNECT_SECONDS)
        self._tried_at = trio.current_time()
        self._why = f"no answer after {CONNECT_SECONDS:g} s"
        try:
            with trio.move_on_after(CONNECT_SECONDS) as limit:
                async with Client(self._transport()) as client:
                    for tool in (await client.list_tools()).tools:
                        function = {
                            "name": tool.name,
                            "description": tool.description or "",
                            "parameters": tool.input_schema,
                        }
                        self.schemas[tool.name] = {"type": "function", "function": function}
                    limit.deadline = math.inf
                    self._client, self._attempt = client, None
                    attempt.set()
                    await lost.wait()
        except Exception as error:
            cause = error
            while isinstance(cause, ExceptionGroup):
                cause = cause.exceptions[0]
            self._why = what(cause)
            logger.warning("the connection to the server %s has failed: %s", self._label, self._why)
        finally:
            lost.set()
            if not attempt.is_set():
                self._attempt = None
                attempt.set()

    def _transport(self) -> Any:
        """Return what `mcp.Client` connects to."""
        where = self._where
        if not isinstance(where, str) or where.startswith(("http://", "https://")):
            return where
        return self._process(*shlex.split(where))

    @asynccontextmanager
    async def _process(self, command: str, *arguments: str) -> AsyncIterator[Any]:
        """Start a server, and notice when it has ended: a call would be the first to fail."""
        from mcp import StdioServerParameters, stdio_client

        started = StdioServerParameters(command=command, args=[*arguments])
        async with stdio_client(started) as streams:
            # a channel of anyio, whose sending side is closed at the end of the output
            read: Any = streams[0]
            self._is_open = lambda: read.statistics().open_send_streams > 0
            yield streams
