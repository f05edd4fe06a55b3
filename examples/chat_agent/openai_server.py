"""The built-in model behind an OpenAI-compatible endpoint: Starlette under hypercorn, on Trio.

Use it to try the client of openai_model.py without an account, as the tests do:

    python -m examples.chat_agent.openai_server --port 8000
    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_MODEL=built-in python -m examples.chat_agent
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import attrs
import hypercorn
import hypercorn.trio
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Send

from .builtin_model import BuiltinModel
from .model import Cut, Message, Model, ModelError, Stopped, ToolCall, Usage

BUSY: Final = re.compile(
    r"\bbusy\b(?: (?P<wait>\d+(?:\.\d+)?)(?P<ms>ms)?)?(?: (?P<times>twice|always))?"
)
IDLE_SECONDS: Final = 60.0  # for which a connection may be idle
TIMES: Final[dict[str | None, float]] = {None: 1, "twice": 2, "always": math.inf}


@attrs.define(eq=False)
class Endpoint:
    """The endpoint, with a record of the requests, and of the streams that the client aborted.

    The answer to a message with `http_error` is status 500, with `cut_off` half an answer, and with
    `garbage` a chunk that is not JSON. `busy 5` is refused once, with status 429 and a Retry-After
    of 5 seconds; `busy 300ms` sends the time in milliseconds, `busy` sends no time; `twice` or
    `always` after it is the number of refusals.
    """

    model: Model
    requests: list[dict[str, Any]] = attrs.field(factory=list)
    keys: set[str] = attrs.field(factory=set)  # as the client sent them
    streams: int = 0  # open now
    most_streams: int = 0
    gave_up: int = 0
    refusals: Counter[str] = attrs.field(factory=Counter)  # numbers of answers with 429, by message

    def app(self) -> Starlette:
        """Return the endpoint as an ASGI application."""
        return Starlette(routes=[Route("/v1/chat/completions", self._complete, methods=["POST"])])

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        self.keys.add(request.headers.get("authorization", ""))
        messages = [_from_json(message) for message in body["messages"]]
        asked = next(message.text for message in reversed(messages) if message.role == "user")
        if "http_error" in asked:
            return JSONResponse({"error": {"message": "out of order"}}, status_code=500)
        busy = BUSY.search(asked)
        if busy and self.refusals[asked] < TIMES[busy["times"]]:
            self.refusals[asked] += 1
            name = "retry-after-ms" if busy["ms"] else "retry-after"
            headers = {name: busy["wait"]} if busy["wait"] else {}
            return JSONResponse({"error": {"message": "slow down"}}, 429, headers)
        return _EventStream(self._chunks(messages, asked))

    async def _chunks(self, messages: list[Message], asked: str) -> AsyncGenerator[str, None]:
        complete = False
        self.streams += 1
        self.most_streams = max(self.most_streams, self.streams)
        try:
            calls, usage, reason, stop = 0, Usage(0), "", None
            async with self.model.stream(messages) as events:
                async for event in events:
                    if isinstance(event, Usage):
                        usage = event
                        continue
                    if isinstance(event, Cut):
                        reason = event.reason
                        continue
                    if isinstance(event, Stopped):
                        stop = event.at
                        continue
                    for delta in _deltas(event, calls):
                        yield _chunk({"choices": [{"index": 0, "delta": delta}]})
                    calls += isinstance(event, ToolCall)
                    if "cut_off" in asked:
                        complete = True
                        return
                    if "garbage" in asked:
                        yield "data: {what is this\n\n"
            reason = reason or ("tool_calls" if calls else "stop")
            end = {"index": 0, "delta": {}, "finish_reason": reason, "stop_reason": stop}
            yield _chunk({"choices": [end]})
            parts = {"prompt_tokens": usage.prompt, "completion_tokens": usage.completion}
            yield _chunk({"choices": [], "usage": {"total_tokens": usage.tokens, **parts}})
            yield "data: [DONE]\n\n"
            complete = True
        except ModelError as error:
            yield _chunk({"error": {"message": str(error)}})
            complete = True
        finally:
            self.streams -= 1
            self.gave_up += not complete


class _EventStream(StreamingResponse):
    """A response that closes its generator as soon as the client has disconnected."""

    def __init__(self, chunks: AsyncGenerator[str, None]) -> None:
        super().__init__(chunks, media_type="text/event-stream")
        self._chunks = chunks

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._chunks):
            await super().stream_response(send)


async def serve(
    endpoint: Endpoint, port: int = 0, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve on the loopback interface until cancelled; `started` gets the base URL."""
    config = hypercorn.Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.graceful_timeout = 0.1
    config.keep_alive_timeout = IDLE_SECONDS
    config.errorlog = None
    async with trio.open_nursery() as nursery:
        serve_app = partial(hypercorn.trio.serve, endpoint.app(), config, mode="asgi")  # type: ignore[arg-type]
        (bound,) = await nursery.start(serve_app)
        task_status.started(f"{bound}/v1")


def _chunk(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk)}\n\n"


def _deltas(event: str | ToolCall, index: int) -> list[dict[str, Any]]:
    """Yield the deltas of an event: one for a text, three for a call, as endpoints do."""
    if isinstance(event, str):
        return [{"content": event}]
    half = len(event.arguments) // 2
    fragments = [
        {"index": index, "id": event.id, "function": {"name": event.name, "arguments": ""}},
        {"index": index, "function": {"arguments": event.arguments[:half]}},
        {"index": index, "function": {"arguments": event.arguments[half:]}},
    ]
    return [{"tool_calls": [fragment]} for fragment in fragments]


def _from_json(message: dict[str, Any]) -> Message:
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    )
    return Message(message["role"], message["content"], calls, message.get("tool_call_id", ""))


async def _main(port: int, word_delay: float) -> None:
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve, Endpoint(BuiltinModel(word_delay)), port)
        print(f"OPENAI_BASE_URL={url} OPENAI_MODEL=built-in", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="An OpenAI-compatible endpoint on the loopback.")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--word-delay", type=float, default=0.03, metavar="SECONDS")
    arguments = parser.parse_args()
    try:
        trio.run(_main, arguments.port, arguments.word_delay)
    except KeyboardInterrupt:
        pass
