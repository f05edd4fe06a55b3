"""What happens in sessions, as facts: turns and whoever posts tell them, a screen or a page shows.

To tell is synchronous and never waits, so nobody who looks can slow a turn.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from .model import ToolCall


@attrs.frozen
class Queued:
    """What waits in the session is not what it was, nor is what is done with what comes."""

    session: str


@attrs.frozen
class Began:
    """A turn has begun with these messages."""

    session: str
    texts: tuple[str, ...]


@attrs.frozen
class Steered:
    """The turn has taken these messages, and answers them as well."""

    session: str
    texts: tuple[str, ...]


@attrs.frozen
class Piece:
    """The next piece of the answer."""

    session: str
    text: str


@attrs.frozen
class Called:
    """The model wants these calls made. What is said after them begins another message."""

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
    """These calls are not made before somebody allows them."""

    session: str
    calls: tuple[ToolCall, ...]


@attrs.frozen
class Answered:
    """What was asked has been allowed, or denied; None: it need not be answered any more."""

    session: str
    allowed: bool | None


@attrs.frozen
class Noted:
    """Something for people."""

    session: str
    text: str


@attrs.frozen
class Ended:
    """The turn has ended: with its answer, or as `ending` says."""

    session: str
    ending: str


Event = Queued | Began | Steered | Piece | Called | Returned | Asked | Answered | Noted | Ended
Listener = Callable[[Event], None]


def nobody(event: Event) -> None:
    """The listener of what nobody looks at."""
