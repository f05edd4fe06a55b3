"""Tool calls: the call as an application or a model states it, and its result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Literal, Protocol, TypeAlias, final

import attrs


class Emit(Protocol):
    """The function with which a tool streams output: ``await emit(data)``.

    A checkpoint that waits while the buffer is full. If the wait is cancelled, ``data`` was not
    emitted.

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
    """A tool call to run, with its options.

    Raises:
      TypeError, ValueError: for a bad value; the error names the field.
    """

    id: str = attrs.field(validator=_text)
    """The id of the call, unique in its run."""
    fn: Callable[[Emit], Awaitable[Any]] = attrs.field(validator=_function)
    """``async def tool(emit) -> result``."""
    name: str | None = attrs.field(
        default=None, kw_only=True, validator=attrs.validators.optional(_text)
    )
    """The name of the tool, for people and transcripts."""
    serial_group: Hashable | None = attrs.field(default=None, kw_only=True)
    """Calls of the same group run one after the other, in call order; None: no group."""
    final: bool = attrs.field(default=False, kw_only=True)
    """Whether its outputs are part of the answer itself."""


AnyCall: TypeAlias = ToolCall | Mapping[str, Any] | str
"""A call: a `ToolCall`, the mapping with an ``"id"`` that a model sent, or the id alone."""


@final
@attrs.frozen
class ToolResult:
    """The result of one call."""

    id: str
    """The id of the call."""
    kind: Literal["result", "error", "cancelled"]
    """The way in which the call ended."""
    value: Any
    """The returned value, the exception that was raised, or the reason of the cancellation."""


def call_id(call: AnyCall) -> str:
    """Return the id of ``call``.

    Raises:
      TypeError: if ``call`` has no id, or the id is not a string.
      ValueError: if the id is empty.
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
    """Return ``call`` in the form of a transcript. Raises the errors of `call_id`."""
    found = call_id(call)
    if isinstance(call, ToolCall):
        return {"id": found} if call.name is None else {"id": found, "name": call.name}
    return dict(call) if isinstance(call, Mapping) else {"id": found}
