"""`/v1/chat/completions` and `/v1/models`: turns without a session, fair by `user`."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trio_lanes.agents import Feed

from ..chat_agent.model import Cut, Message, ModelError, Settings
from ..chat_agent.upstream import ask_model, model_name
from ..openai_api.chat import Done, chunks, completion, to_message
from ..openai_api.errors import BadInputError, Refused, failed, of_model, problem
from ..openai_api.fields import COMPLETIONS
from ..openai_api.http import EventStream, body_of, unless_lost
from ..openai_api.requests import chat_request
from ..openai_api.wire import Json
from .engine import TURNS, Engine

# the shapes of an answer, from the name of the model and what it says
Stream = Callable[[str, Feed[Any]], AsyncIterator[str]]
Whole = Callable[[str, Sequence[Any]], Json]


class Completions:
    """The endpoints."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`."""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/{model}`."""
        if request.path_params["model"] != self._engine.upstream.name:
            raise Refused(404, "there is no such model", "model_not_found")
        return JSONResponse(self._model())

    def _model(self) -> Json:
        name = self._engine.upstream.name
        return {"id": name, "object": "model", "created": 0, "owned_by": "gateway"}

    async def create(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        body = await body_of(request)
        return await self.answer(request, body, partial(chunks, body), completion)

    async def answer(self, request: Request, body: Json, stream: Stream, whole: Whole) -> Response:
        """Answer a request for a completion, in these shapes."""
        tools, settings = chat_request(COMPLETIONS, body)
        try:
            messages = [to_message(message) for message in body.get("messages") or ()]
            if not any(message.role in ("user", "tool") for message in messages):
                raise BadInputError("messages must have a message of a user")
            self._engine.check_images(messages, "messages")
        except BadInputError as bad:
            bad.param = "messages"
            raise
        feed: Feed[Any] = Feed(math.inf)
        user = body.get("user")
        self._engine.shares.check(user)
        job = self._engine.begin(
            self._run, messages, tools, settings, feed, owner=user, name="completion"
        )
        self._engine.shares.begun(user)

        def settled(job: object) -> None:
            feed.close()
            self._engine.shares.ended(user)

        job.on_settled(settled)
        if key := request.scope.get("once"):
            key.begun = True
        model = model_name(self._engine.upstream, settings)
        if body.get("stream"):
            return EventStream(stream(model, feed), lambda: job.cancel("hung up"))
        if not await unless_lost(request, job.wait_done):
            job.cancel("the client hung up")
            await job.wait_done()
        return JSONResponse(whole(model, feed.since(-1)))

    async def _run(
        self, messages: list[Message], tools: list[Json], settings: Settings, feed: Feed[Any]
    ) -> None:
        engine = self._engine
        try:
            model = engine.upstream.model(tools, settings)
            calls = await ask_model(model, messages, engine.lanes, TURNS, feed.publish)
            for call in calls:
                feed.publish(call)
            cut = next((event.reason for event in feed.since(-1) if isinstance(event, Cut)), "")
            feed.publish(Done(cut or ("tool_calls" if calls else "stop")))
        except ModelError as error:
            feed.publish(failed(of_model(error)))
        except Exception as error:
            feed.publish(failed(problem(f"the gateway failed: {type(error).__name__}")))
            raise
