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
        return f"nothing runs or waits in {session}"
    return "\n".join(line for turn in turns for line in _lines(turn))


def _lines(job: Job[Any], indent: str = "") -> Iterator[str]:
    blockers = job.blocked_by()
    if job.state is JobState.WAITING:
        state = "waits to start"
    else:  # in the middle of its work, for a job or, after `readmit`, for another start
        state = "waits to go on" if blockers else "runs"
    yield f"{indent}{_called(job)} {state}" + (":" if blockers else "")
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
            return f"its time has not come{left}"
        case "session":
            return f"one turn of a session at a time: {jobs}"
        case "order":
            return f"others are before it: {jobs}"
        case "concurrency":
            return f"{blocker.lane} runs as many as it may: {jobs}"
        case "pause":
            return f"{blocker.lane.removeprefix('session:')} is paused{left}"
        case "rate":
            return f"the {blocker.lane} has had enough for this minute{left}"
        case "group":
            return f"the {blocker.lane} runs as many as it may: {jobs}"
        case "reservation":
            return f"what the {blocker.lane} has left is kept for others"
        case "job":
            return f"until others have ended: {jobs}"
        case "room":
            return f"there is no room in {blocker.lane}"


def _list(jobs: Iterable[Job[Any]]) -> str:
    names = [_called(job) for job in jobs]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _called(job: Job[Any]) -> str:
    text = "" if job.meta is None else f": {shorten(job.meta, 24)!r}"
    return f"{job.name}{text}"
