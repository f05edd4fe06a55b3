"""The shapes of chat completions, and of messages of threads."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import attrs

from trio_lanes.agents import Feed
from trio_lanes.agents import Message as Kept

from ..chat_agent.model import Message, ToolCall, Usage
from .errors import BadInputError, Refused
from .http import field
from .items import text_of, user_message
from .shapes import usage_of
from .wire import Json, new_id


@attrs.frozen
class Done:
    """The answer is whole, or was cut by the model; without it, something else has cut it."""

    reason: str


def data_line(value: Json) -> str:
    """Return a line of a stream of server-sent events."""
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n"


def _usage(events: Sequence[Any]) -> Json:
    """Return the usage in the events of a model."""
    usage = usage_of(sum((event for event in events if isinstance(event, Usage)), start=Usage(0)))
    return {
        "prompt_tokens": usage["input_tokens"], "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": {"cached_tokens": usage["input_tokens_details"]["cached_tokens"]},
        "completion_tokens_details": usage["output_tokens_details"],
    }  # fmt: skip


def end_of(events: Sequence[Any]) -> Done | Refused:
    """Return how an answer has ended."""
    cut_off = Refused(503, "the answer was cut off: the gateway ends", "shutting_down")
    return next((event for event in events if isinstance(event, Done | Refused)), cut_off)


def tool_call(call: ToolCall) -> Json:
    """Return a call as clients read it."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def to_message(message: Any) -> Message:
    """Return a message of a client for the model."""
    match message:
        case {"role": "tool", "tool_call_id": str(id)}:
            return Message("tool", text_of(message.get("content")), call_id=id)
        case {"role": "user" | "assistant" | "system" | "developer" as role}:
            calls = message.get("tool_calls") or []
            if not isinstance(calls, list) or message.get("function_call") or message.get("audio"):
                raise BadInputError("a message has a content, or tool_calls")
            kind: Any = "system" if role == "developer" else role
            name = field(message, "name", str, "")
            if kind == "user":
                return user_message(message.get("content"), name)
            text = text_of(message.get("content") or message.get("refusal"))
            return Message(kind, text, tuple(map(_to_call, calls)), name=name)
    raise BadInputError("a message has a role and a content")


def _to_call(call: Any) -> ToolCall:
    match call:
        case {"id": str(id), "function": {"name": str(name), "arguments": str(arguments)}}:
            return ToolCall(id, name, arguments)
    raise BadInputError("a tool call has an id, and a function with arguments")


def thread_message(thread: str, id: str, role: str, text: str) -> Json:
    """Return a message of a thread."""
    content = [{"type": "text", "text": {"value": text, "annotations": []}}]
    return {"id": id, "object": "thread.message", "created_at": 0, "thread_id": thread,
            "role": role, "content": content, "metadata": {}, "attachments": []}  # fmt: skip


def thread_messages(thread: str, messages: Sequence[Kept]) -> list[Json]:
    """Return the messages of a conversation that a thread shows."""
    asked = [message for message in messages if message.role == "user"]
    # {message of the thread: where it stands}: where it was posted, until a run asks it
    places = {item["id"]: kept.id for kept in asked for item in kept.content.get("posted", ())}
    places |= {item.get("id"): kept.id for kept in asked for item in kept.content["input"]}
    found = []
    for message in messages:
        if message.role == "user":
            for item in [*message.content.get("posted", ()), *message.content["input"]]:
                id, role = item.get("id", message.id), item.get("role")
                if role is not None and places.get(id, message.id) == message.id:
                    found.append(thread_message(thread, id, role, text_of(item.get("content"))))
        elif message.role == "assistant" and message.content:
            found.append(thread_message(thread, message.id, "assistant", str(message.content)))
    return found


def run_object(id: str, thread: str, status: str, needs: list[Json], error: Json | None) -> Json:
    """Return a run of a thread; ``needs`` are the calls that its client has to answer."""
    calls = [ToolCall(call["call_id"], call["name"], call["arguments"]) for call in needs]
    outputs = {"tool_calls": [tool_call(call) for call in calls]}
    action = {"type": "submit_tool_outputs", "submit_tool_outputs": outputs}
    return {
        "id": id, "object": "thread.run", "created_at": 0, "thread_id": thread,
        "assistant_id": "gateway", "status": status, "model": "gateway",
        "required_action": action if needs else None,
        "last_error": error, "instructions": "", "tools": [], "metadata": {},
    }  # fmt: skip


def _head(model: str, kind: str = "chat.completion") -> Json:
    id, now = new_id("chatcmpl"), int(time.time())
    return {"id": id, "object": kind, "created": now, "model": model}


def completion(model: str, events: Sequence[Any]) -> Json:
    """Return the whole answer of a chat completion; raise `Refused` if it has failed."""
    end = end_of(events)
    if isinstance(end, Refused):
        raise end
    text = "".join(event for event in events if isinstance(event, str))
    calls = [event for event in events if isinstance(event, ToolCall)]
    message: Json = {"role": "assistant", "content": text or None, "refusal": None}
    if calls:
        message["tool_calls"] = [tool_call(call) for call in calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": end.reason}
    return _head(model) | {"choices": [choice], "usage": _usage(events)}


async def chunks(body: Json, model: str, feed: Feed[Any]) -> AsyncIterator[str]:
    """Yield the events of a model as the stream of a chat completion."""
    head = _head(model, "chat.completion.chunk")

    def chunk(delta: Json, reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return data_line(head | {"choices": [choice]})

    calls = 0
    yield chunk({"role": "assistant", "content": ""})
    async with aclosing(feed.read()) as events:
        async for _, event in events:
            if isinstance(event, ToolCall):
                yield chunk({"tool_calls": [{"index": calls, **tool_call(event)}]})
                calls += 1
            elif isinstance(event, str):
                yield chunk({"content": event})
    end = end_of(feed.since(-1))
    if isinstance(end, Refused):
        yield data_line({"error": end.problem})
        return
    yield chunk({}, end.reason)
    if (body.get("stream_options") or {}).get("include_usage"):
        yield data_line(head | {"choices": [], "usage": _usage(feed.since(-1))})
    yield "data: [DONE]\n\n"
