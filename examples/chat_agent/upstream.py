"""Where models come from: the built-in model, or any OpenAI-compatible endpoint.

The tools of requests differ, so a model is made for each call of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import attrs
import httpx2

from .builtin_model import BuiltinModel
from .model import Model
from .openai_model import LIMITS, TIMEOUT, OpenAIModel

Json = dict[str, Any]


class Upstream(Protocol):
    """Where models come from."""

    @property
    def name(self) -> str: ...

    def model(self, tools: Sequence[Json]) -> Model:
        """Return a model that may call these tools, in the shape of chat completions."""
        ...


@attrs.frozen
class Builtin:
    """The built-in model."""

    word_delay: float = 0.02
    name: str = "built-in"

    def model(self, tools: Sequence[Json]) -> Model:
        return BuiltinModel(self.word_delay, [tool["function"] for tool in tools])


@attrs.frozen
class _Schema:
    json: Json

    def schema(self) -> Json:
        return self.json


@attrs.frozen
class Endpoint:
    """An OpenAI-compatible endpoint."""

    client: httpx2.AsyncClient
    url: str
    name: str

    def model(self, tools: Sequence[Json]) -> Model:
        return OpenAIModel(self.client, self.url, self.name, [_Schema(tool) for tool in tools])


@asynccontextmanager
async def open_upstream(
    url: str, key: str, name: str, word_delay: float
) -> AsyncIterator[Upstream]:
    """Open the endpoint at ``url``; without a URL, the built-in model."""
    if not url:
        yield Builtin(word_delay)
        return
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(headers=headers, timeout=TIMEOUT, limits=LIMITS) as client:
        yield Endpoint(client, url, name)
