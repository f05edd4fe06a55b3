"""Tools of MCP servers for `run_tools`, in Trio and in asyncio.

A session has a task of its own. Over HTTP, a connection that fails ends the task group of the SDK's
transport, and cancels what is in the block of `Client` (modelcontextprotocol/python-sdk 3560): the
turn, if it is that. Here it ends the session. Each of its calls ends with an error, and the next
call connects again. No call is repeated, since nobody knows what it has done.
"""

import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio
from mcp import Client, MCPError
from mcp.types import CallToolResult

from trio_lanes.agents import Emit, ToolCall

logger: Final = logging.getLogger(__name__)
CONNECT_SECONDS: Final = 30.0
LOST: Final = ("Connection closed", "Session terminated")  # what is said by a session that is gone
UNREAD: Final = 16  # reports of progress of a call; one more replaces the oldest
READ_SECONDS: Final = 1.0  # for which the end of a call waits until its reports are read


class ToolError(Exception):
    """The tool has failed, or its server cannot be reached; the text is for the model."""


class ToolServer:
    """A server that `open_server` has opened, with a session or without."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect: Final = connect
        self._client: Client | None = None
        self._wanted = anyio.Event()  # a call waits for a session
        self._settled = anyio.Event()  # the next attempt to connect has ended
        self._lost = anyio.Event()  # the session is to be closed
        self._why = ""

    def call(
        self,
        id: str,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
        **options: Any,
    ) -> ToolCall:
        """Return a call of a tool, which emits the progress that the server reports.

        Args:
          timeout: the seconds after which the call ends with an `MCPError`; progress does not start
            them anew.
          options: those of `ToolCall`.
        """

        async def run(emit: Emit) -> str:
            client = await self.client()
            send, unread = anyio.create_memory_object_stream[str](UNREAD)

            # The SDK calls it in a task of its own for each report. It must not wait in `emit`: the
            # call may end before it is read, and then the report has nowhere to go.
            async def report(progress: float, total: float | None, message: str | None) -> None:
                text = message or (f"{progress:g} of {total:g}" if total else f"{progress:g}")
                with suppress(anyio.ClosedResourceError):
                    if send.statistics().current_buffer_used == UNREAD:
                        unread.receive_nowait()
                    send.send_nowait(text)

            async def forward() -> None:
                async for text in unread:
                    await emit(text)

            ended: CallToolResult | Exception | None = None
            try:
                with unread:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(forward)
                        with send:
                            try:
                                ended = await client.call_tool(name, arguments, timeout, report)
                            except Exception as error:  # raised below, in no group
                                ended = error
                        tasks.cancel_scope.deadline = anyio.current_time() + READ_SECONDS
            except anyio.get_cancelled_exc_class():
                if ended is None:
                    raise
                # What has happened at the server is known: no cancellation hides it.
            assert ended is not None
            if isinstance(ended, Exception):
                if isinstance(ended, MCPError) and ended.message in LOST:
                    self._lose(client)
                raise ended
            text = "\n".join(part.text for part in ended.content if part.type == "text")
            if ended.is_error:
                raise ToolError(text)
            return text

        return ToolCall(id, run, name=name, **options)

    async def client(self) -> Client:
        """Return the session's client, as for `list_tools`; if there is no session, connect.

        Raises:
          ToolError: if the attempt to connect fails.
        """
        if self._client is None:
            self._wanted.set()
            await self._settled.wait()
        if self._client is None:
            raise ToolError(f"the server cannot be reached: {self._why}")
        return self._client

    def _lose(self, client: Client) -> None:
        if self._client is client:
            self._client, self._settled = None, anyio.Event()
            self._lost.set()

    async def _hold(self) -> None:
        """Have a session whenever a call wants one: a client is closed where it was opened."""
        while True:
            await self._wanted.wait()
            settled, self._lost = self._settled, anyio.Event()
            try:
                with anyio.fail_after(CONNECT_SECONDS) as limit:
                    async with self._connect() as client:
                        limit.deadline = math.inf
                        self._client, self._wanted = client, anyio.Event()
                        settled.set()
                        try:
                            await self._lost.wait()
                        finally:
                            self._lose(client)
            except Exception as error:
                cause: BaseException = error
                while isinstance(cause, BaseExceptionGroup):
                    cause = cause.exceptions[0]
                self._why = str(cause) or type(cause).__name__
                logger.warning("a session with an MCP server has ended: %s", self._why)
            if not settled.is_set():
                self._settled, self._wanted = anyio.Event(), anyio.Event()
                settled.set()


@asynccontextmanager
async def open_server(connect: Callable[[], Client]) -> AsyncIterator[ToolServer]:
    """Open a server in a turn, or for all turns; ``connect`` returns a new client for it.

    Leaving the block ends the session. An exception of the block leaves it as it is, in no group.
    """
    server = ToolServer(connect)
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server._hold)
        try:
            yield server
        except Exception as error:
            failure = error
        finally:
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
