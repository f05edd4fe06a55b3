"""Finding: a job by its number, and all that has a text in its session, name, owner or ``meta``.

All jobs that wait or run are looked through, and then the records of those that ended last. What is
looked through is listed at one moment, up to `MAX_SEARCHED` jobs, and read in slices, for at most
`SEARCH_SECONDS`. The answer says of how many jobs it speaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, final

import trio

from trio_lanes import Job, Lanes

from ._frames import Frames, ended_frame
from ._guard import RefusedError
from ._shown import Frame, clipped

MAX_SEARCHED: Final = 100_000  # jobs that wait or run
SEARCH_SECONDS: Final = 1.0
MAX_FOUND: Final = 30  # of each kind
_JOBS_AT_ONCE: Final = 500  # jobs between two checkpoints
_MAX_MEMBERS: Final = 20  # of a ``meta`` or an owner that is a container


@final
class JobSearch:
    """Looks for jobs, sessions and lanes."""

    def __init__(self, lanes: Lanes, frames: Frames) -> None:
        self._lanes: Final = lanes
        self._frames: Final = frames

    async def job(self, number: int) -> Job[Any] | None:
        """Return the job with that number that waits or runs, or that was shown and is kept.

        A checkpoint, if it was not shown. None also if there are more jobs than are looked through.
        """
        shown = self._frames.find(number)
        if shown is not None:
            return shown
        found, _, _ = await self._matching(lambda job: job.id == number, 1)
        return found[0] if found else None

    async def find(self, text: str) -> Frame:
        """Return what has ``text`` in its name, or that number. A checkpoint.

        Raises:
          RefusedError: if the text is empty.
        """
        wanted = text.strip().casefold()
        if not wanted:
            raise RefusedError(400, "there is no text to look for")
        number = int(wanted) if wanted.isascii() and wanted.isdecimal() else -1

        def has(id: int, name: str, session: str | None, *more: object) -> bool:
            return (
                wanted in name.casefold()
                or (session is not None and wanted in session.casefold())
                or id == number
                or any(wanted in word for word in _words(more))
            )

        def matches(job: Job[Any]) -> bool:
            return has(job.id, job.name, job.session, job.owner, job.meta)

        jobs, looked, there = await self._matching(matches, MAX_FOUND)
        exact = await self.job(number) if number >= 0 else None
        if exact is not None:  # first, and also if many others have its number in their names
            jobs = [exact, *(job for job in jobs if job is not exact)][:MAX_FOUND]
        ended = (
            record
            for record in reversed(self._frames.records.ring)
            if has(record.run.id, record.run.name, record.run.session, record.run.owner)
        )
        sessions = (key for key in self._lanes.sessions() if wanted in key.casefold())
        labels = dict.fromkeys(lane.label for lane in self._lanes.lanes())
        return {
            "sessions": [clipped(key) for key in islice(sessions, MAX_FOUND)],
            "lanes": [clipped(x) for x in labels if wanted in x.casefold()][:MAX_FOUND],
            "jobs": [self._frames.line(job) for job in jobs],
            "ended": [ended_frame(record) for record in islice(ended, MAX_FOUND)],
            "looked": looked,
            "there": there,
            "most": MAX_FOUND,
        }

    async def _matching(
        self, matches: Callable[[Job[Any]], bool], most: int
    ) -> tuple[list[Job[Any]], int, int]:
        """Return the first ``most`` jobs that match, how many were looked at, and how many are."""
        jobs: list[Job[Any]] = []
        statistics = self._lanes.statistics()
        for lane in self._lanes.lanes():
            jobs += lane.running(max(0, MAX_SEARCHED - len(jobs)))
            jobs += lane.waiters(max(0, MAX_SEARCHED - len(jobs)))
        found: list[Job[Any]] = []
        looked, ends_at = 0, trio.current_time() + SEARCH_SECONDS
        while looked < len(jobs) and len(found) < most and trio.current_time() < ends_at:
            part = jobs[looked : looked + _JOBS_AT_ONCE]
            looked += len(part)
            found += [job for job in part if matches(job)]
            await trio.lowlevel.checkpoint()
        return found[:most], looked, max(len(jobs), statistics.waiting + statistics.active)


def _words(values: Iterable[Any]) -> Iterator[str]:
    """Yield what can be searched of ``values``: texts, numbers, and containers of these."""
    for value in values:
        if value is None:
            continue
        if isinstance(value, str | int | float):
            yield str(value).casefold()
        elif isinstance(value, Mapping):
            yield from _words(islice(value.values(), _MAX_MEMBERS))
        elif isinstance(value, tuple | list | set | frozenset):
            yield from _words(islice(value, _MAX_MEMBERS))
