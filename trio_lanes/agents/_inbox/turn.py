"""A turn: what a handler is given, and how others reach it while it is active.

A turn takes messages while it is active, is not compacting, and has not been aborted. Each of
these is asked at `Turn.take`, which is synchronous; so what it says stays true until the next
checkpoint of the handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import trio
from trio.lowlevel import disable_ki_protection, enable_ki_protection

from trio_lanes import Job, JobCancelledError, LaneError

from .ending import Ending
from .queue import WhenBusy
from .receipt import Receipt, SettledKind

if TYPE_CHECKING:
    from .inbox import Inbox


@final
class Turn:
    """One call of an inbox's handler; a `Run`. Only inboxes make turns.

    Attributes:
      messages: what it was started with: a `Summary`, if some had to make room; then one message,
        or those that were collected, oldest first.
      is_streaming: whether `RunRegistry.send` may give it messages; False until the handler sets
        it. Nothing else asks.
      job: the job in which it runs.
    """

    def __init__(
        self, inbox: Inbox, job: Job[Any], messages: list[Any], receipts: list[Receipt]
    ) -> None:
        self.messages: Final = messages
        self.is_streaming = False
        self.job: Final = job
        self._inbox: Final = inbox
        self._receipts: Final = receipts
        self._handler_scope: Final = trio.CancelScope()
        self._reason: str | None = None
        self._compacting = 0
        self._ending: Final = Ending()

    def __repr__(self) -> str:
        state = "active" if self._is_active else "ended"
        return f"<trio_lanes.agents.Turn at {id(self):#x}, {len(self.messages)} messages, {state}>"

    @property
    def _is_active(self) -> bool:
        return not (self._ending.come or self.job.done)

    @property
    def is_compacting(self) -> bool:
        """Whether it is inside a block of `compacting`."""
        return self._compacting > 0

    @property
    def abort_called(self) -> bool:
        """Whether it was told to end."""
        return self._handler_scope.cancel_called

    @contextmanager
    def compacting(self) -> Iterator[None]:
        """While the history is being rewritten: `take` gives nothing, and messages wait.

        Blocks may be nested. Neither entering nor leaving is a checkpoint.
        """
        self._compacting += 1
        try:
            yield
        finally:
            self._compacting -= 1

    @enable_ki_protection
    def take(self) -> list[Any]:
        """At a boundary of the handler: the steers that came meanwhile, oldest first.

        They are settled as STEERED now, whatever becomes of the turn. Only those are given before
        which nothing else waits. Nothing is given while compacting, after an abort and after the
        end. Not a checkpoint.
        """
        if self.is_compacting or self.abort_called or not self._is_active:
            return []
        return self._inbox._take(self)

    @enable_ki_protection
    def queue_message(self, message: Any, /) -> bool:
        """Post ``message`` as a steer; False if this turn can take no more. Never blocks.

        True says that it waits: if the turn ends before it takes the message, that is run next.
        Not a checkpoint.
        """
        if self.abort_called or not self._is_active:
            return False
        try:
            receipt = self._inbox.post(message, when_busy=WhenBusy.STEER)
        except LaneError:
            return False
        outcome = receipt.outcome
        return outcome is None or outcome.kind is not SettledKind.DROPPED

    @enable_ki_protection
    def abort(self, reason: str | None = None) -> None:
        """Cancel the handler, as by a `trio.CancelScope` around it. What waits is left alone.

        The messages that it was started with settle when it has ended: as CANCELLED, or as RAN or
        FAILED if it returned or raised all the same. Aborting again, or after the end, changes
        nothing. Not a checkpoint.
        """
        if self._is_active and not self.abort_called:
            self._reason = reason
            self._handler_scope.cancel(reason)


Handler: TypeAlias = Callable[[Turn], Awaitable[Any]]
"""``async def handler(turn) -> result``."""


@disable_ki_protection
async def call(handler: Handler, turn: Turn) -> Any:
    """The frame in which Ctrl-C may interrupt the handler."""
    return await handler(turn)


def own_part(error: BaseException) -> BaseException | None:
    """What of ``error`` is no cancellation from outside of the turn, as its messages are told."""
    if isinstance(error, trio.Cancelled):
        return None
    rest: BaseException | None = error
    if isinstance(error, BaseExceptionGroup):
        cancelled, others = error.split(trio.Cancelled)
        if cancelled is not None:  # else `error` itself, not a copy of it
            rest = others
    if rest is None or isinstance(rest, Exception):
        return rest
    told = JobCancelledError(f"the handler raised {type(rest).__name__}")
    told.__cause__ = rest
    return told
