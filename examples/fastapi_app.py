"""Lanes in a FastAPI application: each user's messages in order, at most four answers at once.

uvicorn --app-dir examples fastapi_app:app; then: curl -d '' 'http://127.0.0.1:8000/chat/ann?text=hello'
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

from trio_lanes import LaneConfig, LaneFullError
from trio_lanes.aio import monitor, open_lanes

MAIN = LaneConfig(concurrency=4, max_waiting=100)


async def answer(text: str) -> str:
    await asyncio.sleep(len(text) / 10)  # a model thinks
    return f"you said {text!r}"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with open_lanes({"main": MAIN}) as app.state.lanes:
        app.mount("/lanes", monitor(app.state.lanes))
        yield
        await app.state.lanes.drain(grace=20)


app = FastAPI(lifespan=lifespan)


@app.post("/chat/{user}")
async def chat(user: str, text: str) -> str:
    try:
        job = app.state.lanes.submit_nowait(answer, text, session=user, timeout=60)
    except LaneFullError as error:
        raise HTTPException(503, str(error)) from error
    reply: str = await job.wait()
    return reply
