"""`/v1/responses` and `/v1/conversations`."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trio_lanes.agents import FeedGapError, WhenBusy

from ..chat_agent.upstream import model_name, takes_images
from ..openai_api.errors import BadInputError, failed
from ..openai_api.fields import CONVERSATIONS, checked
from ..openai_api.http import (
    RESPONSE,
    EventStream,
    Refused,
    body_of,
    field,
    listed,
    named,
    unless_lost,
)
from ..openai_api.items import conversation_object, to_items, to_messages, without_call
from ..openai_api.requests import wanted
from ..openai_api.wire import Answer, Json, new_id, session_of
from .asks import Ask
from .backlog import Backlog
from .engine import BusyError, Engine


class Responses:
    """The endpoints; a session is a conversation, named by the client or made for a response."""

    def __init__(self, engine: Engine, backlog: Backlog | None) -> None:
        self._engine: Final = engine
        self._backlog: Final = backlog

    async def create(self, request: Request) -> Response:
        """`POST /v1/responses`."""
        body = await body_of(request)
        answer = await self.begin(body)
        place = {} if answer.position is None else {"x-lanes-position": str(answer.position)}
        if body.get("stream"):
            lost = (lambda: None) if body.get("background") else (lambda: answer.stop("hung up"))
            stream = EventStream(answer.lines(-1), lost)
            stream.headers.update(place)
            return stream
        if not body.get("background") and not await unless_lost(request, answer.ended.wait):
            answer.stop("the client hung up")
        if answer.status == "failed" and answer.error is not None:
            raise failed(answer.error)
        return JSONResponse(answer.object(), headers=place)

    async def begin(self, body: Json, succeeds: bool = False) -> Answer:
        """Accept a request, and give it its place; return its response.

        Args:
          succeeds: whether it steers a turn, whose responses end when the turn takes it.
        """
        ask, mode, group = await self._ask(body)
        ask.answer.succeeds = succeeds
        mode = WhenBusy.STEER if succeeds else mode
        try:
            if self._backlog is not None and (body.get("background") or self._backlog.takes_all):
                return await self._backlog.accept(ask, mode, group)
            self._engine.post(ask, mode, group)
            return ask.answer
        except BusyError:
            no_retry = {"x_should_retry": "false"}
            raise Refused(
                409, "the conversation is busy", "conversation_busy", **no_retry
            ) from None

    async def retrieve(self, request: Request) -> Response:
        """`GET /v1/responses/{id}`, with `stream=true&starting_after=n`."""
        answer = await self._find(request.path_params["id"])
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
        answer = await self._find(request.path_params["id"])
        answer.cancel("cancelled by the client")
        await answer.ended.wait()
        return JSONResponse(answer.object())

    async def create_conversation(self, request: Request) -> Response:
        """`POST /v1/conversations`."""
        body = await body_of(request)
        checked(CONVERSATIONS, body)
        return JSONResponse(conversation_object(new_id("conv"), field(body, "metadata", dict, {})))

    async def conversation(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}`: every valid name is one, empty at first."""
        return JSONResponse(conversation_object(named(request.path_params["id"]), {}))

    async def items(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}/items`, newest first unless `order=asc`."""
        messages = await self._engine.messages(named(request.path_params["id"]))
        return listed(request, to_items(messages))

    async def _ask(self, body: Json) -> tuple[Ask, WhenBusy | None, str | None]:
        """Return the request, its mode, and its group."""
        upstream = self._engine.upstream
        want = wanted(body, self._item, self._engine.toolbox, takes_images(upstream))
        items, previous = want.ask["items"], want.ask["previous"]
        pending = self._engine.pending_of(items)
        session = want.session or new_id("one")
        if pending is not None:
            session = pending.session
        elif (late := without_call(items, want.session is None)) is not None:
            raise BadInputError(f"no call waits for {late[:100]}")
        elif not to_messages(items):
            raise BadInputError("input has nothing that a model can be asked")
        elif previous is not None:
            try:
                await self._find(previous)
            except Refused as unknown:
                unknown.code, unknown.param = "previous_response_not_found", "previous_response_id"
                raise
        answer = Answer.begun(session, model_name(upstream, want.ask["settings"]), body)
        return Ask(answer, **want.ask), want.when_busy, body.get("user")

    def _item(self, id: str) -> Json | None:
        """Return an item of a response that is in memory."""
        answers = reversed(self._engine.answers.values())
        items = (item for a in answers if a.is_stored for item in a.output)
        return next((item for item in items if item["id"] == id), None)

    async def _find(self, id: str) -> Answer:
        """Return a response: from memory, from its file, or from its conversation."""
        if not RESPONSE.fullmatch(id):
            raise Refused(404, "there is no such response")
        answer = self._engine.answers.get(id)
        if (answer is None or answer.is_suspended) and self._backlog is not None:
            answer = self._backlog.find(id)
        if answer is not None and answer.is_stored:
            return answer
        said = await self._engine.said(id)
        if said is None:
            raise Refused(404, "there is no such response")
        answer = Answer.begun(session_of(id), self._engine.upstream.name, {}, id)
        answer.text(said)
        answer.end("completed")
        return answer
