"""MCP servers whose tools run on the gateway: they report progress, hang, and die."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from mcp.server.mcpserver import Context, MCPServer
from trio.testing import MockClock

from examples.chat_agent.model import ToolCall
from examples.chat_agent.toolbox import (
    CONNECT_SECONDS,
    PER_SERVER,
    RECONNECT_SECONDS,
    Toolbox,
    open_toolbox,
)
from examples.chat_agent.tools import ToolError
from tests.support.programs import PATIENCE
from trio_lanes import LaneConfig, open_lanes

LANES = {"mcp:*": LaneConfig(concurrency=PER_SERVER)}
SERVER = '''
import os, sys
from mcp.server.mcpserver import MCPServer

folder = sys.argv[1]
if os.path.exists(os.path.join(folder, "broken")):
    sys.exit("broken")
server = MCPServer("demo")

@server.tool()
async def pid() -> str:
    """The process."""
    return str(os.getpid())

@server.tool()
async def die() -> str:
    """End."""
    os._exit(1)

server.run()
'''


def call(name: str) -> ToolCall:
    return ToolCall("1", name, "{}")


@asynccontextmanager
async def working(seconds: float, start: float = 0.0) -> AsyncIterator[Toolbox]:
    """A toolbox with a tool that works for 8 s, and says so or not; its server needs a start."""

    @asynccontextmanager
    async def starting(server: object) -> AsyncIterator[None]:
        await trio.sleep(start)
        yield

    server = MCPServer("demo", lifespan=starting)

    @server.tool()
    async def loud(context: Context) -> str:
        for second in range(8):
            await trio.sleep(1)
            await context.report_progress(second, 8)
        return "done"

    @server.tool()
    async def silent() -> str:
        await trio.sleep(8)
        return "done"

    toolbox = Toolbox(seconds)
    async with trio.open_nursery() as nursery:
        await toolbox.connect("demo", server, nursery)
        yield toolbox
        nursery.cancel_scope.cancel()


async def test_progress_of_a_tool_starts_its_time_anew(autojump_clock: MockClock) -> None:
    async with open_lanes(LANES) as lanes, working(2.0) as toolbox:
        assert await toolbox.run(lanes, call("loud"), {"demo": None}) == "done"
        with pytest.raises(ToolError, match="no answer after 2 s"):
            await toolbox.run(lanes, call("silent"), {"demo": None})


async def test_a_tool_that_reports_progress_ends_with_its_turn(autojump_clock: MockClock) -> None:
    async with open_lanes(LANES) as lanes, working(2.0) as toolbox:
        with trio.move_on_after(5) as turn:
            await toolbox.run(lanes, call("loud"), {"demo": None})
        assert turn.cancelled_caught
        assert trio.current_time() < 6


async def test_the_start_of_a_server_is_no_part_of_the_time_of_a_call(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes(LANES) as lanes, working(2.0, start=5.0) as toolbox:
        toolbox._servers["demo"]._lost.set()
        assert await toolbox.run(lanes, call("loud"), {"demo": None}) == "done"


async def test_an_attempt_to_connect_ends_after_some_time(autojump_clock: MockClock) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(ToolError, match="cannot be reached: no answer")):
        async with working(2.0, start=1e6):
            pass
    assert trio.current_time() == CONNECT_SECONDS


@pytest.mark.real_processes
async def test_a_server_that_died_is_started_again_at_its_next_call(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    demo = f"demo={sys.executable} {program} {tmp_path}"
    with trio.fail_after(PATIENCE):
        async with open_toolbox(PATIENCE, [demo]) as toolbox, open_lanes(LANES) as lanes:

            async def use(name: str) -> str:
                return await toolbox.run(lanes, call(name), {"demo": None})

            first = int(await use("pid"))
            os.kill(first, signal.SIGKILL)
            await trio.sleep(0.5)  # if its end is seen by the call itself, the call fails
            with suppress(ToolError):
                assert int(await use("pid")) != first
            second = int(await use("pid"))
            with pytest.raises(ToolError):  # it is not called a second time
                await use("die")
            third = int(await use("pid"))
            assert third not in (first, second)
            (tmp_path / "broken").touch()
            os.kill(third, signal.SIGKILL)
            with pytest.raises(ToolError):
                await use("pid")
            began = trio.current_time()
            for _ in range(2):
                with pytest.raises(ToolError, match="demo cannot be reached"):
                    await use("pid")
            assert trio.current_time() - began >= RECONNECT_SECONDS  # between the attempts
            assert await toolbox.run(lanes, call("time"), {"gateway": None})
            (tmp_path / "broken").unlink()
            assert int(await use("pid")) not in (first, second, third)
