"""The acceptance cases of Open Responses, the public specification, in its version 2026-04-24.

Each case asks for a response, and checks that its object, and each event of its stream, has what
the specification requires. The shapes below are written from its schema.
"""

from __future__ import annotations

import base64
import struct
import zlib
from itertools import chain
from typing import Any

import pytest
from trio.testing import MockClock

from examples.chat_agent.upstream import Builtin

from .inside import Gateway, Script, inside

Json = dict[str, Any]


class OneOf(tuple[Any, ...]):
    """A value has one of these shapes."""


NULL = type(None)
TEXT_OR_NULL = OneOf((str, NULL))
NUMBER = OneOf((int, float))
STATE = OneOf(("in_progress", "completed", "incomplete"))
PART = {"type": "output_text", "text": str, "annotations": []}
MESSAGE = {
    "type": "message", "id": str, "status": STATE, "content": [PART],
    "role": OneOf(("user", "assistant", "system", "developer")),
}  # fmt: skip
CALL = {
    "type": "function_call", "id": str, "call_id": str, "name": str, "arguments": str,
    "status": STATE,
}  # fmt: skip
ITEM = OneOf((MESSAGE, CALL))
TOOL = {
    "type": "function", "name": str, "description": TEXT_OR_NULL, "parameters": OneOf((dict, NULL)),
    "strict": OneOf((bool, NULL)),
}  # fmt: skip
USAGE = {
    "input_tokens": int, "output_tokens": int, "total_tokens": int,
    "input_tokens_details": {"cached_tokens": int},
    "output_tokens_details": {"reasoning_tokens": int},
}  # fmt: skip
RESPONSE = {
    "id": str, "object": "response", "created_at": int, "completed_at": OneOf((int, NULL)),
    "status": str, "incomplete_details": OneOf(({"reason": str}, NULL)), "model": str,
    "previous_response_id": TEXT_OR_NULL, "instructions": TEXT_OR_NULL, "output": [ITEM],
    "error": OneOf(({"code": str, "message": str}, NULL)), "tools": [TOOL],
    "tool_choice": OneOf(("none", "auto", "required", {"type": str})),
    "truncation": OneOf(("auto", "disabled")), "parallel_tool_calls": bool,
    "text": {"format": {"type": str}}, "top_p": NUMBER, "presence_penalty": NUMBER,
    "frequency_penalty": NUMBER, "top_logprobs": int, "temperature": NUMBER,
    "reasoning": OneOf(({"effort": TEXT_OR_NULL, "summary": TEXT_OR_NULL}, NULL)),
    "usage": OneOf((USAGE, NULL)), "max_output_tokens": OneOf((int, NULL)),
    "max_tool_calls": OneOf((int, NULL)), "store": bool, "background": bool, "service_tier": str,
    "metadata": dict, "safety_identifier": TEXT_OR_NULL, "prompt_cache_key": TEXT_OR_NULL,
}  # fmt: skip
OF_RESPONSE = {"response": RESPONSE}
OF_ITEM = {"output_index": int, "item": ITEM}
OF_TEXT = {"item_id": str, "output_index": int, "content_index": int}
OF_CALL = {"item_id": str, "output_index": int}
EVENTS: dict[str, Json] = {
    "response.created": OF_RESPONSE,
    "response.queued": OF_RESPONSE,
    "response.in_progress": OF_RESPONSE,
    "response.completed": OF_RESPONSE,
    "response.failed": OF_RESPONSE,
    "response.incomplete": OF_RESPONSE,
    "response.output_item.added": OF_ITEM,
    "response.output_item.done": OF_ITEM,
    "response.content_part.added": OF_TEXT | {"part": PART},
    "response.content_part.done": OF_TEXT | {"part": PART},
    "response.output_text.delta": OF_TEXT | {"delta": str},
    "response.output_text.done": OF_TEXT | {"text": str},
    "response.function_call_arguments.delta": OF_CALL | {"delta": str},
    "response.function_call_arguments.done": OF_CALL | {"arguments": str},
}


def faults(value: Any, shape: Any, where: str = "") -> list[str]:
    """What is missing, or of another shape; more fields are no fault."""
    match shape:
        case OneOf():
            every = [faults(value, one, where) for one in shape]
            return min(every, key=len)
        case dict():
            if not isinstance(value, dict):
                return [f"{where} is no object"]
            missing = [f"{where}.{name} is missing" for name in shape if name not in value]
            known = [(name, one) for name, one in shape.items() if name in value]
            more = [faults(value[name], one, f"{where}.{name}") for name, one in known]
            return [*missing, *chain(*more)]
        case list():
            if not isinstance(value, list):
                return [f"{where} is no list"]
            every = [faults(one, inner, f"{where}[]") for inner in shape for one in value]
            return [*chain(*every)]
        case type():
            fits = isinstance(value, shape) and (shape is bool or not isinstance(value, bool))
        case _:
            fits = value == shape
    return [] if fits else [f"{where} is {value!r}, not {shape!r}"]


def says(role: str, content: Any) -> Json:
    return {"type": "message", "role": role, "content": content}


def picture() -> str:
    """A PNG of one red pixel, as a URL with its data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        sum_of_it = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + sum_of_it

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0\xff\0\0")
    chunks = chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunks).decode()


WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Tell the weather of a place",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
}
SEEN = [
    {"type": "input_text", "text": "Which colour has this picture?"},
    {"type": "input_image", "image_url": picture()},
]
CASES: dict[str, Json] = {
    "basic text": {"input": [says("user", "Greet me in three words.")]},
    "streaming": {"input": [says("user", "Count to five.")]},
    "system prompt": {
        "input": [says("system", "Answer as a sailor."), says("user", "Greet me.")],
    },
    "tool calling": {"input": [says("user", "the weather in Rome")], "tools": [WEATHER]},
    "image input": {"input": [says("user", SEEN)]},
    "multi-turn": {
        "input": [
            says("user", "I am called Ann."),
            says("assistant", "Good day, Ann."),
            says("user", "What am I called?"),
        ],
    },
}


async def ended(gateway: Gateway, body: Json, stream: bool) -> Json:
    """The response at its end. Each event of a stream has the shape of its kind."""
    if not stream:
        reply = await gateway.request("POST", "/v1/responses", body)
        assert reply.status == 200, reply.body
        return dict(reply.body)
    async with gateway.stream("POST", "/v1/responses", body | {"stream": True}) as reply:
        assert reply.status == 200
        events = [event async for event in reply if event != "[DONE]"]
    for event in events:
        shape = {"type": str, "sequence_number": int, **EVENTS[event["type"]]}
        assert faults(event, shape, event["type"]) == []
    if "tools" in body:
        kinds = [event["type"] for event in events]
        assert "response.function_call_arguments.delta" in kinds
        assert "response.function_call_arguments.done" in kinds
    return dict(events[-1]["response"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("case", CASES)
async def test_an_acceptance_case_passes(
    case: str, stream: bool, autojump_clock: MockClock
) -> None:
    # the built-in model takes no images
    model = Script(["It is ", "red."]) if case == "image input" else Builtin(0.0)
    async with inside(model) as gateway:
        response = await ended(gateway, {"model": "built-in", **CASES[case]}, stream)
    assert faults(response, RESPONSE, "response") == []
    assert response["status"] == "completed"
    if isinstance(model, Script):
        (message,) = model.prompts[0]
        assert message.parts[1] == {"type": "image_url", "image_url": {"url": picture()}}
    kinds = [item["type"] for item in response["output"]]
    assert kinds == ["function_call" if case == "tool calling" else "message"]
