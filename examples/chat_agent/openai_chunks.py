"""What an endpoint says in a stream: known, read over by a list, or an error.

A field that is in no list here may be an answer that nobody would see. So it is an error, unless it
has nothing: null, or an empty value.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import attrs

from .keys import without_secrets
from .model import Cut, Event, ModelError, Refusal, Stopped, ToolCall, Usage, well_formed
from .screen import shorten

MAX_TOKENS: Final = (
    100_000_000  # of one call; a larger number is an error, and would block all other calls
)
READ_OVER: Final = {  # {where: fields that say nothing that a client has to know}
    "a chunk": {
        "id", "object", "created", "model", "system_fingerprint", "service_tier", "provider",
        "obfuscation", "timings", "x_groq", "prompt_filter_results", "prompt_token_ids",
        "kv_transfer_params", "metadata", "moderation", "citations", "search_results", "type",
    },
    "a choice": {
        "logprobs", "content_filter_results", "content_filter_offsets", "content_filter_result",
        "matched_stop", "native_finish_reason", "token_ids", "seed", "text", "stop_sequence",
    },
    "a delta": {
        # what a model thinks is not in the answer
        "reasoning", "reasoning_content", "reasoning_details", "reasoning_text", "thinking",
        "thinking_blocks", "reasoning_opaque", "reasoning_signature",
        "role", "name", "annotations", "provider_specific_fields", "extra_content", "obfuscation",
    },
    "a call": {"extra_content", "provider_specific_fields"},
}  # fmt: skip
KNOWN: Final = {
    "a chunk": {"choices", "usage", "error"},
    "a choice": {"index", "delta", "finish_reason", "stop_reason", "error"},
    "a delta": {"content", "refusal", "tool_calls"},
    "a call": {"index", "id", "type", "function"},
}
THOUGHTS: Final = ("thinking", "reasoning")  # parts of a content that are read over
ENDS: Final = {  # {what an endpoint gives as the reason of the end: the reason of a cut}
    **dict.fromkeys(("stop", "tool_calls", "function_call", "eos", "eos_token", "end_turn"), ""),
    **dict.fromkeys(("stop_sequence", "tool_use", "stop_token"), ""),
    **dict.fromkeys(("length", "max_tokens", "model_length"), "length"),
    **dict.fromkeys(("content_filter", "safety", "recitation", "sensitive"), "content_filter"),
}


class Sent(Protocol):
    """An event that was sent."""

    @property
    def data(self) -> str: ...


def reported(error: object) -> ModelError:
    """Return the error that an endpoint reports in its answer."""
    return ModelError(f"the endpoint reports: {message_of(error)}")


def message_of(error: object) -> str:
    """Return the text of an error object; its format depends on the endpoint."""
    text = error.get("message", error) if isinstance(error, dict) else error
    return shorten(without_secrets(str(text)), 200)


def mapping(value: object) -> Mapping[str, Any]:
    """Return an object; empty for null."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ModelError(f"the endpoint sent something unexpected: {_quoted(value)}")
    return value


def _quoted(value: object) -> str:
    return shorten(without_secrets(repr(value)), 60)


def _checked(what: str, value: object) -> Mapping[str, Any]:
    """Return an object, all of whose fields are known, or are read over."""
    found = mapping(value)
    for name in found.keys() - KNOWN[what] - READ_OVER[what]:
        if found[name]:
            raise ModelError(f"the endpoint sent {what} with the field {_quoted(name)}")
    return found


@attrs.define
class _Call:
    """A call that grows."""

    id: str = ""
    name: str = ""
    arguments: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether the arguments are an object, so that nothing can follow."""
        try:
            return isinstance(json.loads(self.arguments), dict)
        except (ValueError, RecursionError):
            return False


class Calls:
    """The calls in a stream, from their fragments."""

    def __init__(self) -> None:
        self._calls: Final[list[_Call]] = []
        self._at: Final[dict[int, _Call]] = {}  # {index: the call that grows there}

    def add(self, fragment: object) -> None:
        """Add a fragment: a call that begins, or more of one.

        The index alone does not tell: some endpoints give one to all calls, or none.
        """
        found = _checked("a call", fragment)
        if found.get("type") not in (None, "", "function"):
            raise ModelError(f"the endpoint sent a call of the type {_quoted(found['type'])}")
        function = mapping(found.get("function"))
        id, name = str(found.get("id") or ""), str(function.get("name") or "")
        arguments = _arguments(function.get("arguments"))
        index = found.get("index")
        if isinstance(index, int):
            call = self._at.get(index)
        else:
            call = self._calls[-1] if self._calls else None
        if call is None or _begins(call, id, name, arguments):
            call = _Call()
            self._calls.append(call)
        if isinstance(index, int):
            self._at[index] = call
        # an endpoint may repeat them in each fragment
        call.id, call.name = id or call.id, name or call.name
        call.arguments += arguments

    def whole(self) -> list[ToolCall]:
        """Return the calls, each with an id of its own.

        Raises:
          ModelError: if a call has no name.
        """
        found: list[ToolCall] = []
        ids: set[str] = set()
        for call in self._calls:
            if not call.name:
                raise ModelError("the endpoint sent a call without a name")
            id = well_formed(call.id)
            if not id or id in ids:  # no other call of any answer has this one
                id = f"call_{secrets.token_hex(12)}"
            ids.add(id)
            found.append(ToolCall(id, well_formed(call.name), well_formed(call.arguments)))
        return found


def _begins(call: _Call, id: str, name: str, arguments: str) -> bool:
    """Return whether a fragment with these begins a call behind this one."""
    if (id and call.id and id != call.id) or (name and call.name and name != call.name):
        return True
    return bool((id or name) and arguments.strip() and call.is_whole)


def _arguments(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, dict):
        raise ModelError(f"the endpoint sent arguments that are no object: {_quoted(value)}")
    return json.dumps(value)


async def events_of(
    chunks: AsyncIterator[Sent], stops: Sequence[str]
) -> AsyncGenerator[Event, None]:
    """Yield text as it arrives, and calls at the end, when they are complete.

    Some endpoints, vLLM is one, say in `stop_reason` at which of the ``stops`` the answer ended.

    Raises:
      ModelError: if the endpoint says what is not known, or reports an error.
    """
    calls, finished = Calls(), False
    reason: object = None
    stop: object = None
    usage: dict[str, Any] = {}
    async for event in chunks:
        if event.data == "[DONE]":
            finished = True
            continue  # not `break`: only after reading to the end can the connection be used again
        chunk = _chunk(event.data)
        usage |= mapping(chunk.get("usage"))
        choice = _choice(chunk)
        if given := choice.get("finish_reason"):
            reason = given
            if str(given).lower() not in ENDS:
                raise ModelError(f"the endpoint ended its answer with the reason {_quoted(given)}")
        stop = choice.get("stop_reason") or stop
        finished = finished or reason is not None
        delta = _checked("a delta", choice.get("delta"))
        for piece in _said(delta):
            yield piece
        fragments = delta.get("tool_calls") or ()
        for fragment in fragments if isinstance(fragments, list | tuple) else [fragments]:
            calls.add(fragment)
    if not finished:
        raise ModelError("the endpoint ended its answer in the middle")
    if cut := ENDS.get(str(reason).lower(), ""):
        yield Cut(cut)  # the arguments of calls may be cut, too
    if reason == "stop" and isinstance(stop, str) and stop in stops:
        yield Stopped(stop)
    for call in [] if cut else calls.whole():
        yield call
    if _is_count(usage.get("total_tokens")):
        yield _usage(usage)


def _chunk(data: str) -> Mapping[str, Any]:
    try:
        chunk = mapping(json.loads(data))
    except (ValueError, RecursionError):
        raise ModelError(f"the endpoint sent invalid JSON: {_quoted(data)}") from None
    if error := chunk.get("error"):
        raise reported(error)
    return _checked("a chunk", chunk)


def _choice(chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the choice of a chunk; empty if it has none, as the chunk with the usage."""
    choices = chunk.get("choices") or [{}]
    choices = choices if isinstance(choices, list) else [choices]
    choice = _checked("a choice", choices[0])
    if len(choices) > 1 or choice.get("index") not in (None, 0):
        raise ModelError("the endpoint sent several choices; one was asked for")
    if error := choice.get("error"):
        raise reported(error)
    return choice


def _said(delta: Mapping[str, Any]) -> list[str]:
    """Return the pieces of text of a delta, those of a refusal as `Refusal`."""
    said = _pieces(delta.get("content"), well_formed)
    said += _pieces(delta.get("refusal"), _refusal)
    return [piece for piece in said if piece]


def _refusal(text: str) -> str:
    return Refusal(well_formed(text))


def _pieces(content: object, kind: Callable[[str], str]) -> list[str]:
    if content is None or isinstance(content, str):
        return [kind(content or "")]
    found: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        match part:
            case {"type": "text" | "output_text" | "input_text", "text": str(text)}:
                found.append(kind(text))
            case {"type": "refusal", "refusal": str(text)}:
                found.append(_refusal(text))
            case {"type": str(type)} if type in THOUGHTS:
                pass
            case _:
                raise ModelError(f"the endpoint sent a content with {_quoted(part)}")
    return found


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
