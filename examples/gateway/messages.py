"""`/v1/messages`: Anthropic's API, as a translation of chat completions."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..anthropic_api.messages import message, message_events
from ..anthropic_api.requests import count, to_completion
from ..openai_api.errors import BadInputError
from ..openai_api.http import EventStream, body_of, unless_lost
from .completions import Completions


class Messages:
    """The endpoints."""

    def __init__(self, completions: Completions) -> None:
        self._completions: Final = completions

    async def create(self, request: Request) -> Response:
        """`POST /v1/messages`."""
        asked = to_completion(await body_of(request))
        if "max_completion_tokens" not in asked:
            raise BadInputError("max_tokens is missing", "max_tokens")
        job, feed, model = self._completions.begin(asked)
        if asked.get("stream"):
            return EventStream(message_events(model, feed), lambda: job.cancel("hung up"))
        if not await unless_lost(request, job.wait_done):
            job.cancel("the client hung up")
            await job.wait_done()
        return JSONResponse(message(model, feed.since(-1)))

    async def count_tokens(self, request: Request) -> Response:
        """`POST /v1/messages/count_tokens`: an estimate, since chat completions have no count."""
        return JSONResponse({"input_tokens": count(to_completion(await body_of(request)))})
