"""Where models come from: the built-in model, or any OpenAI-compatible endpoint.

The tools of requests differ, so a model is made for each call of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import attrs
import httpx2

from trio_lanes import Lanes, current_job

from .builtin_model import BuiltinModel
from .model import Cut, Message, Model, ModelBusyError, Settings, Stopped, ToolCall, Usage
from .openai_model import CONNECT_SECONDS, SILENT_SECONDS, OpenAIModel, client_for

Json = dict[str, Any]
MAX_TRIES: Final = 4  # of one call of the model
BUSY_SECONDS: Final = 1.0  # to wait for a busy model that sends no time
MAX_BUSY_SECONDS: Final = 60.0


class Upstream(Protocol):
    """Where models come from."""

    @property
    def name(self) -> str: ...

    def model(self, tools: Sequence[Json], settings: Settings) -> Model:
        """Return a model with these tools and settings, in the shape of chat completions."""
        ...


@attrs.frozen
class Builtin:
    """The built-in model."""

    word_delay: float = 0.02
    name: str = "built-in"

    def model(self, tools: Sequence[Json], settings: Settings) -> Model:
        return BuiltinModel(self.word_delay, [tool["function"] for tool in tools], settings)


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

    def model(self, tools: Sequence[Json], settings: Settings) -> Model:
        schemas = [_Schema(tool) for tool in tools]
        return OpenAIModel(self.client, self.url, self.name, schemas, settings)


def model_name(upstream: Upstream, settings: Settings) -> str:
    """Return the name of the model that answers; an endpoint may have several."""
    return upstream.name if isinstance(upstream, Builtin) else settings.get("model", upstream.name)


async def ask_model(
    model: Model,
    prompt: Sequence[Message],
    lanes: Lanes,
    lane: str,
    tell: Callable[[str | Usage | Cut | Stopped], object],
    first: bool = True,
) -> list[ToolCall]:
    """Call a model in the current job, again while it is busy and has said nothing.

    Return the tool calls; ``tell`` gets the other events. A busy model pauses the lane, because its
    429 is for all users of the key. The start of the job has paid for the first call in it.
    """
    job = current_job()
    assert job is not None
    for tries_left in reversed(range(MAX_TRIES)):
        if not first:
            await job.readmit()
        first = False
        calls: list[ToolCall] = []
        said = False
        try:
            async with model.stream(prompt) as events:
                async for event in events:
                    if isinstance(event, ToolCall):
                        calls.append(event)
                    else:
                        said = said or isinstance(event, str)
                        tell(event)
            return calls
        except ModelBusyError as busy:
            seconds = BUSY_SECONDS if busy.retry_after is None else busy.retry_after
            if said or calls or not tries_left or seconds > MAX_BUSY_SECONDS:
                raise
        lanes.pause_for(lane, seconds)
    raise AssertionError


@asynccontextmanager
async def open_upstream(
    url: str,
    key: str,
    name: str,
    word_delay: float,
    connect_seconds: float = CONNECT_SECONDS,
    silent_seconds: float = SILENT_SECONDS,
) -> AsyncIterator[Upstream]:
    """Open the endpoint at ``url``; without a URL, the built-in model."""
    if not url:
        yield Builtin(word_delay)
        return
    async with client_for(key, connect_seconds, silent_seconds) as client:
        yield Endpoint(client, url, name)
