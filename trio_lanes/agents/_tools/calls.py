"""What a tool call is: what is asked for, and what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Literal, Protocol, TypeAlias, final

import attrs


class Emit(Protocol):
    """How a tool streams: ``await emit(data)``.

    A checkpoint, which waits while the reader is too far behind. If it is cancelled, ``data``
    was not emitted.

    Raises:
      trio.ClosedResourceError: if the call has ended.
    """

    def __call__(self, data: Any, /) -> Awaitable[None]: ...


def _text(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{attribute.name} must be a string, not {value!r}")
    if not value:
        raise ValueError(f"{attribute.name} must not be empty")


def _function(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not callable(value):
        raise TypeError(f"{attribute.name} must be an async function, not {value!r}")


@final
@attrs.frozen
class ToolCall:
    """A tool that is to run, and how.

    Raises:
      TypeError, ValueError: for a bad value, naming the field.
    """

    id: str = attrs.field(validator=_text)
    """What it is known by; no two calls of a run have the same."""
    fn: Callable[[Emit], Awaitable[Any]] = attrs.field(validator=_function)
    """``async def tool(emit) -> result``."""
    name: str | None = attrs.field(
        default=None, kw_only=True, validator=attrs.validators.optional(_text)
    )
    """For people and transcripts."""
    serial_group: Hashable | None = attrs.field(default=None, kw_only=True)
    """Calls of one group run one after the other, in call order; None: of no group."""
    final: bool = attrs.field(default=False, kw_only=True)
    """Whether its outputs are part of the answer itself."""


AnyCall: TypeAlias = ToolCall | Mapping[str, Any] | str
"""A call, as a tool, as what a model sent (with its ``"id"``), or by its id alone."""


@final
@attrs.frozen
class ToolResult:
    """What became of one call."""

    id: str
    """The call's id."""
    kind: Literal["result", "error", "cancelled"]
    """How it ended."""
    value: Any
    """What it returned, the exception that it raised, or the reason of its cancellation."""


def call_id(call: AnyCall) -> str:
    """The id of ``call``.

    Raises:
      TypeError: if it is nothing that has one, or if that is not a string.
      ValueError: if that is empty.
    """
    if isinstance(call, ToolCall):
        return call.id
    found = call.get("id") if isinstance(call, Mapping) else call
    if not isinstance(found, str):
        raise TypeError(f"a tool call must have a string for an id, not {call!r}")
    if not found:
        raise ValueError(f"a tool call must have an id that is not empty, got {call!r}")
    return found


def call_record(call: AnyCall) -> dict[str, Any]:
    """``call`` as a transcript keeps it; raises what `call_id` does."""
    found = call_id(call)
    if isinstance(call, ToolCall):
        return {"id": found} if call.name is None else {"id": found, "name": call.name}
    return dict(call) if isinstance(call, Mapping) else {"id": found}
