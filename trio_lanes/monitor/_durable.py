"""What a store of durable lanes holds: instances, dead letters, locks and quotas, and its jobs.

The store is asked while a page looks, at most every two seconds and once for all pages; nothing in
an answer grows with the number of jobs.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, final

import trio

from trio_lanes.durable import (
    DurableLanes,
    DurableState,
    DurableStatus,
    LineRequest,
    ResultGoneError,
    StoreError,
)

from ._actions import RefusedError, whole
from ._frames import problems_of
from ._notes import Notes
from ._shown import MAX_ROWS, Frame, clipped
from ._story import root_of

EVERY: Final = 2.0  # seconds
JOB_COUNTS: Final = ("waiting", "parked", "running", "dead")
_MAX_LETTERS: Final = 500  # that are grouped
_MAX_JOBS_OF_A_STATE: Final = 20
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
        where = {one.id: clipped(f"{one.host} {one.pid}") for one in instances}
        groups = Counter((job.name, _type(job)) for job in letters)
        return {
            "health": problems_of(problems),
            "totals": {name: getattr(now, name) for name in JOB_COUNTS},
            "lanes": [
                {
                    "name": clipped(name),
                    "limit": None if lane.concurrency == math.inf else lane.concurrency,
                    "paused": lane.paused,
                    **{what: getattr(lane, what) for what in (*JOB_COUNTS, "unhandled")},
                }
                for name, lane in list(now.lanes.items())[:MAX_ROWS]
            ],
            "instances": [
                {
                    "host": clipped(one.host),
                    "pid": one.pid,
                    "age": round(time.time() - one.since),
                    "running": one.running,
                    "handlers": clipped(", ".join(one.names)),
                    "lanes": {clipped(x): n for x, n in list(one.lanes.items())[:MAX_ROWS]},
                }
                for one in instances[:MAX_ROWS]
            ],
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
            "locks": [
                {
                    "name": clipped(lock.key),
                    "holding": lock.holding,
                    "waiting": lock.waiting,
                    "holders": _requests(lock.holders, where),
                    "waiters": _requests(lock.waiters, where),
                }
                for lock in now.locks[:MAX_ROWS]
            ],
            "quotas": [
                {
                    "name": clipped(quota.name),
                    "levels": [
                        {
                            "used": level.used,
                            "limit": level.limit.limit,
                            "unit": clipped(level.limit.unit),
                            "per": level.limit.per,
                            "left": _left(level.full_at),
                        }
                        for level in quota.levels
                    ],
                    "waiting": quota.waiting,
                    "waiters": _requests(quota.waiters, where),
                }
                for quota in now.quotas[:MAX_ROWS]
            ],
            "paused": [
                {"session": clipped(session), "left": _left(until)}
                for session, until in list(now.paused.items())[:MAX_ROWS]
            ],
            "jobs": [_brief(job) for job in (*parked, *waiting)],
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
        texts = status.texts
        return {
            **_brief(status),
            "roots": [root_of(cause) for cause in causes],
            "waits": status.waits,
            "attempts": [
                {
                    "number": one.number,
                    "how": one.how,
                    "where": clipped(f"{one.host} {one.pid}"),
                    "error": None if one.error is None else clipped(one.error, 300),
                    "took": round((one.ended_at or time.time()) - one.started_at, 1),
                    "age": round(max(0.0, time.time() - one.started_at)),
                }
                for one in status.history
            ],
            **{
                name: clipped(getattr(texts, name) or "", _LONGEST_SHOWN)
                for name in ("payload", "outcome")
                if texts is not None
            },
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
        try:
            if not await act(id):
                raise RefusedError(409, f"job {id} is in another state by now; look again")
        except StoreError as trouble:
            raise RefusedError(503, clipped(trouble, 300)) from trouble
        return self._done(done.format(id))

    def _done(self, text: str) -> Frame:
        self._asked_at = -math.inf
        self._notes.add("warning", "requeued", "", text)
        return {"text": text}

    async def requeue(self, asked: Mapping[str, Any]) -> Frame:
        """Queue the dead jobs of one handler and one error again: as many as were seen, or fewer.

        Raises:
          RefusedError: if there are more than were seen; then nothing has changed.
        """
        handler, error = asked.get("handler"), asked.get("error")
        if not (isinstance(handler, str) and isinstance(error, str)):
            raise RefusedError(400, "the request names no handler and no error")
        seen = whole(asked, "seen")
        try:
            there = await self._lanes.dead(handler=handler, error=error, limit=max(seen, 0) + 1)
            if len(there) > seen:
                raise RefusedError(409, f"more than {seen} jobs are dead by now; look again")
            count = await self._lanes.requeue(handler=handler, error=error)
        except StoreError as trouble:
            raise RefusedError(503, clipped(trouble, 300)) from trouble
        return self._done(
            f"Requeued {count} jobs of {clipped(handler)} that ended in {clipped(error)}"
        )


def _type(job: DurableStatus) -> str:
    """The type of the error of a dead job, by which `DurableLanes.requeue` chooses."""
    return (job.error or "").partition(":")[0]


def _brief(job: DurableStatus) -> Frame:
    return {
        "id": job.id,
        "name": clipped(job.name),
        "session": None if job.session is None else clipped(job.session),
        "lane": clipped(job.lane),
        "state": job.state.value,
        "why_parked": job.why,
        "left": _left(job.until),
        "attempt": job.attempt,
        "crashes": job.crashes,
        "error": None if job.error is None else clipped(job.error),
        "age": round(max(0.0, time.time() - job.submitted_at)),
    }


def _left(until: float | None) -> float | None:
    """Seconds until that Unix time."""
    return None if until is None else round(max(0.0, until - time.time()), 1)


def _requests(requests: Sequence[LineRequest], where: Mapping[str, str]) -> list[Frame]:
    return [
        {
            "job": one.job,
            "where": where.get(one.instance, "an instance that is gone"),
            "age": round(max(0.0, time.time() - one.since)),
        }
        for one in requests
    ]
