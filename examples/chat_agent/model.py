"""The interface of a model: messages go in; words and tool calls come out, one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Literal, Protocol

import attrs


@attrs.frozen
class ToolCall:
    """The model asks for a tool. `arguments` is untrusted JSON, as the model wrote it."""

    id: str
    name: str
    arguments: str


@attrs.frozen
class Message:
    """A message of a conversation; `call_id` names the call that a message of a tool answers."""

    role: Literal["user", "assistant", "tool", "system"]
    text: str
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""


@attrs.frozen
class Usage:
    """The usage of a call of the model, as the model counts it."""

    tokens: int


class ModelError(Exception):
    """The model could not answer; the text is one line for the user."""


class ModelBusyError(ModelError):
    """The model is busy; `retry_after` is the number of seconds to wait, if the model sent it."""

    def __init__(self, text: str, retry_after: float | None) -> None:
        super().__init__(text)
        self.retry_after: Final = retry_after


Event = str | ToolCall | Usage  # a piece of text, a complete call, or, at most once, the usage


class Model(Protocol):
    """A model that can continue a conversation.

    `stream` is a context manager, so that an answer that is not read to its end is closed at the
    end of the block, and not by the garbage collector.
    """

    @property
    def name(self) -> str: ...

    def stream(
        self, messages: Sequence[Message]
    ) -> AbstractAsyncContextManager[AsyncIterator[Event]]: ...


def well_formed(text: str) -> str:
    """Return the text without lone surrogates, which JSON allows and UTF-8 does not."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
