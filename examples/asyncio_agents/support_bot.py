"""A support bot in FastAPI: it asks a person before it sends money, and survives kill -9.

make gateway                                     # the built-in model; it needs no key
python examples/asyncio_agents/support_bot.py    # in another terminal, at port 8000
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from itertools import count
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import attrs
import uvicorn
from fastapi import FastAPI, HTTPException
from openai import AsyncOpenAI
from pydantic import BaseModel

from trio_lanes.aio import open_durable_lanes, to_thread
from trio_lanes.aio.agents import (
    Conversation,
    DurableInbox,
    DurableTurn,
    Message,
    SharedRunRegistry,
    SharedTranscripts,
    WhenBusy,
    inbox_handler,
)
from trio_lanes.durable import SqliteStore

FOLDER = Path(os.environ.get("BOT_FOLDER", "."))
MODEL_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1")
KEY = os.environ.get("OPENAI_API_KEY", "none")
PARAMETERS = {"type": "object", "properties": {"order": {"type": "integer"}}}
REFUND = {"type": "function", "function": {"name": "refund", "parameters": PARAMETERS}}


def refund(order: int, key: str) -> str:
    """The service with the money: a second refund with the same key is the first one."""
    with closing(sqlite3.connect(FOLDER / "refunds.db")) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS refunds (key TEXT PRIMARY KEY, number INTEGER)")
        db.execute("INSERT OR IGNORE INTO refunds VALUES (?, ?)", (key, order))
    return f"order {order} is refunded"


def as_chat(message: Message) -> dict[str, Any]:
    """A message of a conversation, as OpenAI's chat completions have it."""
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        shown["tool_calls"] = [*message.tool_calls]
    if message.tool_call_id:
        shown["tool_call_id"] = message.tool_call_id
    return shown


async def ask_model(messages: Sequence[Message]) -> dict[str, Any]:
    reply = await app.state.model.chat.completions.create(
        model="built-in", messages=[as_chat(message) for message in messages], tools=[REFUND]
    )
    return dict(reply.choices[0].message.model_dump(exclude_none=True))


async def use_tool(turn: DurableTurn, call: dict[str, Any]) -> str:
    order = json.loads(call["function"]["arguments"])["order"]
    if (await turn.approve(call, {"refund": order})).value != "yes":  # it waits for a person
        return f"order {order} is not refunded: a person has refused it"
    return await to_thread(refund, order, f"{turn.session} {turn.id} {call['id']}")


async def answer(turn: DurableTurn) -> str:
    """Answer messages of a customer. After a crash it is called again, and goes on."""
    conversation = Conversation(turn.session, SharedTranscripts(app.state.lanes))
    said: list[dict[str, Any]] = list(turn.checkpoint_data or [])  # by the model, in each attempt
    if not await conversation.take_out(turn.id):
        return str(said[-1]["content"])  # the answer was complete
    async with conversation.turn(*turn.messages, id=turn.id) as exchange:
        for step in count():
            if step == len(said):
                said.append(await ask_model(exchange.prompt))
                await turn.checkpoint(said)  # a person approves this call, not one like it
            reply = said[step]
            if not reply.get("tool_calls"):
                await exchange.finish(reply["content"])
                break
            await exchange.call(reply["tool_calls"])
            for call in reply["tool_calls"]:
                await exchange.result(call["id"], await use_tool(turn, call))
            if steers := await turn.take():  # what the customer has written meanwhile
                await exchange.steer(*steers)
    return str(said[-1]["content"])


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    store, handlers = SqliteStore(FOLDER / "bot.db"), {"answer": inbox_handler(answer)}
    async with AsyncOpenAI(base_url=MODEL_URL, api_key=KEY) as app.state.model:
        # a turn that waits for a person meets many restarts, and none of them is its fault
        async with open_durable_lanes(
            store, handlers, {"main": 4}, grace=5, max_crashes=math.inf
        ) as app.state.lanes:
            yield


app = FastAPI(lifespan=lifespan)


class Hook(BaseModel):
    customer: str
    id: str  # of the message; one that is delivered again is accepted once
    text: str
    when_busy: WhenBusy = WhenBusy.STEER


@app.post("/hook", status_code=202)
async def hook(message: Hook) -> int:
    """Accept a message: when this returns, it is in the file, under the number of its job."""
    inbox = DurableInbox(app.state.lanes, message.customer, "answer")
    receipt = await inbox.post(message.text, id=message.id, when_busy=message.when_busy)
    if receipt.job is None:
        raise HTTPException(409, "refused")  # `when_busy` is "reject", or too many wait
    return receipt.job.id


@app.get("/chats/{customer}")
async def chat(customer: str) -> list[str]:
    conversation = Conversation(customer, SharedTranscripts(app.state.lanes))
    said = [one for one in await conversation.messages() if one.content]
    return [f"{one.role}: {one.content}" for one in said]


@app.post("/chats/{customer}/stop")
async def stop(customer: str) -> bool:
    """End the turn that is active; what waits runs next."""
    return bool(await app.state.lanes.abort(customer, "stopped"))


@app.get("/questions")
async def questions() -> list[dict[str, Any]]:
    found = await SharedRunRegistry(app.state.lanes).questions()
    # the second question about a call is "call_0#2", and "#" ends the path of a URL
    return [attrs.asdict(one) | {"url": f"/questions/{one.job}/{quote(one.call)}"} for one in found]


@app.post("/questions/{job}/{call:path}")
async def decide(job: int, call: str, decision: Literal["yes", "no"]) -> None:
    sent = await SharedRunRegistry(app.state.lanes).submit(job, {call: decision})
    if sent.reason is not None:
        raise HTTPException(409, {"reason": sent.reason.value, "decided": dict(sent.decided)})


if __name__ == "__main__":
    uvicorn.run(app)
