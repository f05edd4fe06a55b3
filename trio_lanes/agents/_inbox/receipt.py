"""What whoever posts a message holds of it: whether it waits, and what became of it.

::

    WAITS ──▶ IN_TURN ──▶ SETTLED     RAN, MERGED, FAILED, CANCELLED
      └───────────────────▶ SETTLED   STEERED, SUMMARIZED, DROPPED, REJECTED, REPLACED, CANCELLED

Only the inbox moves a message along; nothing settles twice, and nothing goes back.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from .ending import Ending

if TYPE_CHECKING:
    from .inbox import Inbox
    from .turn import Turn


@final
class SettledKind(enum.StrEnum):
    """What became of a message. A member equals its own value."""

    RAN = "ran"
    """A turn was started with it, and returned."""
    FAILED = "failed"
    """A turn was started with it, and raised."""
    STEERED = "steered"
    """A turn that was active took it."""
    MERGED = "merged"
    """A turn was started with it and with older ones that it was collected with, and returned."""
    SUMMARIZED = "summarized"
    """It made room for others; the next turn is given a line of it, unless that is aborted too."""
    DROPPED = "dropped"
    """It made room for others, or found none."""
    REJECTED = "rejected"
    """It came while the inbox was busy."""
    REPLACED = "replaced"
    """A newer one took its place."""
    CANCELLED = "cancelled"
    """It was cancelled, while it waited or in its turn."""


@final
class MessageState(enum.StrEnum):
    """Where a message is in its life. A member equals its own value."""

    WAITS = "waits"
    """It is in line."""
    IN_TURN = "in_turn"
    """A turn was started with it, which is active."""
    SETTLED = "settled"
    """It is known what became of it."""


@final
@attrs.frozen(eq=False)
class Settled:
    """What became of a message, for good."""

    kind: SettledKind
    """Which of the nine it is."""
    result: Any = None
    """What its turn returned, if it is RAN or MERGED."""
    error: BaseException | None = None
    """What its turn raised, if it is FAILED; why it was cancelled, if it is CANCELLED."""
    turn: Turn | None = None
    """The turn that it went into, if it did."""


@final
class Receipt:
    """One message that was posted. Only `Inbox.post` makes receipts.

    Attributes:
      message: what was posted.
      id: the id that it was given, or None.
    """

    def __init__(self, inbox: Inbox, message: Any, id: Hashable) -> None:
        self.message: Final = message
        self.id: Final = id
        self._inbox: Final = inbox
        self._turn: Turn | None = None  # that was started with it
        self._outcome: Settled | None = None
        self._ending: Final = Ending()

    def __repr__(self) -> str:
        if self._outcome is not None:
            state: str = self._outcome.kind
        else:
            state = MessageState.WAITS if self._turn is None else MessageState.IN_TURN
        return f"<trio_lanes.agents.Receipt at {id(self):#x}, {state}>"

    @property
    def state(self) -> MessageState:
        """Where it is in its life."""
        if self.outcome is not None:
            return MessageState.SETTLED
        return MessageState.WAITS if self._turn is None else MessageState.IN_TURN

    @property
    def outcome(self) -> Settled | None:
        """What became of it; None until that is known. Not a checkpoint.

        Reading it counts as looking at a failure.
        """
        if self._outcome is None:
            self._inbox._look()
        outcome = self._outcome
        if outcome is not None and outcome.kind is SettledKind.FAILED:
            assert outcome.turn is not None
            _ = outcome.turn.job.exception
        return outcome

    async def settled(self) -> Settled:
        """Wait until it is known what became of it. A checkpoint.

        Any number of tasks may wait, any number of times. Cancelling it leaves nothing behind, and
        does not cancel the message. The failure of a turn is returned, not raised; like that of a
        job it is logged if nobody has looked.

        Raises:
          LaneDeadlockError: inside a job, if this would never end: inside a turn, for its own
            message or for one that waits behind it.
        """
        if self.outcome is not None:
            await trio.lowlevel.checkpoint()
        while (outcome := self.outcome) is None:
            await self._ending.wait_while(self._inbox._job_of(self))
        return outcome
