"""A model behind any OpenAI-compatible endpoint: chat completions, streamed, over httpx2 on Trio.

The client neither retries nor limits connections: lanes do not know about requests that a client
repeats or holds back. The lane limits the number of concurrent requests.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Final, Protocol, Self

import httpx2

from trio_lanes import retry_after

from .keys import without_secrets
from .model import (
    Event,
    Message,
    ModelBusyError,
    ModelError,
    ModelSilentError,
    RequestError,
    Settings,
)
from .openai_chunks import events_of, mapping, message_of
from .screen import shorten
from .tools import Tool

CONNECT_SECONDS: Final = 20.0  # to reach the endpoint, and to send it a request
SILENT_SECONDS: Final = 300.0  # in which the endpoint sends nothing: models that think are silent
TOO_MANY_REQUESTS: Final = 429
UNAUTHORIZED: Final = 401
OF_THE_REQUEST: Final = (400, 404, 413, 422)  # other errors are about the endpoint, or its key
TOO_LONG: Final = "context_length_exceeded"
TOO_LONG_TEXT: Final = re.compile(r"context (length|window|size)|maximum context|too long", re.I)
OF_TOOLS: Final = ("tool_choice", "parallel_tool_calls")  # refused by endpoints without tools
LIMITS: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=20)


class HasSchema(Protocol):
    """A tool that describes itself."""

    def schema(self) -> dict[str, Any]: ...


class OpenAIModel:
    """Streams from `{base_url}/chat/completions`. Use `open`, which closes the connections."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        base_url: str,
        model: str,
        tools: Iterable[HasSchema],
        settings: Settings | None = None,
    ) -> None:
        self.name: Final = model
        self._client: Final = client
        self._url: Final = base_url.rstrip("/") + "/chat/completions"
        self._tools: Final = [tool.schema() for tool in tools]
        self._settings: Final = {
            name: value
            for name, value in (settings or {}).items()
            if self._tools or name not in OF_TOOLS
        }

    @classmethod
    @asynccontextmanager
    async def open(
        cls, base_url: str, api_key: str, model: str, tools: Iterable[Tool]
    ) -> AsyncIterator[Self]:
        """Open a model with its own client. An empty key is not sent."""
        async with client_for(api_key) as client:
            yield cls(client, base_url, model, tools)

    @asynccontextmanager
    async def stream(self, messages: Sequence[Message]) -> AsyncIterator[AsyncIterator[Event]]:
        body = {
            "model": self.name,
            "messages": [_to_json(message) for message in messages],
            **({"tools": self._tools} if self._tools else {}),
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._settings,
        }
        try:
            # Leaving the block in any way closes the stream and the request.
            async with self._client.sse(self._url, method="POST", json=body) as source:
                if source.response.is_error:
                    await source.response.aread()
                    if source.response.status_code == TOO_MANY_REQUESTS:
                        wait = retry_after(source.response.headers)
                        raise ModelBusyError(_refusal(source.response), wait)
                    raise _refused(source.response)
                stops = self._settings.get("stop", ())
                stops = [stops] if isinstance(stops, str) else stops
                async with _reading(source) as chunks, aclosing(events_of(chunks, stops)) as events:
                    yield events
        except httpx2.ReadTimeout as error:
            seconds = self._client.timeout.read or 0
            text = f"the endpoint has said nothing for {seconds:g} s"
            raise ModelSilentError(text) from error
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            # its text may have the key, or the password of the URL
            text = f"no answer of the endpoint: {type(error).__name__}"
            raise ModelError(text) from None


def client_for(
    api_key: str, connect_seconds: float = CONNECT_SECONDS, silent_seconds: float = SILENT_SECONDS
) -> httpx2.AsyncClient:
    """Return a client for an endpoint with this key; an empty key is not sent."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    # The pool has no limit, so it needs no timeout. The `timeout` of the job limits a turn.
    timeout = httpx2.Timeout(connect_seconds, read=silent_seconds, pool=None)
    return httpx2.AsyncClient(headers=headers, timeout=timeout, limits=LIMITS)


@asynccontextmanager
async def _reading(
    source: httpx2.EventSource,
) -> AsyncIterator[AsyncIterator[httpx2.ServerSentEvent]]:
    """Iterate over the events, and close all their readers if the caller stops early.

    httpx2 reads through a chain of async generators. `aclose` would close only the first, and the
    garbage collector the others. Reading on after the response was closed ends all of them, from
    the innermost out.
    """
    events = aiter(source)
    try:
        yield events
    finally:
        await source.response.aclose()
        with suppress(httpx2.HTTPError, httpx2.StreamError):
            async for _ in events:
                pass


def _to_json(message: Message) -> dict[str, Any]:
    result: dict[str, Any] = {"role": message.role, "content": [*message.parts] or message.text}
    if message.name:
        result["name"] = message.name
    if message.calls:
        result["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.calls
        ]
    if message.role == "tool":
        result["tool_call_id"] = message.call_id
    return result


def _refused(response: httpx2.Response) -> ModelError:
    """Return the error for a response with an error."""
    text = _refusal(response)
    if response.status_code not in OF_THE_REQUEST:
        return ModelError(text)
    try:
        error = mapping(response.json()["error"])
    except (ValueError, LookupError, TypeError, RecursionError, ModelError):
        error = {}
    code, param = error.get("code"), error.get("param")
    if TOO_LONG_TEXT.search(text):
        code = TOO_LONG
    return RequestError(
        text,
        without_secrets(code) if isinstance(code, str) else "refused",
        without_secrets(param) if isinstance(param, str) else None,
    )


def _refusal(response: httpx2.Response) -> str:
    if response.status_code == UNAUTHORIZED:  # the text may have a part of the key
        return f"the endpoint answered {UNAUTHORIZED}: it does not take the key"
    try:
        message = message_of(response.json()["error"])
    except (ValueError, LookupError, TypeError, RecursionError):
        message = shorten(without_secrets(response.text), 200)
    return f"the endpoint answered {response.status_code}: {message}"
