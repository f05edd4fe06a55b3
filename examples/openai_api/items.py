"""Input items of the API, messages of conversations, and messages of the model."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Sequence
from typing import Any

import attrs

from trio_lanes.agents import Message as Kept

from ..chat_agent.model import Message, ToolCall, well_formed
from .errors import BadInputError
from .wire import Json


def text_of(content: Any) -> str:
    """Return the text of a content: a string, or a list of parts."""
    if content is None or isinstance(content, str):
        return well_formed(content or "")
    if not isinstance(content, list):
        raise BadInputError("content must be a string or a list of parts")
    texts: list[str] = []
    for part in content:
        match part:
            case (
                {"type": "input_text" | "output_text" | "text", "text": str(text)}
                | {"type": "refusal", "refusal": str(text)}
            ):  # fmt: skip
                texts.append(text)
            case {"type": str(kind)}:
                raise BadInputError(f"parts of the type {kind[:40]!r} are not supported")
            case _:
                raise BadInputError("a part of a content must have a type")
    return well_formed("".join(texts))


def user_message(content: Any, name: str = "") -> Message:
    """Return a message of a user; images are passed on as parts."""
    parts: list[Json] = []
    texts: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        match part:
            case (
                {"type": "input_image", "image_url": str(url), **more}
                | {"type": "image_url", "image_url": {"url": str(url), **more}}
            ):  # fmt: skip
                detail = {"detail": more["detail"]} if more.get("detail") else {}
                parts.append({"type": "image_url", "image_url": {"url": url, **detail}})
            case _:
                texts.append(text_of(part if part is content else [part]))
                parts.append({"type": "text", "text": texts[-1]})
    has_images = len(parts) > len(texts)
    return Message("user", "".join(texts), name=name, parts=tuple(parts) if has_images else ())


def to_messages(items: Sequence[Json]) -> list[Message]:
    """Return input items as messages; calls behind each other are calls of one message."""
    messages: list[Message] = []
    for item in items:
        match item:
            case {"type": "function_call", "call_id": str(id), "name": str(name), **more}:
                if not isinstance(arguments := more.get("arguments", ""), str):
                    raise BadInputError("the arguments of a call are a string")
                call = ToolCall(id, name, arguments)
                if messages and messages[-1].role == "assistant":
                    last = messages.pop()
                    messages.append(attrs.evolve(last, calls=(*last.calls, call)))
                else:
                    messages.append(Message("assistant", "", (call,)))
            case {"type": "function_call_output", "call_id": str(id)}:
                messages.append(Message("tool", text_of(item.get("output")), call_id=id))
            case {"role": "assistant"}:
                messages.append(Message("assistant", text_of(item.get("content"))))
            case {"role": "system" | "developer"}:
                messages.append(Message("system", text_of(item.get("content"))))
            case {"role": "user"}:
                messages.append(user_message(item.get("content")))
            case {"type": "mcp_approval_response", "approval_request_id": str(), "approve": bool()}:
                pass  # for a turn that waits for it, or it is history
            case {"type": "reasoning" | "mcp_call" | "mcp_list_tools" | "mcp_approval_request"}:
                pass  # nothing that the model needs
            case _:
                raise BadInputError(f"an input item is not supported: {str(item)[:60]}")
    return messages


def once(messages: Sequence[Kept], again: Collection[str] = ()) -> list[Kept]:
    """Return the messages without exchanges that were begun again, and without deleted items.

    Args:
      again: responses whose answer begins now.
    """
    asked = [(m.content.get("response"), exchange_of(m)) for m in messages if m.role == "user"]
    counts = dict(asked) | dict.fromkeys(again)  # {response: the exchange that counts}
    old = {exchange for response, exchange in asked if response and counts[response] != exchange}
    return _edited([message for message in messages if exchange_of(message) not in old])


def asked_in(messages: Sequence[Kept]) -> list[Json]:
    """Return what was asked, and written, in a conversation: the contents of its questions."""
    return [message.content for message in messages if message.role == "user"]


def _edited(messages: list[Kept]) -> list[Kept]:
    """Return the messages without what was deleted, and without a second write for one key."""
    deleted = {id for content in asked_in(messages) for id in content.get("deleted", ())}
    if deleted:  # no model takes a call without its output, or the output alone
        pairs = [(one["id"], one["call_id"]) for one in to_items(messages) if "call_id" in one]
        calls = {call for id, call in pairs if id in deleted}
        deleted |= {id for id, call in pairs if call in calls}
    keys: set[str] = set()
    found: list[Kept] = []
    for message in messages:
        if message.role == "user":
            if message.content.get("once") in keys:
                continue
            keys.update(filter(None, [message.content.get("once")]))
            if message.content.get("cleared"):
                found.clear()
        if message.role != "tool" or f"msg_{message.id}" not in deleted:
            found.append(_without(message, deleted) if deleted else message)
    return found


def _without(message: Kept, deleted: Container[str]) -> Kept:
    """Return the message without the deleted items."""
    content = message.content
    if message.role == "user":
        left = [item | {"id": id} for id, item in said_in(message) if id not in deleted]
        content = content | {"input": left}
    elif message.role == "assistant" and f"msg_{message.id}" in deleted:
        content = ""
    calls = [call for call in message.tool_calls if f"fc_{call['id']}" not in deleted]
    return attrs.evolve(message, content=content, tool_calls=tuple(calls))


def exchange_of(message: Kept) -> str:
    """Return the id of the exchange that a message is of."""
    return message.id.partition(".")[0]


def for_model(messages: Sequence[Kept]) -> list[Message]:
    """Return messages of a conversation for the model."""
    return to_messages(to_items(messages))


def numbered(items: Sequence[Json], stem: str) -> list[Json]:
    """Return the items with ids of their own, which they keep; ``stem`` is unique."""
    kinds = {"function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
    return [
        item | {"id": f"{kinds.get(item.get('type', ''), 'msg')}_{stem}{place:03}"}
        for place, item in enumerate(items)
    ]


def said_in(message: Kept) -> Iterator[tuple[str, Json]]:
    """Yield the input items of a message of a user, each with its id."""
    for place, item in enumerate(message.content["input"]):
        yield item.get("id") or f"msg_{message.id}{f'.{place}' if place else ''}", item


def shown(item: Json, id: str, status: str = "completed") -> Json:
    """Return an input item as clients see it."""
    if isinstance(text := item.get("content"), str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        more: Json = {"annotations": []} if kind == "output_text" else {}
        item = item | {"content": [{"type": kind, "text": text, **more}]}
    return {"type": "message", "status": status, **item, "id": id}


def to_items(messages: Sequence[Kept]) -> list[Json]:
    """Return messages of a conversation as items of the API."""
    found: list[Json] = []
    for message in messages:
        item = {"id": f"msg_{message.id}", "type": "message", "status": message.status}
        if message.role == "user":
            found += [shown(said, id, message.status) for id, said in said_in(message)]
        elif message.role == "assistant" and message.content:
            part = {"type": "output_text", "text": message.content, "annotations": []}
            found.append(item | {"role": "assistant", "content": [part]})
        for call in message.tool_calls:
            shape = {"type": "function_call", "status": "completed", "call_id": call["id"]}
            named_call = {"name": call["name"], "arguments": call["arguments"]}
            found.append({"id": f"fc_{call['id']}", **shape, **named_call})
        if message.role == "tool":
            output = {"call_id": message.tool_call_id, "output": message.content}
            found.append({"id": item["id"], "type": "function_call_output", **output})
    return found


def is_approval(id: str) -> bool:
    """Return whether this is the id of a request for approval."""
    return id.startswith("mcpr_")


def outputs_of(items: Sequence[Json]) -> dict[str, Any]:
    """Return what the client answers: outputs by call id, approvals by the id of their request."""
    found: dict[str, Any] = {}
    for item in items:
        match item:
            case {"type": "function_call_output", "call_id": str(id)} if not is_approval(id):
                found[id] = item.get("output")
            case {"type": "mcp_approval_response", "approval_request_id": str(id)}:
                found |= {id: item} if is_approval(id) else {}
    return found


def unasked_approval(items: Sequence[Json]) -> str | None:
    """Return the id of an approval that no call in the items has been made by."""
    ended = {item.get("approval_request_id") for item in items if item.get("type") == "mcp_call"}
    given = [id for id, said in outputs_of(items).items() if is_approval(id) and said["approve"]]
    return next((id for id in given if id not in ended), None)
