"""`Lanes.health`: what is wrong with lanes now, in a line each, with what to do.

A wait is no problem because it is long: what it waits for may be at work, or be over by itself. So
the longest wait of each lane is followed to its roots, and so is that of the first job of its line:
of the `_MOST_LANES` lanes that have waited longest, as no other task runs meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from heapq import nlargest
from itertools import islice
from typing import Final

from .._actors.job import AnyJob
from .._actors.lane import LaneActor
from .._config.problems import PROBLEM_AFTER, Problem, Problems, distinct, problem_of
from .._config.reasons import in_words

_MOST_LANES: Final = 100


def health(lanes: Iterable[LaneActor], now: float) -> Problems:
    """Return what is wrong with ``lanes`` now; empty: they are healthy."""
    found: list[Problem | None] = []
    late: list[tuple[float, str, LaneActor, list[AnyJob]]] = []
    for lane in lanes:
        for job, since in islice(lane.overdue.items(), 1):
            text = f"{len(lane.overdue):,} overdue in {lane.name!r}: the body of job {job.id}"
            text += f" {job.name!r} goes on for {in_words(now - since)} after its end"
            advice = f"find where it hangs, or reset {lane.name!r}"
            found.append(Problem("overdue", lane.name, text, advice, job.id))
        lane.step()
        firsts = (lane.oldest, *islice(lane.line.in_order(), 1))
        jobs = [job for job in dict.fromkeys(firsts) if job is not None]
        waited = max((now - job._waiting_since for job in jobs), default=0.0)
        if waited > PROBLEM_AFTER:
            late.append((waited, lane.name, lane, jobs))
    for _, _, lane, jobs in nlargest(_MOST_LANES, late):
        served = [actor for actor in (lane, lane.group) if actor is not None]
        rates = [limit.longest for actor in served for limit, *_ in actor.rates.left(now)]
        longest = max(rates, default=math.inf)
        for one in jobs:
            waited = now - one._waiting_since
            if waited > PROBLEM_AFTER:
                found.append(problem_of(one.id, one.lane, waited, one.root_causes(), longest))
    return distinct(found, max(0, len(late) - _MOST_LANES))
