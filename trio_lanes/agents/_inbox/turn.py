"""A turn: one call of the handler, and the interface through which other tasks reach it.

A turn takes messages while it is active, is not compacting, and has not been aborted. `Turn.take`
checks the three conditions. It is synchronous, so its answer stays true until the next checkpoint
of the handler.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, Literal, Protocol, TypeAlias, final

import trio
from trio.lowlevel import disable_ki_protection, enable_ki_protection

from trio_lanes import Job, JobCancelledError, LaneError

from .base_turn import BaseTurn
from .ending import Ending
from .queue import WhenBusy
from .receipt import Receipt, SettledKind


class InboxOfTurn(Protocol):
    """The inbox of a turn, as far as the turn knows it."""

    @property
    def session(self) -> str: ...
    def post(self, message: Any, *, when_busy: WhenBusy, group: Hashable) -> Receipt: ...
    def _take(self, turn: Turn) -> list[Any]: ...
    def _before_abort(
        self, then: Literal["run", "hold", "clear"], reason: str | None, /
    ) -> None: ...


@final
class Turn(BaseTurn):
    """One call of the handler of an inbox; it is a `Run`. Only inboxes make turns.

    Attributes:
      messages: the messages that it was started with: a `Summary`, if an overflow has removed
        messages; then one message, or the collected messages, oldest first.
      is_streaming: whether `RunRegistry.send` may give it messages; False until the handler sets
        it. Only the registry reads it.
      job: the job in which it runs.
      session: the key of its session.
      group: the group of the messages that it was started with; it takes steers of this group.
    """

    def __init__(
        self,
        inbox: InboxOfTurn,
        job: Job[Any],
        messages: list[Any],
        receipts: list[Receipt],
        group: Hashable,
    ) -> None:
        super().__init__()
        self.messages: Final = messages
        self.session: Final = inbox.session
        self.group: Final = group
        self.job: Final = job
        self._inbox: Final = inbox
        self._receipts: Final = receipts
        self._rollback_called = False
        self._id: str | None = None  # until it is asked for
        self._ending: Final = Ending()

    def __repr__(self) -> str:
        state = "active" if self._is_active else "ended"
        return f"<trio_lanes.agents.Turn at {id(self):#x}, {len(self.messages)} messages, {state}>"

    @property
    def _is_active(self) -> bool:
        return not (self._ending.come or self.job.done)

    @property
    def id(self) -> str:
        """A name that no other turn has: ``post(..., expected_turn=turn.id)`` is for this turn."""
        if self._id is None:
            self._id = secrets.token_hex(8)
        return self._id

    @property
    def rollback_called(self) -> bool:
        """Whether the turn was aborted in order to leave the conversation, by mode ROLLBACK.

        The handler reads it when it has been cancelled, and takes back what it has written; see
        `ConversationTurn.rollback`.
        """
        return self._rollback_called

    @enable_ki_protection
    def take(self) -> list[Any]:
        """Remove and return the steers that wait, oldest first.

        The handler calls this where it can include new messages. The steers settle as STEERED now,
        whatever the outcome of the turn. They are taken although messages of other modes were
        posted before them, unless the inbox has ``steers_first=False``. A steer of another `group`
        is not taken, nor is a steer behind it. The list is empty while compacting, after an abort
        and after the end. Not a checkpoint.
        """
        if self.is_compacting or self.abort_called or not self._is_active:
            return []
        return self._inbox._take(self)

    @enable_ki_protection
    def queue_message(self, message: Any, /) -> bool:
        """Post ``message`` as a steer of its group; False if it can take no more. Never blocks.

        True means that the message waits. If the turn ends before it takes the message, the
        message gets a turn of its own. Not a checkpoint.
        """
        if self.abort_called or not self._is_active:
            return False
        try:
            receipt = self._inbox.post(message, when_busy=WhenBusy.STEER, group=self.group)
        except LaneError:
            return False
        outcome = receipt.outcome
        return outcome is None or outcome.kind is not SettledKind.DROPPED

    @enable_ki_protection
    def abort(
        self,
        reason: str | None = None,
        *,
        then: Literal["run", "hold", "clear"] = "run",
        rollback: bool = False,
    ) -> None:
        """Cancel the handler, as by a `trio.CancelScope` around it.

        The messages of the turn settle when the handler has ended: as CANCELLED, or as RAN or
        FAILED if the handler returned or raised nevertheless. A second abort has no effect but by
        ``then`` and ``rollback``; an abort after the end has none. Not a checkpoint.

        Args:
          reason: the reason in the errors of the cancelled messages.
          then: what the waiting messages do, decided before the handler is cancelled; see
            `Inbox.stop`.
          rollback: set `rollback_called`, also if the turn was aborted before.

        Raises:
          ValueError: for another ``then``.
        """
        check_then(then)
        if not self._is_active:
            return
        self._inbox._before_abort(then, reason)
        self._rollback_called = self._rollback_called or rollback
        self._abort(reason)


def check_then(then: Literal["run", "hold", "clear"]) -> Literal["run", "hold", "clear"]:
    """Return ``then``, if it says what the waiting messages do when a turn is stopped."""
    if then not in ("run", "hold", "clear"):
        raise ValueError(f"then must be 'run', 'hold' or 'clear', not {then!r}")
    return then


Handler: TypeAlias = Callable[[Turn], Awaitable[Any]]
"""``async def handler(turn) -> result``."""


@disable_ki_protection
async def call(handler: Handler, turn: Turn) -> Any:
    """Call the handler with Ctrl-C enabled."""
    return await handler(turn)


def own_part(error: BaseException) -> BaseException | None:
    """Return the error for the receipts: ``error`` without cancellations from outside the turn.

    None if ``error`` is nothing but such a cancellation.
    """
    if isinstance(error, trio.Cancelled):
        return None
    rest: BaseException | None = error
    if isinstance(error, BaseExceptionGroup):
        cancelled, others = error.split(trio.Cancelled)
        if cancelled is not None:  # else `error` itself, not a copy of it
            rest = others
    if rest is None or isinstance(rest, Exception):
        return rest
    error = JobCancelledError(f"the handler raised {type(rest).__name__}")
    error.__cause__ = rest
    return error
