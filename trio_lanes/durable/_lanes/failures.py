"""`DurableLanes.failures`: dead and failed jobs, grouped by what has gone wrong."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final, Protocol, final

import attrs
import trio

from .._contract.errors import ResultGoneError
from .._contract.records import DurableStatus
from .._contract.state import DEAD_LETTERS, DurableState
from .._runs.job import DurableJob

_MOST_GROUPS: Final = 20
_MOST_PAGES: Final = 16
_LONGEST_SEARCH: Final = 5.0  # seconds, until the next page is not read any more


@final
@attrs.frozen
class FailureGroup:
    """Dead and failed jobs with the same handler, lane and error: see `DurableLanes.failures`."""

    handler: str
    lane: str
    error: str
    """The type of the error and the first line of its message."""
    count: int
    last: int
    """The id of the last of these jobs."""
    traceback: str
    """The traceback of its error; empty: it has none."""


@final
class FailureGroups(tuple[FailureGroup, ...]):
    """The largest groups, and which jobs are in them: see `DurableLanes.failures`."""

    looked: int = 0
    """How many jobs were looked at."""
    between: tuple[float, float] | None = None
    """The Unix times of the submissions of the first and the last of these, if there are jobs that
    were not looked at; None: all were."""


class LanesOfFailures(Protocol):
    """`DurableLanes`, as far as their failures are read from them."""

    def job(self, id: int) -> DurableJob: ...
    async def jobs(
        self,
        name: str | None,
        *,
        states: Collection[DurableState],
        handler: str | None,
        since: float | None,
        limit: int,
    ) -> list[DurableStatus]: ...


async def failures(
    lanes: LanesOfFailures, name: str | None, handler: str | None, since: float | None, limit: int
) -> FailureGroups:
    """Return the largest groups of the last ``limit`` jobs, or fewer."""

    found, is_whole = await last_letters(
        lambda time: lanes.jobs(
            name, states=DEAD_LETTERS, handler=handler, since=time, limit=limit
        ),
        since,
        limit,
    )
    groups: defaultdict[tuple[str, str, str], list[DurableStatus]] = defaultdict(list)
    for job in found:
        assert job.error is not None
        groups[job.name, job.lane, job.error.partition("\n")[0]].append(job)
    answer = []
    for key, jobs in sorted(groups.items(), key=lambda one: -len(one[1]))[:_MOST_GROUPS]:
        traceback = ""
        with suppress(ResultGoneError):  # it was requeued or purged meanwhile
            texts = (await lanes.job(jobs[-1].id).status(texts=True)).texts
            assert texts is not None
            traceback = json.loads(texts.outcome or "{}").get("traceback", "")
        answer.append(FailureGroup(*key, len(jobs), jobs[-1].id, traceback))
    result = FailureGroups(answer)
    result.looked = len(found)
    if not is_whole:
        result.between = found[0].submitted_at, found[-1].submitted_at
    return result


async def last_letters(
    submitted_from: Callable[[float | None], Awaitable[list[DurableStatus]]],
    since: float | None,
    limit: int,
) -> tuple[list[DurableStatus], bool]:
    """Return the last ``limit`` jobs, or fewer, in order of submission; and whether they are all.

    Args:
      submitted_from: reads the first ``limit`` that were submitted from a Unix time on.
    """
    found = await submitted_from(since)
    is_whole = not 0 < len(found) == limit
    return (found if is_whole else await _last(found, submitted_from)), is_whole


async def _last(
    found: list[DurableStatus],
    submitted_from: Callable[[float], Awaitable[list[DurableStatus]]],
) -> list[DurableStatus]:
    """Return the last jobs, of which ``found`` are the first; a store lists the oldest first.

    So a time is searched from which there are not more than one page has, but at least half of it.
    """
    limit = len(found)
    last: list[DurableStatus] = []
    begin, end = found[0].submitted_at, found[0].seen_at
    deadline = trio.current_time() + _LONGEST_SEARCH
    for _ in range(_MOST_PAGES):
        if 2 * len(last) >= limit or trio.current_time() > deadline:
            break
        middle = (begin + end) / 2
        page = await submitted_from(middle)
        if len(page) == limit:
            begin, found = middle, page
        else:
            end, last = middle, page
    return last or found  # none: more than a page were submitted within so short a time
