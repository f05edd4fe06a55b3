"""`DurableRun`: the run that a handler is in, and what it may ask of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import trio

from ... import _current
from ..._errors import JobCancelledError
from .._contract.protocol import Store
from .._contract.records import Claim
from .._options.json_text import decode, encode
from .deadlock import Wait

if TYPE_CHECKING:
    from ..._job import AnyJob


class Peers(Protocol):
    """The instance of a run, as far as a run needs it: the worker."""

    @property
    def running(self) -> list[DurableRun]:
        """The runs of this instance that have not ended."""

    @property
    def capacity(self) -> int | float:
        """How many runs this instance may have."""

    def next_step(self) -> trio.Event:
        """An event that is set when the step that is under way, or else the next, is over."""


@final
class DurableRun:
    """One run of a job, from its claim to its finish.

    Attributes:
      id: the job's number.
      name: the handler's name.
      session: the job's session, or None.
      lane: the lane that it holds a slot of.
      attempt: which attempt this is, the first being 1.
      crashes: how often a process died while it ran this job.
      fence: greater than that of every earlier run in the store. Whoever writes for the job can
        refuse a lower one than it has seen, and so what a lost run still does.
      checkpoint_data: what was last given to `checkpoint` in this or an earlier run; else None.
    """

    def __init__(self, claim: Claim, store: Store, peers: Peers) -> None:
        self.id: Final = claim.id
        self.name: Final = claim.name
        self.session: Final = claim.session
        self.lane: Final = claim.lane
        self.attempt: Final = claim.attempt
        self.crashes: Final = claim.crashes
        self.fence: Final = claim.fence
        self.checkpoint_data: Any = None if claim.checkpoint is None else decode(claim.checkpoint)
        self._claim: Final = claim
        self._store: Final = store
        self._peers: Final = peers
        self._waits: Final[list[Wait]] = []  # of its tasks, for the ends of other jobs
        self._job: AnyJob | None = None  # that runs it here
        self._cancelled = False  # whether its cancellation is recorded
        self._lenders = 0  # tasks in `yield_slot`
        self._given_up = False  # whether its instance lets go of it

    def __repr__(self) -> str:
        return f"<trio_lanes.durable.DurableRun of job {self.id}, attempt {self.attempt}>"

    async def checkpoint(self, data: object) -> None:
        """Keep ``data`` (JSON) for the next attempt, should there be one. A checkpoint.

        Raises:
          PayloadError: if it is no JSON, or larger than the store's ``max_payload``.
          StoreUnavailableError: if it could not be kept.
          JobCancelledError: if this run was lost, and the code is shielded from being told so.
        """
        text = encode("checkpoint data", data, self._store.max_payload)
        if not await self._store.checkpoint(self.id, self.fence, text):
            await self._lost()
        self.checkpoint_data = decode(text)

    def progress(self) -> None:
        """Say that the work goes on. Not a checkpoint."""
        assert self._job is not None
        self._job.progress()

    @asynccontextmanager
    async def yield_slot(self) -> AsyncIterator[None]:
        """Lend the lane's slot while waiting for other work; never the session's.

        Leaving the block takes the slot back, ahead of every waiting job, and is not cancelled
        while it waits for that; unless its instance ends or has lost its lease: then it cleans up
        without a slot, since none may ever come.
        """
        # counted before asking: whoever takes the slot back meanwhile must see this one
        self._lenders += 1
        try:
            if self._lenders == 1 and not await self._store.lend_slot(self.id, self.fence):
                await self._lost()
            yield
        finally:
            self._lenders -= 1
            if not self._lenders:
                with trio.CancelScope(shield=True):
                    # taken before asking: a slot may be freed while the answer is on its way
                    stepped = self._peers.next_step()
                    while await self._store.regain_slot(self.id, self.fence) is False:
                        if self._given_up:
                            break
                        await stepped.wait()
                        if self._lenders > 0:
                            break  # another task has lent it since, and will take it back
                        stepped = self._peers.next_step()

    async def _lost(self) -> None:
        """Another run may have begun: this one is told by being cancelled."""
        assert self._job is not None
        self._job.cancel("the run was lost")
        await trio.lowlevel.checkpoint()
        raise JobCancelledError("the run was lost")


def current_job() -> DurableRun | None:
    """The run whose task this is, or is below in the nursery tree; else None.

    None also in a thread. Not a checkpoint.
    """
    job = _current.current_job()
    run = None if job is None else job.meta
    return run if isinstance(run, DurableRun) else None
