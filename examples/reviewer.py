"""A bot and those who review it: processes of their own, over one file.

python examples/reviewer.py bot jobs.db                       until Ctrl-C
python examples/reviewer.py ask jobs.db ann "refund order 5"  prints the answer
python examples/reviewer.py review jobs.db                    lists what is open
python examples/reviewer.py review jobs.db JOB CALL yes       decides
python examples/reviewer.py history jobs.db ann               also while the bot runs
"""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import trio

from trio_lanes.agents import (
    Conversation,
    DurableInbox,
    DurableTurn,
    SharedRunRegistry,
    SharedTranscripts,
    WhenBusy,
    inbox_handler,
)
from trio_lanes.durable import DurableLanes, SqliteStore, open_durable_lanes

TOOL_TIMEOUT = 30.0  # seconds that a tool may take
REVIEW_TIMEOUT = 7 * 24 * 3600.0  # that a person may take: the turn waits without a slot
MOST = 20_000  # characters of a tool's result that the model gets


async def tool(order: str) -> str:
    await trio.sleep(0.1)
    return f"{order}: done"


async def answer(lanes: DurableLanes, turn: DurableTurn) -> str:
    """Do what the messages ask for, each when a person has allowed it."""
    conversation = Conversation(turn.session, SharedTranscripts(lanes))
    if not await conversation.take_out(turn.id):
        return "answered before"  # by an attempt that was killed after it had written
    async with conversation.turn(*turn.messages, id=turn.id) as exchange:
        said = []
        for number, message in enumerate(turn.messages):
            call = {"id": f"call_{number}", "name": "tool", "order": message}
            decision = await turn.approve(call, timeout=REVIEW_TIMEOUT)
            result = f"{message}: refused"
            if decision.value == "yes":
                with trio.fail_after(TOOL_TIMEOUT):
                    result = (await tool(message))[:MOST]
            said.append(result)
        await exchange.finish(", ".join(said))
    return ", ".join(said)


async def bot(store: str) -> None:
    opened: list[DurableLanes] = []
    handlers = {"answer": inbox_handler(lambda turn: answer(opened[0], turn))}
    # a turn that waits for a person meets many restarts, and none of them is its fault
    async with open_durable_lanes(
        SqliteStore(store), handlers, {"main": 4}, max_crashes=math.inf
    ) as lanes:
        opened.append(lanes)
        print("ready", flush=True)
        await trio.sleep_forever()


@asynccontextmanager
async def beside(store: str) -> AsyncIterator[DurableLanes]:
    """The lanes for a process beside the bot: it submits and asks, and runs no turn."""
    async with open_durable_lanes(SqliteStore(store), {}, worker=False) as lanes:
        yield lanes


async def ask(store: str, session: str, text: str) -> None:
    async with beside(store) as lanes:
        # a second question is a turn of its own; by default, it would steer the first
        inbox = DurableInbox(lanes, session, "answer", when_busy=WhenBusy.FOLLOWUP)
        receipt = await inbox.post(text)
        print((await receipt.settled()).result)


async def review(store: str, job: str = "", call: str = "", decision: str = "") -> None:
    async with beside(store) as lanes:
        registry = SharedRunRegistry(lanes)
        if not job:
            for one in await registry.questions():
                print(one.session, one.job, one.call, one.data["order"])
            return
        done = await registry.submit(int(job), {call: decision})
        if done.reason is None:
            print("decided")
        else:
            print(f"refused: {done.reason.value}", *done.decided.values())


async def history(store: str, session: str) -> None:
    async with beside(store) as lanes:
        for message in await Conversation(session, SharedTranscripts(lanes)).messages():
            print(f"{message.role}: {message.content}")


if __name__ == "__main__":
    commands: dict[str, Callable[..., Awaitable[None]]] = {
        "bot": bot,
        "ask": ask,
        "review": review,
        "history": history,
    }
    try:
        trio.run(partial(commands[sys.argv[1]], *sys.argv[2:]))
    except* KeyboardInterrupt:
        pass  # a question stays open; the next `bot` goes on with its turn
