"""The story of one job: its place, why it waits, and what would help.

And the jobs of a session or a lane, in a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

import attrs
import trio

from trio_lanes import Cause, Job, JobState, Lane, Lanes, SessionLane

from ._frames import Frame, Frames
from ._notes import clipped

_MAX_HOLDERS: Final = 8  # of one root
_MAX_PLACES: Final = 1000
_MAX_FIRST: Final = 30
_FEW_TO_LIST: Final = 2000  # waiting jobs of a session, of which the running ones can be found


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
    found["waits"] = dict(job.waits)
    found["roots"] = [root_of(cause) for cause in ([] if job.done else job.root_causes())]
    return found


def session_story(lanes: Lanes, frames: Frames, key: str) -> Frame:
    """Return the first jobs of a session.

    Raises:
      ValueError: if ``key`` cannot be a session.
    """
    session = lanes.session(key)
    few = session.waiting <= _FEW_TO_LIST
    jobs = session.jobs()[:_MAX_FIRST] if few else session.waiters(_MAX_FIRST)
    return _listed(frames, key, [session], jobs)


def lane_story(lanes: Lanes, frames: Frames, label: str) -> Frame | None:
    """Return the first jobs that run in a lane, or in those of a template, and that wait longest.

    Those that are overdue come first. None if there is no such lane.
    """
    members = [lane for lane in lanes.lanes() if label in (lane.label, lane.name)]
    if not members:
        return None
    some = members[:_MAX_FIRST]
    overdue = chain.from_iterable(lane.overdue(_MAX_FIRST) for lane in some)
    runs = chain.from_iterable(lane.running(_MAX_FIRST) for lane in some)
    running = list(dict.fromkeys((*overdue, *runs)))
    waiting = list(chain.from_iterable(lane.waiters(_MAX_FIRST) for lane in some))
    waiting.sort(key=lambda job: (job.waiting_since is None, job.waiting_since or 0, job.id))
    return _listed(frames, label, members, [*running[:_MAX_FIRST], *waiting[:_MAX_FIRST]])


def _listed(
    frames: Frames, key: str, lanes: Sequence[Lane | SessionLane], jobs: Iterable[Job[Any]]
) -> Frame:
    return {
        "key": clipped(key),
        "waiting": sum(lane.waiting for lane in lanes),
        "active": sum(lane.active for lane in lanes),
        "paused": all(lane.paused for lane in lanes),
        "at": round(trio.current_time(), 3),
        "jobs": [frames.line(job) for job in jobs],
    }


def root_of(cause: Cause) -> Frame:
    """Return the root of a wait, and the way to it, for the page."""
    root = str(attrs.evolve(cause, chain=())).removeprefix(f"{cause.job} ← ")
    return {
        "line": clipped(cause, 1000),
        "job": cause.job,
        "chain": [(number, clipped(relation)) for number, relation in cause.chain],
        "text": clipped(root, 300),
        "jobs": cause.jobs[:_MAX_HOLDERS],
        "advice": None if cause.advice is None else clipped(cause.advice, 300),
    }
