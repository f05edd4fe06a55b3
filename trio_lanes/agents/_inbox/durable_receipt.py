"""The receipt of a message of a durable inbox: its job, and its outcome wherever it is handled."""

from __future__ import annotations

from typing import Any, Final, Protocol

from trio_lanes import JobCancelledError
from trio_lanes.durable import (
    DurableJob,
    DurableJobError,
    DurableLanes,
    DurableState,
    JobTakenError,
)

from .durable_message import KINDS, MERGED, NOT_ENDED
from .receipt import MessageState, Settled, SettledKind


class DurableInboxOfReceipt(Protocol):
    """The inbox of a durable receipt, as far as the receipt knows it."""

    @property
    def _lanes(self) -> DurableLanes: ...
    async def _edit(self, id: int, message: Any) -> bool: ...
    async def waiting(self) -> list[DurableReceipt]: ...


class DurableReceipt:
    """The receipt of one posted message. Only `DurableInbox` makes receipts.

    A receipt is a view of the store, so any number of instances may have receipts of one message.
    Each async method is a checkpoint. It raises `~trio_lanes.durable.StoreUnavailableError` if the
    store cannot be read, and `~trio_lanes.durable.ResultGoneError` if the store has forgotten the
    job, ``result_ttl`` after its end.

    Attributes:
      id: the id of the message.
      job: the job of the message; None if the post refused it.
    """

    def __init__(
        self,
        inbox: DurableInboxOfReceipt,
        id: str,
        job: DurableJob | None,
        refused: Settled | None = None,
    ) -> None:
        self.id: Final = id
        self.job: Final = job
        self._inbox: Final = inbox
        self._refused: Final = refused

    def __repr__(self) -> str:
        where = "refused" if self.job is None else f"job {self.job.id}"
        return f"<trio_lanes.agents.DurableReceipt of message {self.id!r}, {where}>"

    async def state(self) -> MessageState:
        """Return the state of the message. A message between two attempts waits."""
        if await self.outcome() is not None:
            return MessageState.SETTLED
        assert self.job is not None
        running = (await self.job.status()).state is DurableState.RUNNING
        return MessageState.IN_TURN if running else MessageState.WAITING

    async def outcome(self) -> Settled | None:
        """Return the outcome of the message; None until it has settled."""
        return await self._read(wait=False)

    async def settled(self) -> Settled:
        """As `Receipt.settled`, on whichever instance it is handled; ``Settled.turn`` is None."""
        settled = await self._read(wait=True)
        assert settled is not None
        return settled

    async def cancel(self, reason: str | None = None) -> bool:
        """Take the message out of the queue, as `Receipt.cancel`."""
        if self.job is None:
            return False
        return await self._inbox._lanes.cancel(self.job.id, reason, running=False)

    async def edit(self, message: Any) -> bool:
        """Put ``message`` (JSON) in place of the message that waits, as `Receipt.edit`.

        A message between two attempts is in its turn. If this is cancelled, or raises
        `~trio_lanes.durable.StoreUnavailableError`, the message may have been edited.

        Raises:
          PayloadError: if ``message`` is not JSON, or larger than the store's ``max_payload``.
          LaneFullError: if the lane has no room for the job of the edit.
        """
        if self.job is None:
            return False
        return await self._inbox._edit(self.job.id, message)

    async def position(self) -> int | None:
        """Return the position in the queue, as `Receipt.position`."""
        waiting = await self._inbox.waiting()
        return next((at for at, one in enumerate(waiting) if one.job == self.job), None)

    async def _read(self, *, wait: bool) -> Settled | None:
        job, kind = self.job, SettledKind.RAN
        while job is not None:
            if not wait and (await job.status()).state in NOT_ENDED:
                return None
            try:
                return Settled(kind, await job.wait())
            except JobTakenError as error:
                if error.reason != MERGED:
                    return _cancelled(error)
                job, kind = self._inbox._lanes.job(error.by), SettledKind.MERGED
            except JobCancelledError as error:
                return _cancelled(error)
            except DurableJobError as error:
                return Settled(SettledKind.FAILED, error=error)
        assert self._refused is not None
        return self._refused


def _cancelled(error: JobCancelledError) -> Settled:
    kind = KINDS.get(error.reason or "", SettledKind.CANCELLED)
    return Settled(kind, error=error if kind is SettledKind.CANCELLED else None)
