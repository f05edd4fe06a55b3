"""The story of one job: its place, why it waits as a tree with the holders, and what would help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import trio

from trio_lanes import Job, JobState, Lanes

from ._frames import Frame, Frames
from ._notes import clipped

_DEEPEST: Final = 4
_MAX_HOLDERS: Final = 8  # of one reason
_MAX_NODES: Final = 60
_MAX_SEARCHED: Final = 5000  # beyond it the jobs before a job are not listed: that is linear
_MAX_PLACES: Final = 1000


def story(lanes: Lanes, frames: Frames, job: Job[Any]) -> Frame:
    """Return all that the page shows of ``job``."""
    now = trio.current_time()
    found = frames.brief(job)
    found["owner"] = clipped(job.owner) if job.owner is not None else None
    parent = job.parent
    found["parent"] = None if parent is None else frames.brief(parent)
    found["at"] = round(now, 3)
    found["place"] = None
    lane = None
    if not job.done:
        lane = lanes.lane(job.lane)
        if job.state is JobState.WAITING:
            head = lane.head(_MAX_PLACES)
            found["place"] = head.index(job) + 1 if job in head else None
            found["line"] = lane.statistics().waiting_in_lane
    nodes = [_MAX_NODES]
    why = [] if lane is None or lane.waiting > _MAX_SEARCHED else list(_why(frames, job, nodes, 0))
    found["why"] = why
    found["too_long"] = lane is not None and lane.waiting > _MAX_SEARCHED
    found["help"] = [] if lane is None else list(dict.fromkeys(_help(lanes, job, why)))
    return found


def _why(frames: Frames, job: Job[Any], nodes: list[int], depth: int) -> Iterator[Frame]:
    for blocker in job.blocked_by():
        if nodes[0] <= 0:
            return
        nodes[0] -= 1
        holders = []
        for other in blocker.jobs[:_MAX_HOLDERS]:
            if nodes[0] <= 0:
                break
            nodes[0] -= 1
            held = frames.brief(other)
            deeper = depth < _DEEPEST and other is not job and other.state is JobState.RUNNING
            held["why"] = list(_why(frames, other, nodes, depth + 1)) if deeper else []
            holders.append(held)
        yield {
            "kind": blocker.kind,
            "lane": clipped(blocker.lane),
            "until": blocker.until,
            "reason": None if blocker.reason is None else clipped(blocker.reason),
            "text": clipped(blocker, 300),
            "jobs": holders,
            "more": len(blocker.jobs) - len(holders),
        }


def _help(lanes: Lanes, job: Job[Any], why: list[Frame]) -> Iterator[str]:
    for reason in why:
        lane = reason["lane"]
        stubborn = [holder["id"] for holder in reason["jobs"] if holder["cancel"]]
        match reason["kind"]:
            case "concurrency":
                yield f"raise {lane} to {lanes.lane(job.lane).concurrency + 1}"
            case "group":
                yield f"raise the limit of the group {lane}"
            case "order" if job.state is JobState.WAITING:
                yield "raise its priority"
            case "pause":
                yield f"resume {lane}"
            case "rate":
                yield f"wait until the rate of {lane} lets it start"
            case "reservation":
                yield f"lower the reservations of the group {lane}"
            case "room":
                yield f"raise max_waiting of {lane}"
        for number in stubborn:
            yield f"reset the slot of job {number}, whose body outlives its cancellation"
        if reason["kind"] in ("concurrency", "session"):
            for holder in reason["jobs"]:
                waits = any(inner["kind"] == "job" for inner in holder["why"])
                if waits and holder["slot"] == "held":
                    yield f"have job {holder['id']} lend its slot while it waits (yield_slot)"
