"""A model behind any OpenAI-compatible endpoint: chat completions, streamed, over httpx2 on Trio.

Nothing is tried again in here, and connections are not limited: a request that is repeated or
held back inside a client is work that the lanes cannot see. How many requests there are at once is
up to the lane.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Final, Self

import httpx2

from trio_lanes import retry_after

from .model import Event, Message, ModelBusyError, ModelError, ToolCall, Usage, well_formed
from .screen import shorten
from .tools import Tool

# The pool never lets anybody wait, so there is no time to wait for it. How long a whole turn may
# take is the job's `timeout`.
TIMEOUT: Final = httpx2.Timeout(connect=20, read=60, write=60, pool=None)
TOO_MANY_REQUESTS: Final = 429
MAX_TOKENS: Final = 100_000_000  # of one call; more is no count, and would stop all others
LIMITS: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=20)


class OpenAIModel:
    """Streams from `{base_url}/chat/completions`. Use `open`, which closes the connections."""

    def __init__(
        self, client: httpx2.AsyncClient, base_url: str, model: str, tools: Iterable[Tool]
    ) -> None:
        self.name: Final = model
        self._client: Final = client
        self._url: Final = base_url.rstrip("/") + "/chat/completions"
        self._tools: Final = [tool.schema() for tool in tools]

    @classmethod
    @asynccontextmanager
    async def open(
        cls, base_url: str, api_key: str, model: str, tools: Iterable[Tool]
    ) -> AsyncIterator[Self]:
        """A model with a client of its own. An empty key sends none."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        async with httpx2.AsyncClient(headers=headers, timeout=TIMEOUT, limits=LIMITS) as client:
            yield cls(client, base_url, model, tools)

    @asynccontextmanager
    async def stream(self, messages: Sequence[Message]) -> AsyncIterator[AsyncIterator[Event]]:
        body = {
            "model": self.name,
            "messages": [_to_json(message) for message in messages],
            "tools": self._tools,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            # Leaving the block closes the stream, and with it the request, however it is left.
            async with self._client.sse(self._url, method="POST", json=body) as source:
                if source.response.is_error:
                    await source.response.aread()
                    if source.response.status_code == TOO_MANY_REQUESTS:
                        wait = retry_after(source.response.headers)
                        raise ModelBusyError(_refusal(source.response), wait)
                    raise ModelError(_refusal(source.response))
                async with _reading(source) as chunks, aclosing(_events(chunks)) as events:
                    yield events
        except httpx2.HTTPError as error:
            raise ModelError(f"{type(error).__name__}: {error}") from error


@asynccontextmanager
async def _reading(
    source: httpx2.EventSource,
) -> AsyncIterator[AsyncIterator[httpx2.ServerSentEvent]]:
    """The events, and nothing of their readers left behind when we stop early.

    httpx2 reads through a chain of async generators, of which `aclose` would reach only the first,
    and the others would wait for the garbage collector. Read on after the response was closed, and
    all of them end, from the innermost out.
    """
    events = aiter(source)
    try:
        yield events
    finally:
        await source.response.aclose()
        with suppress(httpx2.HTTPError, httpx2.StreamError):
            async for _ in events:
                pass


async def _events(chunks: AsyncIterator[httpx2.ServerSentEvent]) -> AsyncGenerator[Event, None]:
    """Text as it comes; calls when they are complete, which is at the end."""
    calls: dict[int, dict[str, str]] = {}
    finished = False
    tokens: object = None
    async for event in chunks:
        if event.data == "[DONE]":
            finished = True
            continue  # and not `break`: a response that was read to its end can be used again
        chunk = _chunk(event.data)
        tokens = _mapping(chunk.get("usage")).get("total_tokens", tokens)
        choice = _choice(chunk)
        finished = finished or choice.get("finish_reason") is not None
        delta = _mapping(choice.get("delta"))
        if text := delta.get("content"):
            yield well_formed(str(text))
        for fragment in delta.get("tool_calls") or ():
            _add(calls, _mapping(fragment))
    if not finished:
        raise ModelError("the endpoint ended its answer in the middle")
    for place, call in enumerate(calls.values()):
        id, name, arguments = map(well_formed, (call["id"], call["name"], call["arguments"]))
        yield ToolCall(id or f"call_{place}", name, arguments)
    if type(tokens) is int and 0 <= tokens <= MAX_TOKENS:
        yield Usage(tokens)


def _chunk(data: str) -> Mapping[str, Any]:
    try:
        chunk = _mapping(json.loads(data))
    except (ValueError, RecursionError):
        raise ModelError(f"the endpoint sent no JSON: {shorten(data, 60)!r}") from None
    if error := chunk.get("error"):
        raise ModelError(f"the endpoint says: {_message(error)}")
    return chunk


def _choice(chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first choice of a chunk; empty where there is none, as in one that only counts tokens."""
    choices = chunk.get("choices") or [{}]
    return _mapping(choices[0] if isinstance(choices, list) else choices)


def _add(calls: dict[int, dict[str, str]], fragment: Mapping[str, Any]) -> None:
    """Add a piece of a call: the first has the name, each has some of the arguments."""
    index = fragment.get("index")
    if not isinstance(index, int):  # left out: a call begins where there is an id
        index = len(calls) if fragment.get("id") or not calls else len(calls) - 1
    call = calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
    function = _mapping(fragment.get("function"))
    call["id"] += str(fragment.get("id") or "")
    call["name"] += str(function.get("name") or "")
    call["arguments"] += str(function.get("arguments") or "")


def _to_json(message: Message) -> dict[str, Any]:
    result: dict[str, Any] = {"role": message.role, "content": message.text}
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


def _refusal(response: httpx2.Response) -> str:
    try:
        message = _message(response.json()["error"])
    except (ValueError, LookupError, TypeError, RecursionError):
        message = shorten(response.text, 200)
    return f"the endpoint answered {response.status_code}: {message}"


def _message(error: object) -> str:
    """The text of an error object, of which every endpoint has its own kind."""
    text = error.get("message", error) if isinstance(error, dict) else error
    return shorten(str(text), 200)
