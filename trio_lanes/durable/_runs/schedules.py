"""`Schedules`: submits the jobs of schedules that are due; every instance with a worker does it.

Each step of the worker says when the first schedule of the store falls due. While there is one, a
task waits for that time, looks at what is due, and fires it. How many instances do so makes no
difference: see `FireSchedule`.
"""

from __future__ import annotations

import json
import logging
import math
from typing import Final, Protocol, final

import trio

from ... import LaneError
from .._contract.act import new_ticket
from .._contract.errors import StoreError, StoreUnavailableError
from .._contract.protocol import Store
from .._options.schedule import DurableSchedule, job_at, take_due
from ..acts.schedules import FireSchedule, SchedulesOf
from .run import AGAIN_AFTER

logger: Final = logging.getLogger("trio_lanes.durable")

OUTCOME: Final = json.dumps({"reason": "its schedule was due again"})
"""Of a job that the next one cancels."""


class WorkerOfSchedules(Protocol):
    """The worker of this instance, as far as its schedules know it."""

    @property
    def closed(self) -> bool: ...


@final
class Schedules:
    """The schedules of a store, as one instance fires them."""

    def __init__(self, store: Store, worker: WorkerOfSchedules) -> None:
        self._store: Final = store
        self._worker: Final = worker
        self._at = math.inf  # on Trio's clock: when to look
        self._earlier = trio.Event()
        self._unread: Final[set[str]] = set()  # schedules that this instance cannot read

    def look_at(self, time: float) -> None:
        """Look at a time of Trio's clock, or earlier."""
        if time < self._at:
            self._at = time
            self._earlier.set()

    async def fire(self) -> None:
        """Fire schedules until the instance is closed."""
        while not self._worker.closed:
            self._earlier = trio.Event()
            with trio.move_on_at(self._at) as until:
                await self._earlier.wait()
            if not until.cancelled_caught:
                continue
            self._at = math.inf
            try:
                again = await self._fire_due()
            except StoreUnavailableError:  # the worker says so
                again = AGAIN_AFTER
            self.look_at(trio.current_time() + again)

    async def _fire_due(self) -> float:
        """Fire what is due now. Return in how many seconds to look again."""
        now, found = await self._store.look(SchedulesOf(None, None))
        again = 0.0 if found else math.inf
        for one in found:
            assert one.next is not None
            if one.next > now:
                return one.next - now
            if not await self._fire(one, one.next, now):
                again = AGAIN_AFTER
        return again

    async def _fire(self, one: DurableSchedule, due: float, now: float) -> bool:
        """Fire a schedule; return False if this instance cannot tell its due times."""
        try:
            times, skipped, following = take_due(one, now)
        except (ImportError, ValueError) as error:
            if one.name not in self._unread:
                self._unread.add(one.name)
                logger.error("schedule %r is left to other instances: %s", one.name, error)
            return False
        jobs = [job_at(one, time, now) for time in times]
        of = one.name, one.version, due, following, times[-1] if times else due
        how = one.overlap, OUTCOME
        try:
            await self._store.do(FireSchedule(*of, skipped, *how, None, jobs), new_ticket())
        except (LaneError, ValueError) as error:
            if isinstance(error, StoreError):
                raise
            refused = "%d due times of schedule %r are skipped, since their jobs were refused: %s"
            logger.error(refused, len(jobs), one.name, error)
            skipped += len(jobs)
            why = f"{type(error).__name__}: {error}"
            await self._store.do(FireSchedule(*of, skipped, *how, why, ()), new_ticket())
        return True
