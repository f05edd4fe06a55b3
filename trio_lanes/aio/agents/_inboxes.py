"""Inboxes for asyncio: in memory and durable, with their receipts, and the turns of the latter.

The body of a turn's job is asyncio's, and awaits `Inbox._serve` in a task of Trio's, which awaits
the handler in a task of asyncio's. A `Turn` has no async verb: it is the same class.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, final

import trio

from ... import agents as of_trio
from ...agents._inbox.durable_turn import serving
from ...durable import DurableRun
from .._bodies import to_trio
from .._bridge import on_both_sides, public_verbs, verbs
from .._durable import at_door, check_door
from .._lanes import Lanes


def _of_asyncio(lanes: object) -> None:
    """Refuse lanes that are not asyncio's."""
    if type(lanes) is not Lanes:
        raise TypeError(
            f"lanes must be those of trio_lanes.aio.open_lanes, not {lanes!r}; "
            "for lanes of Trio use trio_lanes.agents"
        )


@final
@public_verbs
class Receipt(of_trio.Receipt):
    """The receipt of one posted message: `trio_lanes.agents.Receipt`, for asyncio."""


@final
@verbs("_serve")
@public_verbs
class Inbox(of_trio.Inbox):
    """The messages of one session: `trio_lanes.agents.Inbox`, for asyncio.

    ``lanes`` are those of `trio_lanes.aio.open_lanes`, and the handler is asyncio's. The abort of a
    turn calls ``Task.cancel()`` of its task; the turn lasts until that task has ended.
    """

    _receipt_type = Receipt
    _check_lanes = staticmethod(_of_asyncio)

    def __init__(self, lanes: Lanes, session: str, handler: Any, **options: Any) -> None:
        super().__init__(lanes, session, _crossing(handler), **options)

    def post(self, message: Any, **options: Any) -> of_trio.Receipt:
        if not trio.lowlevel.in_trio_run():  # the block of the lanes was left
            self._lanes.check_thread()
            self._lanes.check_open()
        return super().post(message, **options)


@final
@public_verbs
class Inboxes(of_trio.Inboxes):
    """The inboxes of all sessions: `trio_lanes.agents.Inboxes`, for asyncio."""

    _inbox_type = Inbox


@final
@public_verbs
class DurableReceipt(of_trio.DurableReceipt):
    """The receipt of a durable message: `trio_lanes.agents.DurableReceipt`, for asyncio."""


@final
@public_verbs
class DurableInbox(of_trio.DurableInbox):
    """The messages of one session in a store: `trio_lanes.agents.DurableInbox`, for asyncio.

    ``lanes`` are those of `trio_lanes.aio.open_durable_lanes`.
    """

    _receipt_type = DurableReceipt
    _check_lanes = staticmethod(check_door)


@final
@public_verbs
class DurableTurn(of_trio.DurableTurn):
    """One attempt of a turn: `trio_lanes.agents.DurableTurn`, for asyncio."""

    def __init__(self, run: DurableRun, *arguments: Any) -> None:
        super().__init__(at_door(run), *arguments)


def inbox_handler(handler: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """Return a handler for `trio_lanes.aio.open_durable_lanes` that runs messages in turns.

    `trio_lanes.agents.inbox_handler`, for a ``handler`` of asyncio's.
    """
    handle: Callable[[Any], Awaitable[Any]] = on_both_sides(
        serving(_crossing(handler), DurableTurn)
    )
    return handle


def _crossing(handler: Any) -> Any:
    return to_trio(handler) if callable(handler) else handler  # which is refused
