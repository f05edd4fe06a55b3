"""What a store of durable lanes holds: instances, dead letters, locks and quotas, and its jobs.

The store is asked while a page looks, at most every two seconds and for a tenth of the time, and
once for all pages; nothing in an answer grows with the number of jobs.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from heapq import nlargest
from typing import Any, Final, NoReturn, final

import trio

from trio_lanes import Lanes, Problem
from trio_lanes.durable import (
    DurableLanes,
    DurableRun,
    DurableState,
    DurableStatistics,
    DurableStatus,
    LaneLimit,
    ResultGoneError,
    StoreError,
    StoreUnavailableError,
)

from .._config.names import label_of
from .._config.problems import unreachable
from .._config.reasons import in_words
from .._config.told import Told
from ..durable._lanes.told import READ_OF_A_STATE, of_oldest, of_retries
from ._actions import whole
from ._both import StoredLanes
from ._guard import RefusedError
from ._notes import Notes
from ._shown import MAX_ROWS, Frame, clipped, shown, shown_problem
from ._story import children_of, root_of

EVERY: Final = 2.0  # seconds
_SHARE: Final = 10
"""From one look to the next this many times as long passes as a look takes."""
_OLD: Final = 2 * EVERY
"""Seconds from which on the age of figures is said."""
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
        self._next_at = -math.inf
        self._read_at = -math.inf
        self.problems: Sequence[Problem] = ()
        """What is wrong with the store, as far as it was looked at last."""
        self._left_out: Sequence[str] = ()
        self.lanes: Mapping[str, StoredLanes] = {}
        """Its lanes by their labels, as they were read last."""
        self.sessions = 0
        self.oldest: tuple[float, Sequence[Told]] = 0.0, ()
        """The longest wait in seconds; and if it is long, what is told of it."""
        self.retries: Sequence[Told] = ()
        """What is told of jobs that back off."""

    async def view(self) -> Frame:
        """Return the state of the store, which may be old if a look takes long. A checkpoint."""
        async with self._asking:
            began = trio.current_time()
            if began >= self._next_at:
                try:
                    self._view = await self._look()
                except StoreError as error:
                    self._view = {**self._view, "error": clipped(error, 300)}
                    others = [one for one in self.problems if one.kind != "store"]
                    self.problems = [unreachable(error), *others]
                now = trio.current_time()
                # a store that does not answer has no work by it
                took = 0.0 if "error" in self._view else now - began
                self._next_at = now + max(EVERY, _SHARE * took)
            if self._age is None or self._read_at == -math.inf:
                return self._view
            return {**self._view, "age": self._age}

    @property
    def _age(self) -> float | None:
        """The seconds since the store was read; None, if that is what a page is used to."""
        age = trio.current_time() - self._read_at
        return round(age, 3) if "error" in self._view or age > _OLD else None

    async def follow(self) -> NoReturn:
        """Keep what is known of the store new, until this is cancelled."""
        while True:
            with suppress(Exception):  # who asks for the view gets the error, and the log has it
                await self.view()
            await trio.sleep(EVERY)

    def is_of(self, lanes: Lanes) -> bool:
        """Whether ``lanes`` are those on which this instance runs the jobs of the store."""
        return self._lanes.local is lanes

    @property
    def left_out(self) -> list[str]:
        """What was not looked at, in words; with the age of what could not be read again."""
        if self._read_at == -math.inf:
            return ["the store"]
        age = self._age
        if age is None:
            return [*self._left_out]
        return [*self._left_out, f"the store (its figures are as of {in_words(age)} ago)"]

    @property
    def looked(self) -> bool:
        """Whether the store could be looked at."""
        return "error" not in self._view and self._read_at > -math.inf

    async def _look(self) -> Frame:
        lanes = self._lanes
        now = await lanes.statistics()
        instances = await lanes.instances()
        letters = await lanes.dead(limit=_MAX_LETTERS)
        parked = await lanes.jobs(states=[DurableState.PARKED], limit=READ_OF_A_STATE)
        waiting = await lanes.jobs(states=[DurableState.WAITING], limit=READ_OF_A_STATE)
        problems = await lanes.health()
        if not problems.looked:
            raise StoreUnavailableError(problems[0].text.partition(": ")[2])
        limits = await lanes.limits()
        first = await self._first_of_lanes(now, waiting)
        oldest = await of_oldest(lanes, now, first.values(), waiting, limits)
        schedules = await lanes.schedules(MAX_ROWS)
        # from here on there is no checkpoint: a frame has all of a look, or nothing
        self.lanes = _by_label(now, first, limits)
        self.problems, self._left_out, self.sessions = problems, problems.left_out, now.sessions
        self.oldest, self.retries = oldest, of_retries(now.parked, parked)
        self._read_at = trio.current_time()
        groups = Counter((job.name, _type(job)) for job in letters)
        seen = max((job.seen_at for job in (*letters, *parked, *waiting)), default=time.time())
        return {
            "at": round(seen, 3),  # by the store's clock, as all times of its jobs
            "health": [shown_problem(one) for one in problems],
            "unseen": problems.unseen,
            "left_out": problems.left_out,
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
            "schedules": shown(schedules, "name", "next", "last", "skipped"),
            "jobs": shown(
                [*parked[:_MAX_JOBS_OF_A_STATE], *waiting[:_MAX_JOBS_OF_A_STATE]], *_OF_A_JOB
            ),
        }

    async def _first_of_lanes(
        self, now: DurableStatistics, waiting: Sequence[DurableStatus]
    ) -> Mapping[str, DurableStatus]:
        """Return the first job that waits in each lane; of many lanes, for those with the most.

        Args:
          waiting: the first jobs that wait in all lanes.
        """
        first: dict[str, DurableStatus] = {}
        for job in waiting:
            first.setdefault(job.lane, job)
        others = (name for name, one in now.lanes.items() if one.waiting and name not in first)
        for name in nlargest(MAX_ROWS, others, key=lambda name: now.lanes[name].waiting):
            for job in await self._lanes.jobs(name, states=[DurableState.WAITING], limit=1):
                first[name] = job
        return first

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
        self._next_at = -math.inf
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


def _by_label(
    now: DurableStatistics,
    first: Mapping[str, DurableStatus],
    limits: Mapping[str, LaneLimit],
) -> Mapping[str, StoredLanes]:
    """Return the lanes by their names, or by their templates."""
    found: dict[str, StoredLanes] = {}
    for name, one in now.lanes.items():
        oldest = first[name].waited if name in first else 0.0
        found.setdefault(label_of(name, limits) or name, StoredLanes()).add(one, oldest)
    return found


def _type(job: DurableStatus) -> str:
    """The type of the error of a dead job, by which `DurableLanes.requeue` chooses."""
    return (job.error or "").partition(":")[0]
