"""`Lanes.health`: what is wrong with lanes now, in a line each, with what to do.

A wait is no problem because it is long: what it waits for may be at work, or be over by itself. So
the longest wait of each lane is followed to its roots, and so is that of the first job of its line:
of the `_MOST_LANES` lanes that have waited longest, as no other task runs meanwhile. Of those, a
wait for slots is one if nothing of the lane has moved for its ``standstill_after``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from heapq import nlargest
from itertools import islice
from typing import Final

from .._actors.job import AnyJob
from .._actors.lane import LaneActor
from .._config.problems import (
    PROBLEM_AFTER,
    Problem,
    Problems,
    distinct,
    problem_of,
    standstill_of,
)
from .._config.reasons import in_words

_MOST_LANES: Final = 100


def health(lanes: Iterable[LaneActor], now: float) -> Problems:
    """Return what is wrong with ``lanes`` now; empty: they are healthy."""
    found: list[Problem | None] = []
    late: list[tuple[float, str, LaneActor, AnyJob | None, list[AnyJob]]] = []
    for lane in lanes:
        for job, since in islice(lane.overdue.items(), 1):
            text = f"{len(lane.overdue):,} overdue in {lane.name!r}: the body of job {job.id}"
            text += f" {job.name!r} goes on for {in_words(now - since)} after its end"
            advice = f"find where it hangs, or reset {lane.name!r}"
            found.append(Problem("overdue", lane.name, text, advice, job.id))
        lane.step()
        first = next(iter(lane.line.in_order()), None)
        jobs = [job for job in dict.fromkeys((lane.oldest, first)) if job is not None]
        waited = max((now - job._waiting_since for job in jobs), default=0.0)
        if waited > PROBLEM_AFTER:
            late.append((waited, lane.name, lane, first, jobs))
    for waited, _, lane, first, jobs in nlargest(_MOST_LANES, late):
        served = [actor for actor in (lane, lane.group) if actor is not None]
        rates = [limit.longest for actor in served for limit, *_ in actor.rates.left(now)]
        longest = max(rates, default=math.inf)
        causes = {job: job.root_causes() for job in jobs}
        still = 0.0 if first is None else _stands_still_for(lane, waited, now)
        if first is not None and still >= lane.config.standstill_after:
            slots = next((one for one in causes[first] if one.kind != "rate"), None)
            found.append(standstill_of(lane.name, lane.waiting, still, first.id, slots))
        for job, roots in causes.items():
            waits = now - job._waiting_since
            if waits > PROBLEM_AFTER:
                found.append(problem_of(job.id, job.lane, waits, roots, longest))
    return distinct(found, max(0, len(late) - _MOST_LANES))


def _stands_still_for(lane: LaneActor, waited: float, now: float) -> float:
    """Return for how long nothing of ``lane`` has moved; 0 unless its first waits for a slot."""
    group = lane.group
    if lane.paused or not lane.waiting:
        return 0.0
    if lane.limiter.available_tokens >= 1:
        if group is None or group.has_budget or not group.config.concurrency:
            return 0.0
    elif not lane.limiter.total_tokens:
        return 0.0
    # where nothing of it runs, as others have all slots, it is still since it has something to do
    return now - max(lane.moved_at(), -math.inf if lane.active else now - waited)
