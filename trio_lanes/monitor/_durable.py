"""What a store of durable lanes holds: instances, dead letters, locks and quotas, and its jobs.

The store is asked while a page looks, at most every two seconds and once for all pages; nothing in
an answer grows with the number of jobs.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, final

import trio

from trio_lanes.durable import (
    DurableLanes,
    DurableRun,
    DurableState,
    DurableStatus,
    ResultGoneError,
    StoreError,
)

from ._actions import whole
from ._frames import verdict
from ._guard import RefusedError
from ._notes import Notes
from ._shown import MAX_ROWS, Frame, clipped, shown
from ._story import children_of, root_of

EVERY: Final = 2.0  # seconds
JOB_COUNTS: Final = ("waiting", "parked", "running", "dead")
_MAX_LETTERS: Final = 500  # that are grouped
_MAX_JOBS_OF_A_STATE: Final = 20
_OF_A_JOB: Final = (
    *("id", "name", "session", "lane", "state", "why", "until", "attempt", "crashes", "error"),
    "submitted_at",
)
_LONGEST_SHOWN: Final = 4000  # characters of a payload and of an outcome


@final
class Durable:
    """Answers what a page asks about a store."""

    def __init__(self, lanes: DurableLanes, notes: Notes) -> None:
        self._lanes: Final = lanes
        self._notes: Final = notes
        self._asking: Final = trio.Lock()
        self._view: Frame = {}
        self._asked_at = -math.inf

    async def view(self) -> Frame:
        """Return the state of the store, which may be two seconds old. A checkpoint."""
        async with self._asking:
            if trio.current_time() >= self._asked_at + EVERY:
                try:
                    self._view = await self._look()
                except StoreError as error:
                    self._view = {"error": clipped(error, 300)}
                self._asked_at = trio.current_time()
            return self._view

    async def _look(self) -> Frame:
        lanes = self._lanes
        now = await lanes.statistics()
        instances = await lanes.instances()
        letters = await lanes.dead(limit=_MAX_LETTERS)
        parked = await lanes.jobs(states=[DurableState.PARKED], limit=_MAX_JOBS_OF_A_STATE)
        waiting = await lanes.jobs(states=[DurableState.WAITING], limit=_MAX_JOBS_OF_A_STATE)
        problems = await lanes.health()
        groups = Counter((job.name, _type(job)) for job in letters)
        seen = max((job.seen_at for job in (*letters, *parked, *waiting)), default=time.time())
        return {
            "at": round(seen, 3),  # by the store's clock, as all times of its jobs
            **verdict(problems),
            "totals": shown(now, *JOB_COUNTS),
            "lanes": shown(now.lanes),
            "ended": shown(now.ended),
            "instances": shown(instances),
            "dead": [
                {
                    "handler": clipped(name),
                    "error": clipped(error),
                    "count": count,
                    "example": clipped(next(j.error for j in letters if _type(j) == error)),
                }
                for (name, error), count in groups.most_common(MAX_ROWS)
            ],
            "more_dead": now.dead - len(letters),
            "locks": shown(now.locks),
            "quotas": shown(now.quotas),
            "paused": shown(now.paused),
            "schedules": shown(await lanes.schedules(MAX_ROWS), "name", "next", "last", "skipped"),
            "jobs": shown([*parked, *waiting], *_OF_A_JOB),
        }

    async def story(self, id: int, *, operates: bool) -> Frame | None:
        """Return a job of the store, its attempts, and the root of its wait.

        Who ``operates`` also gets its payload and its outcome, up to a bound. None if the store
        does not know the job.
        """
        try:
            status = await self._lanes.job(id).status(texts=operates)
            causes = await self._lanes.root_causes(id)
        except (ResultGoneError, ValueError):
            return None
        except StoreError as error:
            return {"error": clipped(error, 300)}
        texts = ("payload", "outcome")
        here = [] if self._lanes.local is None else self._lanes.local.jobs()
        runs = (one for one in here if isinstance(one.meta, DurableRun) and one.meta.id == id)
        return {
            "at": round(status.seen_at, 3),
            **shown(status, *_OF_A_JOB, "waits", "history", longest=300),
            "roots": [root_of(cause) for cause in causes],
            "children": children_of(next(runs, None)),
            **(shown(status.texts, *texts, longest=_LONGEST_SHOWN) if operates else {}),
        }

    async def promote(self, asked: Mapping[str, Any]) -> Frame:
        """Make a job that is delayed, or between two attempts, due now."""
        return await self._one(asked, self._lanes.promote, "Made job {} due now")

    async def retry(self, asked: Mapping[str, Any]) -> Frame:
        """Queue one dead or failed job again."""
        return await self._one(asked, self._lanes.requeue, "Requeued job {}")

    async def _one(
        self, asked: Mapping[str, Any], act: Callable[[int], Awaitable[object]], done: str
    ) -> Frame:
        id = whole(asked, "job")
        if not await act(id):
            raise RefusedError(409, f"job {id} is in another state by now; look again")
        return self._done(done.format(id))

    def _done(self, text: str) -> Frame:
        self._asked_at = -math.inf
        self._notes.add("warning", "requeued", "", text)
        return {"text": text}

    async def requeue(self, asked: Mapping[str, Any]) -> Frame:
        """Queue the dead jobs of one handler and one error again: those that were seen.

        They are the oldest of them, as many as were seen; jobs that have died since stay dead.
        """
        handler, error = asked.get("handler"), asked.get("error")
        if not (isinstance(handler, str) and isinstance(error, str)):
            raise RefusedError(400, "the request names no handler and no error")
        seen = whole(asked, "seen")
        if not 1 <= seen <= _MAX_LETTERS:
            raise RefusedError(400, f"seen must be from 1 to {_MAX_LETTERS}")
        there = await self._lanes.dead(handler=handler, error=error, limit=seen)
        count = sum([await self._lanes.requeue(job.id) for job in there])
        return self._done(
            f"Requeued {count} jobs of {clipped(handler)} that ended in {clipped(error)}"
        )


def _type(job: DurableStatus) -> str:
    """The type of the error of a dead job, by which `DurableLanes.requeue` chooses."""
    return (job.error or "").partition(":")[0]
