"""The end of durable lanes: close, drain, reset, as `shutdown_on_signals` needs them.

An end concerns this instance alone. Waiting jobs stay in the store, for other instances and later.
"""

from __future__ import annotations

import math

import trio

from ... import DrainReport, Lanes, LanesClosedError
from ..._config import check as _check
from .._runs.run import current_job
from .._runs.worker import GIVE_UP_AFTER, Worker


class HasEnd:
    """The part of `DurableLanes` that ends this instance."""

    local: Lanes | None

    def __init__(self, worker: Worker | None) -> None:
        self._worker = worker
        self._closing = trio.Event()
        self._refusal = LanesClosedError()  # raised to new work once `_closing` is set

    def close(self, reason: str = "closing", retry_after: float | None = None) -> None:
        """Refuse new jobs from outside, and claim no more jobs. Not a checkpoint.

        Running jobs go on, and may still submit. Other instances are not affected.
        """
        if not self._closing.is_set():
            self._refusal = LanesClosedError(reason, retry_after)
            self._closing.set()
            if self._worker is not None:
                self._worker.close()

    def _refuse_from_outside(self) -> None:
        if current_job() is None:
            raise LanesClosedError(self._refusal.reason, self._refusal.retry_after)

    async def wait_closing(self) -> None:
        """Wait until `close` is called, by a drain or the end of the block also."""
        await self._closing.wait()

    async def wait_idle(self) -> None:
        """Wait until no job runs on this instance, and the ends of all are in the store."""
        if self._worker is None:
            await trio.lowlevel.checkpoint()
        else:
            await self._worker.wait_idle()

    def reset(self) -> int:
        """Give up the running jobs of this instance: they are given back at once. Not a checkpoint.

        The last resort for bodies that do not end when they are cancelled. Each body may overlap
        the job's next run, which starts at once, here or on another instance, with a greater
        fence. Return how many jobs were given up.
        """
        return 0 if self.local is None else self.local.reset()

    async def drain(
        self, *, grace: float = math.inf, cancel_grace: float = math.inf
    ) -> DrainReport:
        """Claim no more jobs, and wait until all running jobs have ended and are recorded.

        * Jobs that still run after ``grace`` seconds are cancelled and given back to the front;
          this counts neither as an attempt nor as a crash.
        * Jobs that have not ended ``cancel_grace`` seconds later are given up, as by `reset`.
        * If the store is not available some seconds after that, the unrecorded jobs run again.

        New jobs from outside are refused from now on. Waiting jobs stay in the store. Cancelling
        the drain leaves the lanes closed and the jobs running.
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
        if not (worker.available or worker.running):
            grace = min(grace, GIVE_UP_AFTER)  # only reports are left, and the store is away
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
