"""`/v1/responses`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trio_lanes.agents import FeedGapError, WhenBusy

from ..chat_agent.upstream import model_name
from ..openai_api.errors import BadInputError, Refused, failed
from ..openai_api.http import RESPONSE, EventStream, body_of, listed, unless_lost
from ..openai_api.items import numbered, shown, to_messages, unasked_approval
from ..openai_api.once import Key, key_of
from ..openai_api.requests import wanted
from ..openai_api.wire import Answer, Json
from .asks import Ask
from .backlog import Backlog
from .engine import Engine

# the shapes of an answer
Stream = Callable[[Answer], AsyncIterator[str]]
Whole = Callable[[Answer], Json]


async def reply(
    request: Request, body: Json, answer: Answer, stream: Stream, whole: Whole
) -> Response:
    """Reply with a response as a stream, or whole when it has ended, as the body asks for it.

    Unless it is in the background, it is stopped if its client leaves.
    """
    if body.get("stream"):
        lost = bool if body.get("background") else (lambda: answer.stop("hung up"))
        return EventStream(stream(answer), lost)
    if not body.get("background") and not await unless_lost(request, answer.ended.wait):
        answer.stop("the client hung up")
    check_here(answer)
    if answer.status == "failed" and answer.error is not None:
        raise failed(answer.error)
    return JSONResponse(whole(answer))


def check_here(answer: Answer) -> None:
    """Raise if a response goes on in the next process, which knows its key."""
    if answer.is_suspended:
        raise Refused(503, "the gateway is closing; try again", "shutting_down")


class Responses:
    """The endpoints; a session is a conversation, named by the client or made for a response."""

    def __init__(self, engine: Engine, backlog: Backlog) -> None:
        self._engine: Final = engine
        self._backlog: Final = backlog

    async def create(self, request: Request) -> Response:
        """`POST /v1/responses`."""
        body = await body_of(request)
        answer = await self.begin(body, key_of(request))
        response = await reply(request, body, answer, Answer.lines, Answer.object)
        if answer.position is not None:
            response.headers["x-lanes-position"] = str(answer.position)
        return response

    async def begin(self, body: Json, key: Key, succeeds: bool = False) -> Answer:
        """Accept a request, and give it its place; return its response.

        Args:
          key: has the same response for each request.
          succeeds: whether it steers a turn, whose responses end when the turn takes it.
        """
        return await self._backlog.once(key.id, key, partial(self._begin, body, key, succeeds))

    async def _begin(self, body: Json, key: Key, succeeds: bool) -> Answer:
        ask = await self._ask(body, key.id)
        if succeeds:
            ask.answer.succeeds, ask.mode = True, WhenBusy.STEER
        await self._engine.check_outputs(ask)
        return await self._backlog.begin(ask, key, bool(body.get("background")))

    async def retrieve(self, request: Request) -> Response:
        """`GET /v1/responses/{id}`, with `stream=true&starting_after=n`."""
        answer = self._find(request.path_params["id"])
        if request.query_params.get("stream") != "true":
            return JSONResponse(answer.object())
        try:
            return EventStream(answer.lines(int(request.query_params.get("starting_after", -1))))
        except (ValueError, FeedGapError) as bad:
            raise Refused(400, f"starting_after: {bad}") from None

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/responses/{id}/cancel`: returns when the slot is free."""
        answer = self._find(request.path_params["id"])
        answer.cancel("cancelled by the client")
        await answer.ended.wait()
        check_here(answer)
        return JSONResponse(answer.object())

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/responses/{id}`: it is cancelled first; its conversation stays."""
        answer = self._find(request.path_params["id"])
        answer.cancel("deleted by the client")
        await answer.ended.wait()
        check_here(answer)
        self._backlog.forget(answer.id)
        return JSONResponse({"id": answer.id, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        """`GET /v1/responses/{id}/input_items`."""
        answer = self._find(request.path_params["id"])
        return listed(request, [shown(item, item["id"]) for item in answer.input])

    async def _ask(self, body: Json, stem: str) -> Ask:
        """Return the request; ``stem`` is a part of all its ids."""
        upstream = self._engine.upstream
        fields, named = wanted(body, self._item, self._engine.toolbox)
        items, previous = fields["items"], fields["previous"]
        messages = to_messages(items)  # raises for an item that is not supported
        self._engine.check_images(messages, "input")
        pending = await self._engine.pending_of(items)
        session = named or f"one_{stem}"
        if pending is not None:
            session = pending.session
        elif (late := unasked_approval(items)) is not None:
            raise BadInputError(f"no call waits for {late[:100]}")
        elif not messages:
            raise BadInputError("input has nothing that a model can be asked")
        elif previous is not None:
            self._find(previous, "previous_response_not_found", "previous_response_id")
        name, id = model_name(upstream, fields["settings"]), f"resp_{session}.{stem}"
        answer = Answer.begun(session, name, body, id)
        answer.input = numbered(items, stem)
        return Ask(answer, **fields | {"items": answer.input})

    def _item(self, id: str) -> Json | None:
        """Return an item of a response that is in memory."""
        answers = reversed(self._engine.answers.values())
        items = (item for a in answers if a.is_stored for item in a.output)
        return next((item for item in items if item["id"] == id), None)

    def _find(self, id: str, code: str | None = None, param: str | None = None) -> Answer:
        answer = self._backlog.find(id) if RESPONSE.fullmatch(id) else None
        if answer is None or not answer.is_stored:
            raise Refused(404, "there is no such response", code, param=param)
        return answer
