"""The log lines of runs on this instance: one when a run begins, one when it ends.

They go to ``trio_lanes.durable.events``, at INFO. For a dead job the level is WARNING, once in
`QUIET_FOR` for each handler and type of error: when all jobs of a handler die, the log does not
fill with warnings. No line names a session, since its key may be private. The line of an end is
written before the store has recorded the end: if the process dies between the two, the job runs
again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, final

from outcome import Error

from ... import Job
from .._contract.records import Cancelled, Died, Failed, Outcome, Postponed, Released, Succeeded
from .._options.json_text import encode_error
from .._rules.history import error_type
from .run import DurableRun

logger: Final = logging.getLogger("trio_lanes.durable.events")

MAX_TEXT: Final = 500
"""How many characters of an error a line repeats."""
QUIET_FOR: Final = 60.0
"""Seconds after a warning about a dead job in which others like it are no warnings."""
_FEW_QUIET: Final = 64


@final
class Warned:
    """Which handlers and types of errors of dead jobs the log has warned of lately."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], float] = {}
        self._most = _FEW_QUIET  # with more entries, expired entries are dropped

    def is_new(self, name: str, error: str, now: float) -> bool:
        """Whether a warning is due for a dead job; it is noted then."""
        key = name, error_type(error)
        if self._until.get(key, now) > now:
            return False
        self._until[key] = now + QUIET_FOR
        if len(self._until) > self._most:
            self._until = {one: until for one, until in self._until.items() if until > now}
            self._most = 2 * len(self._until) + _FEW_QUIET
        return True


def begun(run: DurableRun) -> None:
    """Log that a run was claimed and submitted to the lanes of this instance."""
    if logger.isEnabledFor(logging.INFO):
        name, lane = one_line(run.name), one_line(run.lane)
        _log(logging.INFO, "%s %d begins in %s, attempt %d", name, run.id, lane, run.attempt)


def ended(run: DurableRun, job: Job[Any], outcome: Outcome | None, warned: Warned) -> None:
    """Log that a run has ended. ``outcome`` is None if it ends the process."""
    assert job.finished_at is not None
    bad = outcome is None or (
        isinstance(outcome, Died) and warned.is_new(run.name, outcome.error, job.finished_at)
    )
    level = logging.WARNING if bad else logging.INFO
    if logger.isEnabledFor(level):
        ran = 0.0 if job.started_at is None else job.finished_at - job.started_at
        what = _WORDS[type(outcome)]
        if isinstance(outcome, Postponed):
            what = f"{what} in {outcome.delay:.3g} s,"
        name, why = one_line(run.name), _why(job, outcome)
        _log(level, "%s %d %s after %.3f s%s", name, run.id, what, ran, why)


def _log(level: int, message: str, *args: object) -> None:
    with suppress(Exception):  # a handler or filter of the application's logging may raise
        logger.log(level, message, *args)


_WORDS: Final[Mapping[type[Outcome | None], str]] = {
    Succeeded: "succeeded",
    Failed: "failed",
    Died: "is dead",
    Postponed: "is to be retried",
    Cancelled: "was cancelled",
    Released: "was given back",
    type(None): "has ended its process",
}


def _why(job: Job[Any], outcome: Outcome | None) -> str:
    if isinstance(outcome, Failed | Died):
        error = json.loads(outcome.error)
    elif isinstance(outcome, Postponed | None) and isinstance(job.outcome, Error):
        error = json.loads(encode_error(job.outcome.error))
    else:
        return ""
    message = " ".join(error["message"][:MAX_TEXT].split())
    return one_line(f": {error['type']}: {message}"[:MAX_TEXT])


def one_line(text: str) -> str:
    """Return the text with control and other unprintable characters as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
