"""Tools that run on the gateway: the bundled ones, and those of MCP servers.

A request names the servers whose tools it wants: `{"type": "mcp", "server_label": "gateway"}`. Each
server has a lane of its own, `mcp:LABEL`, which limits its calls. A call that exceeds its timeout
holds its slot until it has really ended, so a server that hangs gets no more calls than its limit.
"""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final

from trio_lanes import JobTimeoutError, Lanes
from trio_lanes.agents import Emit, run_tools
from trio_lanes.agents import ToolCall as Running

from .model import ToolCall
from .tools import ToolError, argument_of, bundled_tools

Json = dict[str, Any]
Servers = dict[str, list[str] | None]  # {label: its tools that are allowed, None: all}
BUNDLED: Final = "gateway"
CALL_SECONDS: Final = 30.0
PER_SERVER: Final = 4  # calls of one server at once
TOOLS: Final = {
    name: tool for name, tool in bundled_tools().items() if name in ("time", "calc", "search")
}


@asynccontextmanager
async def open_toolbox(call_seconds: float, servers: Sequence[str]) -> AsyncIterator[Toolbox]:
    """Open the bundled tools, and those of servers ``NAME=COMMAND`` or ``NAME=URL``."""
    async with AsyncExitStack() as stack:
        toolbox = Toolbox(call_seconds)
        await toolbox.connect(dict(server.split("=", 1) for server in servers), stack)
        yield toolbox


class Toolbox:
    """The tools of all servers, by label of the server and name."""

    def __init__(self, call_seconds: float = CALL_SECONDS) -> None:
        self._call_seconds: Final = call_seconds
        self._clients: Final[dict[str, Any]] = {}
        self._schemas: Final[dict[str, dict[str, Json]]] = {
            BUNDLED: {name: tool.schema() for name, tool in TOOLS.items()}
        }

    async def connect(self, servers: Mapping[str, str], stack: AsyncExitStack) -> None:
        """Connect to MCP servers by label: a URL, or a command that speaks on standard output."""
        if servers:
            from mcp import Client, StdioServerParameters
        for label, where in servers.items():
            target: Any = where
            if not where.startswith(("http://", "https://")):
                command, *arguments = shlex.split(where)
                target = StdioServerParameters(command=command, args=arguments)
            client = await stack.enter_async_context(Client(target))
            self._clients[label] = client
            self._schemas[label] = {
                tool.name: {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description or "",
                        "parameters": tool.input_schema,
                    },
                }
                for tool in (await client.list_tools()).tools
            }

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
        try:
            return await lanes.run(
                self._call, label, call, lane=f"mcp:{label}", timeout=self._call_seconds
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
        result = await self._clients[label].call_tool(call.name, arguments)
        text = "\n".join(getattr(part, "text", "") for part in result.content)
        if result.is_error:
            raise ToolError(text)
        return text
