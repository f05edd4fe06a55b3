"""What a turn waits for, in words: `Job.blocked_by` for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import trio

from trio_lanes import Blocker, Job, JobState, Lanes

from .overview import shorten


def why(lanes: Lanes, session: str) -> str:
    """A line for each turn of the session and each thing that it waits for."""
    turns = [job for job in lanes.jobs() if job.session == session]
    if not turns:
        return f"{session} has no turn"
    return "\n".join(line for turn in turns for line in _lines(turn))


def _lines(job: Job[Any], indent: str = "") -> Iterator[str]:
    blockers = job.blocked_by()
    state = "runs" if job.state is JobState.RUNNING else "waits"
    yield f"{indent}{_called(job)} {state}" + ("" if blockers else ", and is held up by nothing")
    for blocker in blockers:
        yield f"{indent}  {_words(blocker)}"
        if blocker.kind == "job":  # which may wait itself
            for other in blocker.jobs:
                yield from _lines(other, indent + "    ")


def _words(blocker: Blocker) -> str:
    jobs = _list(blocker.jobs)
    left = "" if blocker.until is None else f", {blocker.until - trio.current_time():.1f} s more"
    match blocker.kind:
        case "delay":
            return f"it is not due{left}"
        case "session":
            return f"a session does one thing at a time, now {jobs}"
        case "order":
            return f"before it comes {jobs}"
        case "concurrency":
            return f"{blocker.lane} runs as many as it may: {jobs}"
        case "pause":
            return f"{blocker.lane} is paused{left}"
        case "rate":
            return f"the limits per minute of the {blocker.lane}{left}"
        case "group":
            return f"the {blocker.lane} runs as many as it may: {jobs}"
        case "reservation":
            return f"what the {blocker.lane} has left is kept for others"
        case "job":
            return f"it needs the end of {jobs}"
        case "room":
            return f"there is no room in {blocker.lane}"


def _list(jobs: Iterable[Job[Any]]) -> str:
    names = [_called(job) for job in jobs]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _called(job: Job[Any]) -> str:
    text = "" if job.meta is None else f": {shorten(job.meta, 24)!r}"
    return f"{job.name}{text}"
