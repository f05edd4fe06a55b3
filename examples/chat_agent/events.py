"""The events of sessions: turns and posts report them, a screen or a page shows them.

Reporting is synchronous and never waits, so no viewer can slow a turn.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from .model import ToolCall


@attrs.frozen
class Queued:
    """The waiting messages of the session, or its mode, have changed."""

    session: str


@attrs.frozen
class Began:
    """A turn has begun with these messages."""

    session: str
    texts: tuple[str, ...]


@attrs.frozen
class Entered:
    """The turn has its place in the conversation, under this id."""

    session: str
    turn: str


@attrs.frozen
class Steered:
    """The turn has taken these messages, and answers them, too."""

    session: str
    texts: tuple[str, ...]


@attrs.frozen
class Piece:
    """The next piece of the answer."""

    session: str
    text: str


@attrs.frozen
class Called:
    """The model asks for these calls. Text after them begins another message."""

    session: str
    calls: tuple[ToolCall, ...]


@attrs.frozen
class Returned:
    """The result of a call."""

    session: str
    call: ToolCall
    text: str


@attrs.frozen
class Asked:
    """These calls wait for the approval of a person."""

    session: str
    calls: tuple[ToolCall, ...]


@attrs.frozen
class Answered:
    """The question was answered with allow or deny; None: it was withdrawn."""

    session: str
    allowed: bool | None


@attrs.frozen
class Noted:
    """A note for the user."""

    session: str
    text: str


@attrs.frozen
class Ended:
    """The turn has ended: with its answer, or for the reason in `ending`."""

    session: str
    ending: str


Event = (
    Queued
    | Began
    | Entered
    | Steered
    | Piece
    | Called
    | Returned
    | Asked
    | Answered
    | Noted
    | Ended
)
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A listener that ignores all events."""
