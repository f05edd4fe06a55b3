"""The reasons why a turn waits, in words: `Job.blocked_by` and `Job.root_causes` for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import trio

from trio_lanes import Blocker, Job, JobState, Lanes

from .screen import shorten
from .sessions import Sessions

MAX_NAMES: Final = 3  # of jobs that are waited for


def why(lanes: Lanes, sessions: Sessions, session: str) -> str:
    """Return a line for each turn of the session, and for each reason why it waits.

    Only the next waiting message has a job; the others wait behind it.
    """
    turns = [job for job in lanes.jobs() if job.session == session]
    lines = [line for turn in turns for line in _lines(turn, sessions)]
    lines += [f"{shorten(text, 24)!r} waits behind it" for text in sessions.waiting(session)[1:]]
    if sessions.is_held(session):
        lines.append(f"{session} is held: no turn of it begins until /go")
    return "\n".join(lines) if lines else f"nothing runs or waits in {session}"


def _lines(job: Job[Any], sessions: Sessions, indent: str = "") -> Iterator[str]:
    if job.state is JobState.WAITING and job.session is not None and sessions.is_held(job.session):
        yield f"{indent}{_called(job, sessions)} is held"
        return
    blockers = job.blocked_by()
    if job.state is JobState.WAITING:
        state = "waits to start"
    else:  # while it runs: for a job, or after `readmit` for another start
        state = "waits to go on" if blockers else "runs"
    yield f"{indent}{_called(job, sessions)} {state}" + (":" if blockers else "")
    for blocker in blockers:
        yield f"{indent}  {_words(blocker, sessions)}"
        if blocker.kind == "job":  # that job may wait, too
            for other in blocker.jobs:
                yield from _lines(other, sessions, indent + "    ")
    for cause in job.root_causes() if job.state is JobState.WAITING and not indent else ():
        if cause.chain:  # else the lines above have said it
            help = "" if cause.advice is None else f"; what would help: {cause.advice}"
            yield f"  root: {cause}{help}"


def _words(blocker: Blocker, sessions: Sessions) -> str:
    left = "" if blocker.until is None else f", {blocker.until - trio.current_time():.1f} s more"
    jobs = f": {_list(blocker.jobs, sessions)}" if blocker.jobs else ""
    return f"{blocker}{left}{jobs}"


def _list(jobs: Iterable[Job[Any]], sessions: Sessions) -> str:
    names = [_called(job, sessions) for job in jobs]
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _called(job: Job[Any], sessions: Sessions) -> str:
    text = sessions.text_of(job)
    name = job.name if job.session is None else f"turn of {job.session}"
    return name if text is None else f"{name}: {shorten(text, 24)!r}"
