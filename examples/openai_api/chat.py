"""The shapes of chat completions, and of messages of threads."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Final

from trio_lanes.agents import Message as Kept

from ..chat_agent.model import Message, Refusal, ToolCall
from .errors import BadInputError, Refused, failed
from .http import field
from .items import text_of, user_message
from .wire import Answer, Json, stem_of

# {why a response is incomplete: the reason that chat completions have for it}
CUTS: Final = {"max_output_tokens": "length", "content_filter": "content_filter"}


def data_line(value: Json) -> str:
    """Return a line of a stream of server-sent events."""
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n"


def _usage(usage: Json) -> Json:
    """Return the usage of a response as that of a completion."""
    return {
        "prompt_tokens": usage["input_tokens"], "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": {"cached_tokens": usage["input_tokens_details"]["cached_tokens"]},
        "completion_tokens_details": usage["output_tokens_details"],
    }  # fmt: skip


def tool_call(call: ToolCall) -> Json:
    """Return a call as clients read it."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def call_of(item: Json) -> ToolCall:
    """Return the call of an item."""
    return ToolCall(item["call_id"], item["name"], item["arguments"])


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


def check_calls(messages: Sequence[Message]) -> None:
    """Check that each call of a tool has one result, behind it, and each result its call.

    Raises:
      BadInputError: if that is not so.
    """
    left: list[str] = []  # calls without a result
    for message in messages:
        if message.role == "tool":
            if message.call_id not in left:
                text = f"No tool call found for the output with the id {message.call_id[:100]}."
                raise BadInputError(text)
            left.remove(message.call_id)
            continue
        _check_answered(left)
        left = [call.id for call in message.calls]
        if len({*left}) < len(left):
            raise BadInputError("two calls of a message have one id")
    _check_answered(left)


def _check_answered(left: Sequence[str]) -> None:
    if left:
        raise BadInputError(f"No tool output found for function call {left[0][:100]}.")


def _to_call(call: Any) -> ToolCall:
    match call:
        case {"id": str(id), "function": {"name": str(name), "arguments": str(arguments)}}:
            return ToolCall(id, name, arguments)
    raise BadInputError("a tool call has an id, and a function with arguments")


def thread_message(thread: str, item: Json) -> Json:
    """Return an item of a thread as its message."""
    text = {"value": text_of(item.get("content")), "annotations": []}
    return {"id": item["id"], "object": "thread.message", "created_at": 0, "thread_id": thread,
            "role": item["role"], "content": [{"type": "text", "text": text}],
            "metadata": {}, "attachments": []}  # fmt: skip


def thread_messages(thread: str, messages: Sequence[Kept]) -> list[Json]:
    """Return the messages of a conversation that a thread shows.

    A message of a user stands where it was posted, until a run asks it.
    """
    found: dict[str, Json] = {}  # {id: item}
    for message in messages:
        if message.role == "user":
            for item in [*message.content.get("posted", ()), *message.content["input"]]:
                id = item.get("id", message.id)
                found.pop(id, None)
                found[id] = item | {"id": id}
        elif message.role == "assistant" and message.content:
            said = {"id": message.id, "role": "assistant", "content": str(message.content)}
            found[message.id] = said
    return [thread_message(thread, item) for item in found.values() if "role" in item]


def run_object(
    id: str, status: str, needs: list[Json], answers: Sequence[Answer], **asked: Any
) -> Json:
    """Return a run of a thread.

    Args:
      needs: the calls that its client has to answer.
      answers: its responses.
      asked: what else is known of its request.
    """
    outputs = {"tool_calls": [tool_call(call_of(item)) for item in needs]}
    action = {"type": "submit_tool_outputs", "submit_tool_outputs": outputs}
    first, last = answers[0].object(), answers[-1].object()
    used = [_usage(usage) for answer in answers if (usage := answer.object()["usage"])]
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return {
        "id": id, "object": "thread.run", "created_at": first["created_at"],
        "thread_id": answers[0].session, "assistant_id": "gateway", "status": status,
        "model": first["model"], "required_action": action if needs else None,
        "completed_at": last["completed_at"] if status == "completed" else None,
        "last_error": last["error"], "metadata": {}, **asked,
        "usage": {name: sum(one[name] for one in used) for name in names}
        if used and last["usage"] else None,
    }  # fmt: skip


def _head(answer: Answer, kind: str = "chat.completion") -> Json:
    shown = answer.object()
    id = f"chatcmpl_{stem_of(answer.id)}"
    return {"id": id, "object": kind, "created": shown["created_at"], "model": shown["model"]}


def completion(answer: Answer) -> Json:
    """Return a response that has ended as a chat completion; raise `Refused` if it has failed."""
    if answer.status == "failed" and answer.error is not None:
        raise failed(answer.error)
    if answer.status not in ("completed", "incomplete"):
        raise Refused(503, "the answer was cut off: the gateway ends", "shutting_down")
    shown = answer.object()
    parts = [part for item in answer.output for part in item.get("content", ())]
    text = "".join(part.get("text", "") for part in parts)
    refusal = "".join(part.get("refusal", "") for part in parts)
    calls = [tool_call(call_of(item)) for item in answer.output
             if item["type"] == "function_call" and item["status"] == "completed"]  # fmt: skip
    message: Json = {"role": "assistant", "content": text or None, "refusal": refusal or None}
    reason = "stop"
    if calls:
        message["tool_calls"], reason = calls, "tool_calls"
    if answer.status == "incomplete":
        reason = CUTS[shown["incomplete_details"]["reason"]]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    if "stop_reason" in shown:  # as vLLM has it
        choice["stop_reason"] = shown["stop_reason"]
    return _head(answer) | {"choices": [choice], "usage": _usage(shown["usage"])}


async def said(answer: Answer) -> AsyncGenerator[str | ToolCall, None]:
    """Yield the texts, of which some may be a `Refusal`, and the calls of a completion.

    Raises:
      Refused: if its process dies, and another begins it again.
    """
    start = answer.taken_back
    async with aclosing(answer.feed.read(start)) as events:
        async for _, event in events:
            if answer.taken_back > start:
                raise Refused(503, "the answer was cut off: its process has died", "shutting_down")
            match event:
                case {"type": "response.output_text.delta", "delta": str(text)}:
                    yield text
                case {"type": "response.refusal.delta", "delta": str(text)}:
                    yield Refusal(text)
                case {"type": "response.output_item.done", "item": {"type": "function_call"}}:
                    yield call_of(event["item"])


async def chunks(body: Json, answer: Answer) -> AsyncIterator[str]:
    """Yield what a completion says as the stream of a chat completion."""
    head = _head(answer, "chat.completion.chunk")

    def chunk(delta: Json, reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return data_line(head | {"choices": [choice]})

    calls = 0
    yield chunk({"role": "assistant", "content": ""})
    try:
        async with aclosing(said(answer)) as pieces:
            async for piece in pieces:
                if isinstance(piece, ToolCall):
                    yield chunk({"tool_calls": [{"index": calls, **tool_call(piece)}]})
                    calls += 1
                else:
                    name = "refusal" if isinstance(piece, Refusal) else "content"
                    yield chunk({name: piece})
        done = completion(answer)
    except Refused as refused:
        yield data_line({"error": refused.problem})
        return
    yield chunk({}, done["choices"][0]["finish_reason"])
    if (body.get("stream_options") or {}).get("include_usage"):
        yield data_line(head | {"choices": [], "usage": done["usage"]})
    yield "data: [DONE]\n\n"
