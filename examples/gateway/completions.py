"""`/v1/chat/completions` and `/v1/models`: turns without a session, fair by `user`."""

from __future__ import annotations

import time
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trio_lanes.agents import Feed

from ..chat_agent.model import Message, ModelError
from ..openai_api.chat import chunks, completion, to_message
from ..openai_api.http import EventStream, Refused, body_of, field, unless_lost
from ..openai_api.wire import Json, new_id
from .engine import TURNS, Engine


class Completions:
    """The endpoints."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`."""
        model = {"id": self._engine.upstream.name, "object": "model", "created": 0,
                 "owned_by": "gateway"}  # fmt: skip
        return JSONResponse({"object": "list", "data": [model]})

    async def create(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        body = await body_of(request)
        messages = [to_message(message) for message in field(body, "messages", list, [])]
        if not any(message.role in ("user", "tool") for message in messages):
            raise Refused(400, "messages must have a message of a user")
        feed: Feed[Any] = Feed(keep=100_000)
        job = self._engine.lanes.submit_nowait(
            self._run, messages, field(body, "tools", list, []), feed, lane=TURNS,
            owner=field(body, "user", str), name="completion",
        )  # fmt: skip
        job.on_settled(lambda job: feed.close())
        model = body.get("model") or self._engine.upstream.name
        head = {"id": new_id("chatcmpl"), "created": int(time.time()), "model": model}
        if field(body, "stream", bool, False):
            usage = (field(body, "stream_options", dict, {})).get("include_usage")
            return EventStream(chunks(head, feed, bool(usage)), lambda: job.cancel("hung up"))
        if not await unless_lost(request, job.wait_done):
            job.cancel("the client hung up")
            await job.wait_done()
        events = feed.since(-1)
        for event in events:
            if isinstance(event, ModelError):
                raise Refused(502, str(event), "upstream_error")
        return JSONResponse(head | completion(events))

    async def _run(self, messages: list[Message], tools: list[Json], feed: Feed[Any]) -> None:
        try:
            async with self._engine.upstream.model(tools).stream(messages) as events:
                async for event in events:
                    feed.publish(event)
        except ModelError as error:
            feed.publish(error)
