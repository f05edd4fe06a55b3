"""`Lanes.health`: what is wrong with lanes now, in a line each, with what to do.

A wait is no problem because it is long: what it waits for may be at work, or be over by itself. So
the longest wait of each lane is followed to its roots, and so is that of the first job of its line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice

from .._actors.lane import LaneActor
from .._config.problems import PROBLEM_AFTER, Problem, distinct, problem_of
from .._config.reasons import in_words


def health(lanes: Iterable[LaneActor], now: float) -> tuple[Problem, ...]:
    """Return what is wrong with ``lanes`` now; empty: they are healthy."""
    found: list[Problem | None] = []
    for lane in lanes:
        for job, since in islice(lane.overdue.items(), 1):
            text = f"{len(lane.overdue):,} overdue in {lane.name!r}: the body of job {job.id}"
            text += f" {job.name!r} goes on for {in_words(now - since)} after its end"
            advice = f"find where it hangs, or reset {lane.name!r}"
            found.append(Problem("overdue", lane.name, text, advice, job.id))
        lane.step()
        served = [actor for actor in (lane, lane.group) if actor is not None]
        rates = [limit.longest for actor in served for limit, *_ in actor.rates.left(now)]
        longest = max(rates, default=math.inf)
        for one in dict.fromkeys((lane.oldest, *islice(lane.line.in_order(), 1))):
            if one is not None and now - one._waiting_since > PROBLEM_AFTER:
                waited = now - one._waiting_since
                found.append(problem_of(one.id, one.lane, waited, one.root_causes(), longest))
    return distinct(found)
