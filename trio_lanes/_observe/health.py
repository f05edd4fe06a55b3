"""`health`: what is wrong with lanes now, in a line each, with what to do.

A wait is no problem because it is long: what it waits for may be at work, or be over by itself. So
the longest wait of each lane is followed to its roots, and so is that of the first job of its line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final, Protocol, final

import attrs

from .._config.reasons import Cause, in_words
from .._limits.rate import RateLimit

LONG: Final = 10.0
"""Seconds for which a job has waited before its wait can be a problem."""

_ALWAYS: Final = {"deadlock", "dead", "handler", "instance", "gone", "overdue"}


@final
@attrs.frozen
class Problem:
    """Something that is wrong; `str` is the line that a person reads."""

    kind: str
    """``"overdue"``: a body has outlived its timeout or its cancellation. ``"pause"``: until it is
    resumed. ``"concurrency"``: of 0. ``"rate"``: a job is held longer than the limit's ``per``.
    ``"stalled"``: a job waits, and has no reason to. ``"deadlock"``. Of durable lanes as well:
    ``"dead"``: a dead job keeps its session closed. ``"handler"``: no live instance has it.
    ``"instance"``: none lives. ``"gone"``: the instance of a run. ``"slow"``: the store."""
    lane: str
    """The name of the lane, or the session lane; empty: of all."""
    text: str
    """What is wrong, in words."""
    advice: str
    """What to do."""
    job: int | None = None
    """The id of a job that it holds up, or that is overdue."""

    def __str__(self) -> str:
        return f"{self.text}: {self.advice}"


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
        overdue = getattr(lane, "overdue", {})  # TODO core40
        for job, since in islice(overdue.items(), 1):
            text = f"{len(overdue):,} overdue in {lane.name!r}: the body of job {job.id}"
            text += f" {job.name!r} goes on for {in_words(now - since)} after its end"
            advice = f"find where it hangs, or reset {lane.name!r}"
            found.append(Problem("overdue", lane.name, text, advice, job.id))
        lane.step()
        rates = [
            limit
            for one in (lane, lane.group)
            if one is not None
            for limit, *_ in one.rates.left(now)
        ]
        for job in dict.fromkeys((lane.oldest, *islice(lane.line.in_order(), 1))):
            if job is not None and now - job._waiting_since > LONG:
                waited = now - job._waiting_since
                found.append(problem_of(job.id, job.lane, waited, job.root_causes(), rates))
    return distinct(found)


def problem_of(
    job: int, lane: str, waited: float, causes: Sequence[Cause], rates: Iterable[RateLimit]
) -> Problem | None:
    """Return what is wrong with a wait, by its roots; None: it can end by itself.

    Args:
      rates: those of its lane and its group.
    """
    wait = f"job {job} of {lane!r} has waited for {in_words(waited)}"
    if not causes:
        text = f"{wait}, though nothing holds it"
        return Problem("stalled", lane, text, "look for what keeps its process busy", job)
    longest = max((limit.per for limit in rates), default=math.inf)
    for cause in causes:
        first = not cause.chain and " before it" not in cause.root
        if (
            cause.kind in _ALWAYS
            or (cause.kind == "pause" and cause.seconds is None)
            or (cause.kind == "concurrency" and cause.root.endswith("it has none"))
            or (cause.kind == "rate" and first and (cause.seconds or 0) > longest)
        ):
            assert cause.advice is not None
            return Problem(cause.kind, cause.lane, f"{wait}; {cause}", cause.advice, job)
    return None


def distinct(problems: Iterable[Problem | None]) -> tuple[Problem, ...]:
    """Return the first problem of each kind of each lane."""
    found: dict[tuple[str, str], Problem] = {}
    for problem in problems:
        if problem is not None:
            found.setdefault((problem.kind, problem.lane), problem)
    return tuple(found.values())
