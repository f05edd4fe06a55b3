"""A request for a message as a request for a chat completion."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from ..openai_api.errors import BadInputError
from ..openai_api.fields import checked
from ..openai_api.wire import Json
from .fields import CHOICES, TABLES, accepted

CHARACTERS: Final = 4  # of a token, about
IMAGE: Final = re.compile(r"data:image/[^\"]*")
THOUGHTS: Final = ("thinking", "redacted_thinking")  # they are of no use for another model


def to_completion(body: Json) -> Json:
    """Return the body of a chat completion that asks for the same; raise `Refused`."""
    body = accepted("request", body)
    asked: Json = {"messages": _messages(body), **checked(TABLES["request"], body)}
    for place, given in enumerate(body.get("tools", ())):
        tool = accepted("tool", given, f"tools.{place}")
        names = ("name", "description", "strict")
        function: Json = {name: tool[name] for name in names if name in tool}
        function["parameters"] = tool["input_schema"]
        asked.setdefault("tools", []).append({"type": "function", "function": function})
    if "tool_choice" in body:
        choice = accepted("tool_choice", body["tool_choice"], "tool_choice")
        function = {"name": choice.get("name", "")}
        of_tool = {"type": "function", "function": function}
        asked["tool_choice"] = CHOICES.get(choice["type"], of_tool)
        if choice.get("disable_parallel_tool_use"):
            asked["parallel_tool_calls"] = False
    return asked


def count(asked: Json) -> int:
    """Return about how many tokens a chat completion is asked with; images are not counted."""
    said = json.dumps([asked["messages"], asked.get("tools", [])], ensure_ascii=False)
    return len(IMAGE.sub("", said)) // CHARACTERS


def _messages(body: Json) -> list[Json]:
    found: list[Json] = []
    if "system" in body:
        found.append({"role": "system", "content": _text(body["system"], "system")})
    for place, given in enumerate(body["messages"]):
        message = accepted("message", given, f"messages.{place}")
        content, where = message["content"], f"messages.{place}.content"
        if message["role"] == "user":
            found += _of_user(content, where)
        elif message["role"] == "assistant":
            found.append(_of_assistant(content, where))
        else:
            found.append({"role": "system", "content": _text(content, where)})
    if not body["messages"] or body["messages"][-1]["role"] != "user":
        text = "messages: the last must be of the user; an answer cannot be prefilled"
        raise BadInputError(text, "messages")
    return found


def _blocks(content: str | list[Any], where: str, *kinds: str) -> Iterator[tuple[str, Json]]:
    """Yield the blocks of a content with the places where they stand."""
    if isinstance(content, str):
        yield where, {"type": "text", "text": content}
        return
    for place, block in enumerate(content):
        at = f"{where}.{place}"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind not in kinds:
            raise BadInputError(f"{at}.type must be one of {', '.join(kinds)}", f"{at}.type")
        if kind not in THOUGHTS:
            yield at, accepted(str(kind), block, at)


def _text(content: str | list[Any], where: str) -> str:
    return "".join(block["text"] for _, block in _blocks(content, where, "text"))


def _of_user(content: str | list[Any], where: str) -> list[Json]:
    """Return the results of tools, and what the user says besides."""
    results: list[Json] = []
    parts: list[Json] = []
    for at, block in _blocks(content, where, "text", "image", "tool_result"):
        if block["type"] == "text":
            parts.append({"type": "text", "text": block["text"]})
        elif block["type"] == "image":
            url = _image(block["source"], f"{at}.source")
            parts.append({"type": "image_url", "image_url": {"url": url}})
        else:
            text = _text(block.get("content", ""), f"{at}.content")
            text = f"error: {text}" if block.get("is_error") else text
            result = {"role": "tool", "tool_call_id": block["tool_use_id"], "content": text}
            results.append(result)
    said = parts[0]["text"] if len(parts) == 1 and "text" in parts[0] else parts
    return [*results, {"role": "user", "content": said}] if parts else results


def _image(source: Json, where: str) -> str:
    """Return the URL of an image."""
    if source.get("type") not in ("base64", "url"):
        raise BadInputError(f"{where}.type must be one of base64, url", f"{where}.type")
    source = accepted(source["type"], source, where)
    if source["type"] == "url":
        return str(source["url"])
    return f"data:{source['media_type']};base64,{source['data']}"


def _of_assistant(content: str | list[Any], where: str) -> Json:
    message: Json = {"role": "assistant", "content": ""}
    for _, block in _blocks(content, where, "text", "tool_use", *THOUGHTS):
        if block["type"] == "text":
            message["content"] += block["text"]
            continue
        function = {"name": block["name"], "arguments": json.dumps(block["input"])}
        call = {"id": block["id"], "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)
    return message
