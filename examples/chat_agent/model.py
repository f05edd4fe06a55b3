"""What a model is to the agent: messages go in, words and tool calls come out, one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Literal, Protocol

import attrs


@attrs.frozen
class ToolCall:
    """The model asks for a tool. `arguments` is JSON as the model wrote it: not to be trusted."""

    id: str
    name: str
    arguments: str


@attrs.frozen
class Message:
    """One entry of a conversation; `call_id` says which call a tool's message is the result of."""

    role: Literal["user", "assistant", "tool"]
    text: str
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""


@attrs.frozen
class Usage:
    """What a call of the model took, as the model counts it."""

    tokens: int


class ModelError(Exception):
    """The model could not answer; the text is one line for the user."""


class ModelBusyError(ModelError):
    """The model asks to be asked again later, in `retry_after` seconds if it says when."""

    def __init__(self, text: str, retry_after: float | None) -> None:
        super().__init__(text)
        self.retry_after: Final = retry_after


Event = str | ToolCall | Usage  # a piece of text, a complete call, or, at most once, the usage


class Model(Protocol):
    """Anything that can go on with a conversation.

    `stream` is a context manager so that an answer that nobody reads to its end is closed there
    and then, and not when the garbage collector finds it.
    """

    @property
    def name(self) -> str: ...

    def stream(
        self, messages: Sequence[Message]
    ) -> AbstractAsyncContextManager[AsyncIterator[Event]]: ...


def well_formed(text: str) -> str:
    """The text without lone halves of surrogate pairs, which JSON can hold and UTF-8 cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
