"""How durable lanes end: closed, drained, or reset. What `shutdown_on_signals` asks of lanes.

Ending concerns this instance alone: what waits stays in the store, for the others and for later.
"""

from __future__ import annotations

import math

import trio

from ... import _check
from ..._drain import DrainReport
from ..._errors import LanesClosedError
from ..._lanes import Lanes
from .._runs.run import current_job
from .._runs.worker import GIVE_UP_AFTER, Worker


class Endable:
    """The part of `DurableLanes` that ends them."""

    local: Lanes | None

    def __init__(self, worker: Worker | None) -> None:
        self._worker = worker
        self._closing = trio.Event()
        self._told = LanesClosedError()  # what new work is told, once that is set

    def close(self, reason: str = "closing", retry_after: float | None = None) -> None:
        """Refuse new work from outside, and claim no more. Not a checkpoint.

        What runs goes on, and may still submit. What the others do is not changed.
        """
        if not self._closing.is_set():
            self._told = LanesClosedError(reason, retry_after)
            self._closing.set()
            if self._worker is not None:
                self._worker.close()

    def _check_open(self) -> None:
        if self._closing.is_set() and current_job() is None:
            raise LanesClosedError(self._told.reason, self._told.retry_after)

    async def wait_closing(self) -> None:
        """Wait until these lanes are closed."""
        await self._closing.wait()

    async def wait_idle(self) -> None:
        """Wait until nothing runs on this instance, and how all of it ended is recorded."""
        if self._worker is None:
            await trio.lowlevel.checkpoint()
        else:
            await self._worker.wait_idle()

    def reset(self) -> int:
        """Give up what runs on this instance: it is given back at once. Not a checkpoint.

        The last resort for bodies that do not end when they are cancelled: each may overlap its
        successor, which here or elsewhere starts at once; its fence is the older. Returns how many
        were given up.
        """
        return 0 if self.local is None else self.local.reset()

    async def drain(
        self, *, grace: float = math.inf, cancel_grace: float = math.inf
    ) -> DrainReport:
        """Claim nothing more, and wait until what runs has ended and is recorded.

        What is left after ``grace`` seconds is cancelled and given back to the front; that counts
        neither as an attempt nor as a crash. What outlives that by ``cancel_grace`` seconds is
        given up as by `reset`. What a store that is not available cannot record some seconds after
        that will be run again. New work from outside is refused from now on. What waits stays in
        the store. Cancelling it leaves the lanes closed, and the work running.
        """
        _check.seconds("grace", grace)
        _check.seconds("cancel_grace", cancel_grace)
        self.close("draining")
        worker = self._worker
        if worker is None:
            await trio.lowlevel.checkpoint()
            return DrainReport(0, 0, 0)
        at_first = len(worker.running)
        given_back = abandoned = 0
        with trio.move_on_after(grace) as in_time:
            await worker.wait_idle()
        if in_time.cancelled_caught:
            given_back = worker.give_back("draining")
            with trio.move_on_after(cancel_grace) as in_time:
                await worker.wait_ended()
            if in_time.cancelled_caught:
                abandoned = self.reset()
            with trio.move_on_after(GIVE_UP_AFTER):  # the store may be away for longer
                await worker.wait_idle()
        return DrainReport(max(0, at_first - given_back), given_back - abandoned, abandoned)
