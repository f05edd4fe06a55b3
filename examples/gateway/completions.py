"""Turns without a session, fair by `user`: chat completions, and Anthropic's messages.

A request for a message becomes one for a completion, and its answer is shown as a message.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..anthropic_api.messages import message, message_events
from ..anthropic_api.requests import count, to_completion
from ..chat_agent.upstream import model_name
from ..openai_api.chat import check_calls, chunks, completion, to_message
from ..openai_api.errors import BadInputError, Refused
from ..openai_api.fields import COMPLETIONS
from ..openai_api.http import body_of
from ..openai_api.once import key_of
from ..openai_api.requests import chat_request
from ..openai_api.wire import Answer, Json
from .asks import Ask
from .backlog import COMPLETION, Backlog
from .engine import Engine
from .responses import Stream, Whole, reply


class Completions:
    """The endpoints; a completion is a response that is in no conversation, and in no list."""

    def __init__(self, engine: Engine, backlog: Backlog) -> None:
        self._engine: Final = engine
        self._backlog: Final = backlog

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
        return await self._answer(request, body, partial(chunks, body), completion)

    async def create_message(self, request: Request) -> Response:
        """`POST /v1/messages`."""
        asked = to_completion(await body_of(request))
        if "max_completion_tokens" not in asked:
            raise BadInputError("max_tokens is missing", "max_tokens")
        return await self._answer(request, asked, message_events, message)

    async def count_tokens(self, request: Request) -> Response:
        """`POST /v1/messages/count_tokens`: an estimate, since chat completions have no count."""
        return JSONResponse({"input_tokens": count(to_completion(await body_of(request)))})

    async def _answer(self, request: Request, body: Json, stream: Stream, whole: Whole) -> Response:
        """Answer a request for a completion, in these shapes."""
        tools, settings = chat_request(COMPLETIONS, body)
        try:
            messages = [to_message(message) for message in body.get("messages") or ()]
            if not any(message.role in ("user", "tool") for message in messages):
                raise BadInputError("messages must have a message of a user")
            check_calls(messages)
            self._engine.check_images(messages, "messages")
        except BadInputError as bad:
            bad.param = "messages"
            raise
        key = key_of(request)
        stem = f"{COMPLETION}{key.id}"
        name, id = model_name(self._engine.upstream, settings), f"resp_{stem}.{stem}"
        answer = Answer.begun(stem, name, {"store": False}, id)
        ask = Ask(answer, [], tools=tools, settings=settings, is_kept=False, alone=True)
        ask.messages, ask.user = body["messages"], body.get("user")
        answer = await self._backlog.once(stem, key, partial(self._backlog.begin, ask, key))
        return await reply(request, body, answer, stream, whole)
