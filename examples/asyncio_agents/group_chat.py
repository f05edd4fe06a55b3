"""A group chat with a bot that answers once for what several people wrote, and reads a digest.

make gateway                                      # the built-in model; it needs no key
python examples/asyncio_agents/group_chat.py      # in another terminal
python -m websockets ws://127.0.0.1:8000/ann      # each person in a terminal of their own
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import uvicorn
from fastapi import FastAPI, WebSocket
from openai import AsyncOpenAI

from trio_lanes.agents import Summary
from trio_lanes.aio import open_lanes
from trio_lanes.aio.agents import Feed, Inbox, Turn, WhenBusy

MODEL_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1")
KEY = os.environ.get("OPENAI_API_KEY", "none")


async def answer(turn: Turn) -> None:
    """Answer all that was written since the last answer; the oldest of too much is a digest."""
    digest = [text for text in turn.messages if isinstance(text, Summary)]
    written = [text for text in turn.messages if not isinstance(text, Summary)]
    if digest:
        written.insert(0, f"(before: {'; '.join(digest[0].splitlines())})")
    reply = await app.state.model.responses.create(
        model="built-in",
        input="\n".join(written),
        previous_response_id=app.state.last_reply,
    )
    app.state.last_reply = reply.id  # the model's memory of this chat
    app.state.chat.publish(f"bot: {reply.output_text}")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.chat = Feed[str](keep=200)
    app.state.last_reply = None
    async with AsyncOpenAI(base_url=MODEL_URL, api_key=KEY) as app.state.model:
        async with open_lanes() as lanes:
            app.state.inbox = Inbox(
                lanes,
                "team",
                answer,
                when_busy=WhenBusy.COLLECT,
                debounce=1,  # seconds without a message, then the bot answers
                max_wait=10,  # or so many after the first one
                cap=5,  # messages; older ones are in the digest
            )
            yield


app = FastAPI(lifespan=lifespan)


async def show(socket: WebSocket) -> None:
    """Show what is written from now on, until the socket is closed."""
    async with aclosing(app.state.chat.read(app.state.chat.last)) as lines:
        async for _, line in lines:
            await socket.send_text(line)


@app.websocket("/{name}")
async def chat(socket: WebSocket, name: str) -> None:
    await socket.accept()
    async with asyncio.TaskGroup() as group:
        showing = group.create_task(show(socket))
        async for text in socket.iter_text():
            app.state.chat.publish(f"{name}: {text}")
            app.state.inbox.post(f"{name}: {text}")
        showing.cancel()


if __name__ == "__main__":
    uvicorn.run(app)
