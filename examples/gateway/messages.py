"""`/v1/messages`: Anthropic's API, as a translation of chat completions."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..anthropic_api.messages import message, message_events
from ..anthropic_api.requests import count, to_completion
from ..openai_api.errors import BadInputError
from ..openai_api.http import body_of
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
        return await self._completions.answer(request, asked, message_events, message)

    async def count_tokens(self, request: Request) -> Response:
        """`POST /v1/messages/count_tokens`: an estimate, since chat completions have no count."""
        return JSONResponse({"input_tokens": count(to_completion(await body_of(request)))})
