"""What an operator reads right below the verdict: causes of what waits, although it is no problem.

The longest wait and what would help, of whom most of what waits there is, jobs that back off, and
the last error that was noticed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from trio_lanes import Cause
from trio_lanes.durable import DurableStatus

from .._config.problems import PROBLEM_AFTER
from .._config.reasons import in_words
from ._notes import Note
from ._shown import Frame, clipped

LONG: Final = PROBLEM_AFTER
"""Seconds from which on a wait is told of."""
OWNERS_READ: Final = 1_000
"""Of how many waiting jobs of a lane the owners are counted, at most."""
_MANY: Final = 20
"""From how many jobs on it is told of whom they are, or that they back off."""
_LATELY: Final = 300.0
"""Seconds for which an error that was noticed is told of."""


def _line(text: str, advice: str | None, job: int | None, *, stored: bool) -> Frame:
    return {
        "text": clipped(text, 450),
        "advice": None if advice is None else clipped(advice, 300),
        "job": job,
        "stored": stored,
    }


def of_wait(seconds: float, lane: str, job: int, cause: Cause | None, *, stored: bool) -> Frame:
    """Return the line of the longest wait, and its cause."""
    text = f"the oldest wait is of {in_words(seconds)}, in {lane!r}"
    text += "" if cause is None else f": {cause}"
    advice = None if cause is None else cause.advice
    return _line(text, advice, job, stored=stored)


def of_owners(
    lane: str, waiting: int, owners: Sequence[str | None], *, fair: bool, stored: bool
) -> list[Frame]:
    """Return the line of the owner of most of what waits in a lane, if there is one.

    Args:
      waiting: how many jobs wait there.
      owners: those of the first of them.
    """
    ((owner, count),) = Counter(owners).most_common(1) or ((None, 0),)
    if owner is None or count < _MANY or count * 2 <= len(owners):
        return []
    which = "" if waiting <= len(owners) else f"first {len(owners):,} of the "
    text = f"of the {which}{waiting:,} that wait in {lane!r}, {count:,} are of the owner {owner!r}"
    advice = None if fair else f"make {lane!r} fair, so that owners take turns"
    return [_line(text, advice, None, stored=stored)]


def of_retries(parked: int, jobs: Sequence[DurableStatus]) -> list[Frame]:
    """Return the line of the jobs that back off after a failure, if they are many.

    Args:
      parked: how many jobs are parked.
      jobs: the first of them.
    """
    fails = [job for job in jobs if job.why == "retry"]
    if len(fails) < _MANY:
        return []
    errors = Counter((job.history[-1].error or "").partition(":")[0] for job in fails)
    error, count = errors.most_common(1)[0]
    which = "" if parked <= len(jobs) else f"first {len(jobs):,} of the "
    text = f"of the {which}{parked:,} that are parked, {len(fails):,} back off after a failure"
    text += f", {count:,} of them by {error}"
    advice = f"look at one, job {fails[0].id}, and promote them when what fails is mended"
    return [_line(text, advice, fails[0].id, stored=True)]


def of_errors(notes: Iterable[Note], now: float) -> list[Frame]:
    """Return the line of the last error that was noticed lately.

    Args:
      notes: the last of them, the newest last.
    """
    errors = [one for one in notes if one["level"] == "error" and now - one["at"] < _LATELY]
    if not errors:
        return []
    last = errors[-1]
    times = f" ({last['count']} times)" if last["count"] > 1 else ""
    said = " ".join(last["text"].split())
    text = f"noticed {in_words(now - last['at'])} ago: {said}{times}"
    return [_line(text, None, last["job"], stored=False)]
