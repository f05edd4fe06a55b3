"""`DurableLanes.failures`: dead and failed jobs, grouped by what has gone wrong."""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Final, final

import attrs

from .._contract.errors import ResultGoneError
from .._contract.records import DurableStatus
from .._contract.state import DEAD_LETTERS

if TYPE_CHECKING:
    from .lanes import DurableLanes

_MOST_GROUPS: Final = 20


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


async def failures(
    lanes: DurableLanes, name: str | None, handler: str | None, since: float | None, limit: int
) -> tuple[FailureGroup, ...]:
    """Return the largest groups of the first ``limit`` jobs."""
    found = await lanes.jobs(name, states=DEAD_LETTERS, handler=handler, since=since, limit=limit)
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
    return tuple(answer)
