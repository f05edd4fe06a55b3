"""A model behind any OpenAI-compatible endpoint: chat completions, streamed, over httpx2 on Trio.

The client neither retries nor limits connections: lanes do not know about requests that a client
repeats or holds back. The lane limits the number of concurrent requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Final, Protocol, Self

import httpx2

from trio_lanes import retry_after

from .model import (
    Cut,
    Event,
    Message,
    ModelBusyError,
    ModelError,
    RequestError,
    Settings,
    Stopped,
    ToolCall,
    Usage,
    well_formed,
)
from .screen import shorten
from .tools import Tool

# The pool has no limit, so it needs no timeout. The `timeout` of the job limits a turn.
TIMEOUT: Final = httpx2.Timeout(connect=20, read=60, write=60, pool=None)
TOO_MANY_REQUESTS: Final = 429
OF_THE_REQUEST: Final = (400, 404, 413, 422)  # other errors are about the endpoint, or its key
TOO_LONG: Final = "context_length_exceeded"
TOO_LONG_TEXT: Final = re.compile(r"context (length|window|size)|maximum context|too long", re.I)
OF_TOOLS: Final = ("tool_choice", "parallel_tool_calls")  # refused by endpoints without tools
MAX_TOKENS: Final = (
    100_000_000  # of one call; a larger number is an error, and would block all other calls
)
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
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        async with httpx2.AsyncClient(headers=headers, timeout=TIMEOUT, limits=LIMITS) as client:
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
                async with _reading(source) as chunks, aclosing(_events(chunks, stops)) as events:
                    yield events
        except httpx2.HTTPError as error:
            raise ModelError(f"{type(error).__name__}: {error}") from error


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


async def _events(
    chunks: AsyncIterator[httpx2.ServerSentEvent], stops: Sequence[str]
) -> AsyncGenerator[Event, None]:
    """Yield text as it arrives, and calls at the end, when they are complete.

    Some endpoints, vLLM is one, say in `stop_reason` at which of the ``stops`` the answer ended.
    """
    calls: dict[int, dict[str, str]] = {}
    finished = False
    reason: object = None
    stop: object = None
    usage: dict[str, Any] = {}
    async for event in chunks:
        if event.data == "[DONE]":
            finished = True
            continue  # not `break`: only after reading to the end can the connection be used again
        chunk = _chunk(event.data)
        usage |= _mapping(chunk.get("usage"))
        choice = _choice(chunk)
        reason = choice.get("finish_reason") or reason
        stop = choice.get("stop_reason") or stop
        finished = finished or reason is not None
        delta = _mapping(choice.get("delta"))
        if text := delta.get("content"):
            yield well_formed(str(text))
        for fragment in delta.get("tool_calls") or ():
            _add(calls, _mapping(fragment))
    if not finished:
        raise ModelError("the endpoint ended its answer in the middle")
    if reason in ("length", "content_filter"):
        yield Cut(str(reason))
        calls = {}  # their arguments may be cut, too
    if reason == "stop" and isinstance(stop, str) and stop in stops:
        yield Stopped(stop)
    for place, call in enumerate(calls.values()):
        id, name, arguments = map(well_formed, (call["id"], call["name"], call["arguments"]))
        yield ToolCall(id or f"call_{place}", name, arguments)
    if _is_count(usage.get("total_tokens")):
        yield _usage(usage)


def _is_count(tokens: object) -> bool:
    return type(tokens) is int and 0 <= tokens <= MAX_TOKENS


def _usage(usage: Mapping[str, Any]) -> Usage:
    """Return the usage that an endpoint sent; a count that is none is 0."""
    prompt = usage.get("prompt_tokens_details") or {}
    completion = usage.get("completion_tokens_details") or {}
    counts: tuple[Any, ...] = (
        usage["total_tokens"],
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
        prompt.get("cached_tokens") if isinstance(prompt, dict) else None,
        completion.get("reasoning_tokens") if isinstance(completion, dict) else None,
    )
    return Usage(*(count if _is_count(count) else 0 for count in counts))


def _chunk(data: str) -> Mapping[str, Any]:
    try:
        chunk = _mapping(json.loads(data))
    except (ValueError, RecursionError):
        raise ModelError(f"the endpoint sent invalid JSON: {shorten(data, 60)!r}") from None
    if error := chunk.get("error"):
        raise ModelError(f"the endpoint reports: {_message(error)}")
    return chunk


def _choice(chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first choice of a chunk; empty if it has none, as the chunk with the usage."""
    choices = chunk.get("choices") or [{}]
    return _mapping(choices[0] if isinstance(choices, list) else choices)


def _add(calls: dict[int, dict[str, str]], fragment: Mapping[str, Any]) -> None:
    """Add a fragment of a call: the first has the name, each has a part of the arguments."""
    index = fragment.get("index")
    if not isinstance(index, int):  # if it is missing: a call begins at each id
        index = len(calls) if fragment.get("id") or not calls else len(calls) - 1
    call = calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
    function = _mapping(fragment.get("function"))
    call["id"] += str(fragment.get("id") or "")
    call["name"] += str(function.get("name") or "")
    call["arguments"] += str(function.get("arguments") or "")


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


def _mapping(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ModelError(f"the endpoint sent something unexpected: {shorten(repr(value), 60)}")
    return value


def _refused(response: httpx2.Response) -> ModelError:
    """Return the error for a response with an error."""
    text = _refusal(response)
    if response.status_code not in OF_THE_REQUEST:
        return ModelError(text)
    try:
        error = _mapping(response.json()["error"])
    except (ValueError, LookupError, TypeError, RecursionError, ModelError):
        error = {}
    code, param = error.get("code"), error.get("param")
    if TOO_LONG_TEXT.search(text):
        code = TOO_LONG
    return RequestError(
        text,
        code if isinstance(code, str) else "refused",
        param if isinstance(param, str) else None,
    )


def _refusal(response: httpx2.Response) -> str:
    try:
        message = _message(response.json()["error"])
    except (ValueError, LookupError, TypeError, RecursionError):
        message = shorten(response.text, 200)
    return f"the endpoint answered {response.status_code}: {message}"


def _message(error: object) -> str:
    """Return the text of an error object; its format depends on the endpoint."""
    text = error.get("message", error) if isinstance(error, dict) else error
    return shorten(str(text), 200)
