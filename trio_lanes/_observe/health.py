"""`health`: what is wrong with lanes now, in a line each, with what to do.

A wait is no problem because it is long: what it waits for may be at work, or be over by itself. So
the longest wait of each lane is followed to its roots, and so is that of the first job of its line.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Any, Protocol

from .._config.problems import PROBLEM_AFTER, Problem, distinct, problem_of
from .._config.reasons import in_words


class _HasScheduler(Protocol):
    @property
    def _scheduler(self) -> Any: ...


def health(lanes: _HasScheduler) -> tuple[Problem, ...]:
    """Return what is wrong with `Lanes` now; empty: they are healthy. Not a checkpoint.

    It takes as long as `Lanes.statistics`, and for each lane in which a job has waited for more
    than ten seconds as `Job.root_causes` of two jobs.
    """
    found: list[Problem | None] = []
    now = lanes._scheduler.current_time()
    for lane in lanes._scheduler.lanes.values():
        for job, since in islice(lane.overdue.items(), 1):
            text = f"{len(lane.overdue):,} overdue in {lane.name!r}: the body of job {job.id}"
            text += f" {job.name!r} goes on for {in_words(now - since)} after its end"
            advice = f"find where it hangs, or reset {lane.name!r}"
            found.append(Problem("overdue", lane.name, text, advice, job.id))
        lane.step()
        served = [one for one in (lane, lane.group) if one is not None]
        rates = [limit.per for one in served for limit, *_ in one.rates.left(now)]
        longest = max(rates, default=math.inf)
        for job in dict.fromkeys((lane.oldest, *islice(lane.line.in_order(), 1))):
            if job is not None and now - job._waiting_since > PROBLEM_AFTER:
                waited = now - job._waiting_since
                found.append(problem_of(job.id, job.lane, waited, job.root_causes(), longest))
    return distinct(found)
