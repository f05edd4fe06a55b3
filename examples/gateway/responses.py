"""`/v1/responses` and `/v1/conversations`."""

from __future__ import annotations

import time
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trio_lanes.agents import FeedGapError, WhenBusy

from ..openai_api.http import EventStream, Refused, body_of, field, named, unless_lost
from ..openai_api.items import split_tools, to_items, to_messages
from ..openai_api.wire import Answer, Json, new_id
from .asks import Ask
from .engine import BusyError, Engine


class Responses:
    """The endpoints; a session is a conversation, named by the client or made for a response."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine

    async def create(self, request: Request) -> Response:
        """`POST /v1/responses`."""
        body = await body_of(request)
        ask, mode, group = self._ask(body)
        try:
            self._engine.post(ask, mode, group)
        except BusyError:
            no_retry = {"x_should_retry": "false"}
            raise Refused(
                409, "the conversation is busy", "conversation_busy", **no_retry
            ) from None
        answer = ask.answer
        if field(body, "stream", bool, False):
            lost = (lambda: None) if body.get("background") else (lambda: answer.stop("hung up"))
            return EventStream(answer.lines(-1), lost)
        if not body.get("background") and not await unless_lost(request, answer.ended.wait):
            answer.stop("the client hung up")
        return JSONResponse(answer.object())

    async def retrieve(self, request: Request) -> Response:
        """`GET /v1/responses/{id}`, with `stream=true&starting_after=n`."""
        answer = self._engine.answers.get(request.path_params["id"])
        if answer is None:
            return JSONResponse(await self._kept(request.path_params["id"]))
        if request.query_params.get("stream") != "true":
            return JSONResponse(answer.object())
        try:
            return EventStream(
                answer.lines(int(request.query_params.get("starting_after", -1))), lambda: None
            )
        except (ValueError, FeedGapError) as bad:
            raise Refused(400, f"starting_after: {bad}") from None

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/responses/{id}/cancel`: returns when the slot is free."""
        answer = self._engine.answers.get(request.path_params["id"])
        if answer is None:
            raise Refused(404, "there is no such response")
        answer.stop("cancelled by the client")
        await answer.ended.wait()
        return JSONResponse(answer.object())

    async def create_conversation(self, request: Request) -> Response:
        """`POST /v1/conversations`."""
        body = await body_of(request)
        return JSONResponse(_conversation(new_id("conv"), field(body, "metadata", dict, {})))

    async def conversation(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}`: every valid name is one, empty at first."""
        return JSONResponse(_conversation(named(request.path_params["id"]), {}))

    async def items(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}/items`, newest first unless `order=asc`."""
        found = to_items(await self._engine.messages(named(request.path_params["id"])))
        if request.query_params.get("order") != "asc":
            found.reverse()
        return JSONResponse({"object": "list", "data": found, "has_more": False,
                             "first_id": None, "last_id": None})  # fmt: skip

    def _ask(self, body: Json) -> tuple[Ask, WhenBusy | None, str | None]:
        """Return the request, its mode, and its group."""
        given = body.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        if not isinstance(items, list) or not items or not all(isinstance(i, dict) for i in items):
            raise Refused(400, "input must be a string, or a list of items that is not empty")
        items = [self._referred(item) for item in items]
        to_messages(items)  # raises for an item that is not supported
        previous = field(body, "previous_response_id", str)
        conversation = body.get("conversation")
        if isinstance(conversation, dict):
            conversation = conversation.get("id")
        if previous is not None and conversation is not None:
            raise Refused(400, "either conversation or previous_response_id")
        session = self._engine.session_of_calls(items)
        if session is None and previous is not None:
            session = named(previous).removeprefix("resp_").rpartition(".")[0]
        if session is None:
            session = new_id("one") if conversation is None else named(str(conversation))
        metadata = field(body, "metadata", dict, {})
        mode = metadata.get("when_busy")
        if mode is not None and mode not in [*WhenBusy]:
            raise Refused(400, f"metadata.when_busy must be one of {', '.join(WhenBusy)}")
        functions, servers = split_tools(field(body, "tools", list, []), self._engine.toolbox)
        answer = Answer(session, self._engine.upstream.name, body)
        instructions = field(body, "instructions", str, "")
        ask = Ask(answer, items, instructions, functions, servers, previous)
        return ask, None if mode is None else WhenBusy(mode), field(body, "user", str)

    def _referred(self, item: Json) -> Json:
        """Return the item that a reference names."""
        if item.get("type") != "item_reference":
            return item
        for answer in reversed(self._engine.answers.values()):
            for known in answer.output:
                if known["id"] == item.get("id"):
                    return known
        raise Refused(404, f"there is no item {str(item.get('id'))[:60]}")

    async def _kept(self, id: str) -> Json:
        """Return a completed response from the transcript of its session."""
        session = named(id).removeprefix("resp_").rpartition(".")[0]
        for message in await self._engine.messages(session) if session else []:
            if message.usage and id in message.usage["responses"]:
                answer = Answer(session, self._engine.upstream.name, {})
                answer.text(str(message.content))
                answer.end("completed")
                return answer.object() | {"id": id}
        raise Refused(404, "there is no such response")


def _conversation(id: str, metadata: Any) -> Json:
    return {
        "id": id,
        "object": "conversation",
        "created_at": int(time.time()),
        "metadata": metadata,
    }
