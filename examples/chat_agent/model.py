"""The interface of a model: messages go in; words and tool calls come out, one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Literal, Protocol

import attrs

Settings = dict[str, Any]  # of one call of a model, named as in chat completions


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
    name: str = ""  # of the person or program that it is from
    parts: tuple[Any, ...] = ()  # the text and images, as in chat completions; if it has images


@attrs.frozen
class Usage:
    """The tokens of a call of the model, as the model counts them: in all, and what it says more.

    ``cached`` tokens are part of the prompt, ``reasoning`` tokens are part of the completion.
    """

    tokens: int
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0

    def __add__(self, more: Usage) -> Usage:
        return Usage(
            *(a + b for a, b in zip(attrs.astuple(self), attrs.astuple(more), strict=True))
        )


@attrs.frozen
class Cut:
    """The model has stopped before the end of its answer: "length" or "content_filter"."""

    reason: str


@attrs.frozen
class Stopped:
    """The answer has ended at a text of the setting `stop`, which it does not have."""

    at: str


class Refusal(str):
    """A piece of the text by which the model says that it does not answer."""

    __slots__ = ()


class ModelError(Exception):
    """The model could not answer; the text is one line for the user."""


class ModelSilentError(ModelError):
    """The model has said nothing for too long."""


class RequestError(ModelError):
    """The model does not take the request; ``code`` and ``param`` say why."""

    def __init__(self, text: str, code: str, param: str | None = None) -> None:
        super().__init__(text)
        self.code: Final = code
        self.param: Final = param


class ModelBusyError(ModelError):
    """The model is busy; `retry_after` is the number of seconds to wait, if the model sent it."""

    def __init__(self, text: str, retry_after: float | None) -> None:
        super().__init__(text)
        self.retry_after: Final = retry_after


# a piece of text, which may be a `Refusal`; a complete call; or, at most once each, the usage, and
# how it has ended
Event = str | ToolCall | Usage | Cut | Stopped


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
