"""A turn with tools of a bank, which asks before it sends money: `python -m examples.mcp_tools`."""

import sys
from pathlib import Path

import trio
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client import ClientRequestContext
from mcp.types import ElicitRequestParams, ElicitResult

from trio_lanes import current_job, open_lanes
from trio_lanes.agents import ActionGate, run_tools

from .servers import open_server

PROCESS = StdioServerParameters(
    command=sys.executable, args=[str(Path(__file__).with_name("bank.py"))]
)
ASKED = {"Send 50 to bob?": {"sure": True}, "Send 900 to eve?": None}  # and what a person answers


async def approve(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    job = current_job()
    if job is None:
        return ElicitResult(action="cancel")  # it is of no turn
    gate = ActionGate([{"id": "answer", "question": params.message}])
    show(params.message, gate)
    async with job.yield_slot(reason=params.message):
        with trio.move_on_after(600):
            await gate.wait()
        gate.cancel("not answered in time")  # has no effect if somebody has
    [answer] = await gate.wait()
    if answer.kind == "cancelled":
        return ElicitResult(action="cancel")
    if answer.value is None:
        return ElicitResult(action="decline")
    return ElicitResult(action="accept", content=answer.value)


def show(question: str, gate: ActionGate) -> None:
    """Stand in for a page: show a question, and answer it."""
    print(f"  {question}")
    gate.submit({"answer": ASKED[question]})


def bank() -> Client:
    """Return a client that is not connected: of a process, or of the URL that is the argument."""
    server = sys.argv[1] if len(sys.argv) > 1 else stdio_client(PROCESS)
    return Client(server, elicitation_callback=approve)


async def answer() -> None:
    """A turn: in place of a model's calls, four of them."""
    async with open_server(bank) as server:
        calls = [
            server.call("call-1", "rate", {"currency": "EUR"}, timeout=20),
            server.call("call-2", "transfer", {"to": "bob", "amount": 50}),
            server.call("call-3", "rate", {"currency": "XXX"}, timeout=20),
            server.call("call-4", "transfer", {"to": "eve", "amount": 900}),
        ]
        async with run_tools(calls, limit=3) as run:
            async for event in run:
                print(event.item_id, event.kind, event.data)


async def main() -> None:
    async with open_lanes({"main": 10}) as lanes:
        await lanes.run(answer, session="alice")


if __name__ == "__main__":
    trio.run(main)
