"""The receipt of a posted message: its state, and its outcome.

::

    WAITING ──▶ IN_TURN ──▶ SETTLED   RAN, MERGED, FAILED, CANCELLED
      └───────────────────▶ SETTLED   STEERED, SUMMARIZED, DROPPED, REJECTED, REPLACED, CANCELLED

Only the inbox changes the state. A message settles once, and never returns to an earlier state.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import attrs
import trio

from trio_lanes import Job

from .ending import Ending

if TYPE_CHECKING:
    from .turn import Turn


@final
class SettledKind(enum.StrEnum):
    """The outcome of a message. A member equals its own value."""

    RAN = "ran"
    """A turn was started with the message, and the handler returned."""
    FAILED = "failed"
    """A turn was started with the message, and the handler raised."""
    STEERED = "steered"
    """An active turn took the message."""
    MERGED = "merged"
    """As RAN, for a message that was collected with an older one; that one has RAN."""
    SUMMARIZED = "summarized"
    """An overflow removed it; the next turn begins with a summary of it, unless `Inbox.abort`
    comes first."""
    DROPPED = "dropped"
    """An overflow dropped it."""
    REJECTED = "rejected"
    """It was posted in mode REJECT while the inbox was busy or held, or for a turn that was not the
    active one."""
    REPLACED = "replaced"
    """A newer message replaced it."""
    CANCELLED = "cancelled"
    """It was cancelled, while it waited or in its turn."""


@final
class MessageState(enum.StrEnum):
    """The state of a message. A member equals its own value."""

    WAITING = "waits"
    """The message is in the queue."""
    IN_TURN = "in_turn"
    """The active turn was started with the message."""
    SETTLED = "settled"
    """The message has an outcome."""


@final
@attrs.frozen(eq=False)
class Settled:
    """The final outcome of a message."""

    kind: SettledKind
    """The kind of the outcome."""
    result: Any = None
    """The value that the handler returned, if the kind is RAN or MERGED."""
    error: BaseException | None = None
    """The error that the handler raised if FAILED; the reason of the cancellation if CANCELLED;
    why it was not the expected turn if REJECTED for that."""
    turn: Turn | None = None
    """The turn that was started with the message, or took it; None if no turn did, or if the
    message was posted again, with its id, after it had settled."""


@final
@attrs.frozen
class InboxStatistics:
    """The state of an inbox at one moment, and the number of messages per outcome."""

    offered: int
    """Messages that were posted. Neither a post that raised nor a post with a known id counts."""
    waiting: int
    """Messages in the queue."""
    in_turn: int
    """Messages that the active turn was started with."""
    settled: dict[SettledKind, int]
    """Messages per outcome. ``waiting``, ``in_turn`` and these numbers add up to ``offered``."""


class InboxOfReceipt(Protocol):
    """The inbox of a receipt, as far as the receipt knows it."""

    @property
    def session(self) -> str: ...
    @property
    def is_held(self) -> bool: ...
    def _sync(self) -> None: ...
    def _position(self, receipt: Receipt) -> int | None: ...
    def _edit(self, receipt: Receipt, message: Any) -> bool: ...
    def _withdraw(self, receipt: Receipt, reason: str | None) -> bool: ...
    def _job_of(self, receipt: Receipt) -> Job[Any]: ...


class Receipt:
    """The receipt of one posted message. Only `Inbox.post` makes receipts.

    Attributes:
      message: the message as it was posted, or as `edit` changed it.
      id: the id with which it was posted, or None.
    """

    def __init__(self, inbox: InboxOfReceipt, message: Any, id: Hashable) -> None:
        self.message: Any = message
        self.id: Final = id
        self._inbox: Final = inbox
        self._turn: Turn | None = None  # the turn that was started with the message
        self._outcome: Settled | None = None
        self._ending: Final = Ending()

    def __repr__(self) -> str:
        if self._outcome is not None:
            state: str = self._outcome.kind
        else:
            state = MessageState.WAITING if self._turn is None else MessageState.IN_TURN
        return f"<trio_lanes.agents.Receipt at {id(self):#x}, {state}>"

    @property
    def state(self) -> MessageState:
        """The state of the message."""
        if self.outcome is not None:
            return MessageState.SETTLED
        return MessageState.WAITING if self._turn is None else MessageState.IN_TURN

    @property
    def is_held(self) -> bool:
        """Whether it waits in an inbox that is held: only an active turn may take it, as a steer.

        Not a checkpoint.
        """
        return self.state is MessageState.WAITING and self._inbox.is_held

    @property
    def outcome(self) -> Settled | None:
        """The outcome of the message; None until it has settled. Not a checkpoint.

        Reading it counts as retrieving a failure.
        """
        if self._outcome is None:
            self._inbox._sync()
        outcome = self._outcome
        if (
            outcome is not None
            and outcome.kind is SettledKind.FAILED
            and outcome.turn is not None  # else it is remembered by its id
        ):
            job = outcome.turn.job
            if job.done:
                _look_at(job)
            else:  # in asyncio it settles some turns of the loop after its turn
                job.on_settled(_look_at)
        return outcome

    @property
    def position(self) -> int | None:
        """The number of messages that wait before this message; None if it does not wait.

        The steers that the active turn may take are before all others, unless the inbox has
        ``steers_first=False``. They, and messages that will share a turn with it, count as others.
        Not a checkpoint.
        """
        return self._inbox._position(self)

    def edit(self, message: Any) -> bool:
        """Put ``message`` in place of the message that waits; False if it does not wait any more.

        Its place in the queue, its mode, its group and its id stay. A summary quotes the new text.
        Not a checkpoint.
        """
        return self._inbox._edit(self, message)

    def cancel(self, reason: str | None = None) -> bool:
        """Take the message out of the queue; False if it does not wait any more.

        It settles as CANCELLED, with a `JobCancelledError` that has the reason. The other messages
        keep their order. A message that is in a turn is not affected: to stop it, abort the turn.
        Not a checkpoint.
        """
        return self._inbox._withdraw(self, reason)

    async def settled(self) -> Settled:
        """Wait until the message has settled, and return its outcome. A checkpoint.

        Any number of tasks may wait, any number of times. Cancelling the wait leaves nothing
        behind, and does not cancel the message. The failure of a turn is returned, not raised. As
        the failure of a job, it is logged if it was never retrieved.

        Raises:
          LaneDeadlockError: inside a job, if the wait would never end. A turn cannot wait for its
            own message, nor for a message that waits for the end of the turn.
        """
        if (outcome := self.outcome) is not None:
            await trio.lowlevel.checkpoint()
        while outcome is None:
            await self._ending.wait_while(self._inbox._job_of(self))
            outcome = self.outcome
        return outcome


def _look_at(job: Job[Any]) -> None:
    """Retrieve the failure of a turn."""
    _ = job.exception
