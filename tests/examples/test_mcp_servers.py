"""Real MCP servers, over stdio and HTTP: the example of `docs/agents/mcp.md`, and a kill -9."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from mcp import Client, StdioServerParameters, stdio_client
from mcp.types import ElicitResult

from examples.mcp_tools import __main__ as example
from examples.mcp_tools.servers import ToolServer, open_server
from tests.examples.test_mcp_tools import events_of
from tests.support.programs import PATIENCE, ROOT
from trio_lanes import aio, current_job
from trio_lanes.agents import run_tools
from trio_lanes.aio.agents import run_tools as run_tools_in_asyncio

pytestmark = pytest.mark.real_processes

EXAMPLE = ROOT / "examples" / "mcp_tools"
BANK = EXAMPLE / "bank.py"


@contextmanager
def listening(path: Path, port: int) -> Iterator[int]:
    """The pid of a server over HTTP, from when it can be reached."""
    with subprocess.Popen([sys.executable, path, str(port)], env=os.environ) as process:
        try:
            give_up = time.monotonic() + PATIENCE
            while True:
                with socket.socket() as probe:
                    if not probe.connect_ex(("127.0.0.1", port)):
                        break
                assert time.monotonic() < give_up
                time.sleep(0.02)
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
        return number


def by_call(text: str) -> tuple[list[str], set[str]]:
    """The events, whose order is that of the calls, and the questions, which come at any time."""
    lines = text.splitlines()
    events = [line for line in lines if line.startswith("call-")]
    return events, {line for line in lines if line not in events}


EXPECTED = (EXAMPLE / "output.txt").read_text("utf-8")


async def test_the_example_prints_what_its_page_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [""])
    with trio.fail_after(PATIENCE):
        await example.main()
    assert by_call(capsys.readouterr().out) == by_call(EXPECTED)


# The SDK does not close the generators with which it reads a stream that has ended.
leaves_generators = pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning")


@leaves_generators
async def test_over_http_the_example_prints_the_same(
    port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["", f"http://127.0.0.1:{port}/mcp"])
    with listening(BANK, port), trio.fail_after(PATIENCE):
        await example.main()
    assert by_call(capsys.readouterr().out) == by_call(EXPECTED)


HANGING = """
import os, sys, anyio
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("demo", log_level="ERROR")

@server.tool()
async def hang(context: Context) -> str:
    await context.report_progress(1, message=str(os.getpid()))
    await anyio.sleep_forever()

@server.tool()
async def pid() -> str:
    return str(os.getpid())

if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run()
"""


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    path = tmp_path / "hanging.py"
    path.write_text(HANGING)
    return path


async def killed_in_the_middle(servers: list[ToolServer]) -> int:
    """Kill a process when it runs a call of each session; all of them end with errors."""
    calls = [server.call(f"{number}", "hang") for number, server in enumerate(servers)]
    async with run_tools(calls, order="completion") as run:
        pids = {int((await anext(run)).data) for _ in calls}
        [pid] = pids
        os.kill(pid, signal.SIGKILL)
        assert [event.kind async for event in run] == ["error"] * len(calls)
    return pid


async def pid_of(server: ToolServer) -> int:
    [event] = await events_of([server.call("pid", "pid")])
    assert event.kind == "result", event.data
    return int(event.data)


async def test_calls_of_a_process_that_is_killed_end_with_errors_and_the_next_call_starts_another(
    hanging: Path,
) -> None:
    started = StdioServerParameters(command=sys.executable, args=[str(hanging)])
    with trio.fail_after(PATIENCE):
        async with open_server(lambda: Client(stdio_client(started))) as server:
            killed = await killed_in_the_middle([server])
            assert await pid_of(server) != killed


@leaves_generators
async def test_calls_over_http_of_a_process_that_is_killed_end_with_errors_until_it_is_back(
    hanging: Path, port: int
) -> None:
    url = f"http://127.0.0.1:{port}/mcp"
    with trio.fail_after(PATIENCE):
        async with (
            open_server(lambda: Client(url, mode="legacy")) as old,
            open_server(lambda: Client(url)) as new,
        ):
            with listening(hanging, port):
                await killed_in_the_middle([old, new])
            for server in (old, new):
                [event] = await events_of([server.call("pid", "pid")])
                assert event.kind == "error"
            with listening(hanging, port) as pid:
                assert {await pid_of(old), await pid_of(new)} == {pid}


def test_in_asyncio_calls_of_a_killed_server_end_with_errors_and_those_of_another_go_on(
    hanging: Path, port: int
) -> None:
    url = f"http://127.0.0.1:{port}/mcp"

    async def approve(context: object, params: object) -> ElicitResult:
        job = current_job()
        assert job is not None
        assert job.session == "alice"
        async with job.yield_slot():
            await asyncio.sleep(0)
        return ElicitResult(action="accept", content={"sure": True})

    def bank() -> Client:
        return Client(stdio_client(example.PROCESS), elicitation_callback=approve)

    async def turn() -> list[tuple[str, str]]:
        async with (
            open_server(bank) as asking,
            open_server(lambda: Client(url, mode="legacy")) as old,
            open_server(lambda: Client(url)) as new,
        ):
            calls = [
                asking.call("pay", "transfer", {"to": "bob", "amount": 5}),
                old.call("old", "hang"),
                new.call("new", "hang"),
            ]
            async with run_tools_in_asyncio(calls, order="completion") as run:
                hung = set()
                async for event in run:
                    if event.kind == "output":
                        hung.add(event.item_id)
                    if hung == {"old", "new"}:
                        os.kill(int(event.data), signal.SIGKILL)
                        hung.clear()
            return [(result.id, result.kind) for result in run.results]

    async def main() -> None:
        with listening(hanging, port):
            async with asyncio.timeout(PATIENCE), aio.open_lanes() as lanes:
                results = await lanes.run(turn, session="alice")
        assert results == [("pay", "result"), ("old", "error"), ("new", "error")]

    asyncio.run(main())
