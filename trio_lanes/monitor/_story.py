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
from trio_lanes.durable import DurableRun

from ._actions import members_of
from ._ended import ended
from ._frames import Frames
from ._guard import RefusedError
from ._shown import Frame, clipped, shown

_MAX_HOLDERS: Final = 8  # of one root
_MAX_PLACES: Final = 1000
_MAX_FIRST: Final = 30
_FEW_TO_LIST: Final = 2000  # waiting jobs of a session, of which the running ones can be found


def story(lanes: Lanes, frames: Frames, job: Job[Any]) -> Frame:
    """Return all that the page shows of ``job``."""
    found = {
        **frames.brief(job),
        "owner": None if job.owner is None else clipped(job.owner),
        "parent": None if job.parent is None else frames.brief(job.parent),
        "at": round(trio.current_time(), 3),
        "place": None,
        "waits": dict(job.waits),
        "roots": [] if job.done else [root_of(cause) for cause in job.root_causes()],
        "children": children_of(job),
    }
    if job.state is JobState.WAITING:
        lane = lanes.lane(job.lane)
        head = lane.head(_MAX_PLACES)
        found["place"] = head.index(job) + 1 if job in head else None
        found["line"] = lane.statistics().waiting_in_lane
    return found


def children_of(job: Job[Any] | None) -> tuple[int, int] | None:
    """Return how many children of a durable job have ended, and how many it has submitted."""
    run = None if job is None else job.meta
    if isinstance(run, DurableRun) and run.children_ended[1]:
        return run.children_ended
    return None


def session_story(lanes: Lanes, frames: Frames, key: str) -> Frame:
    """Return the first jobs of a session, and what has ended of it.

    Raises:
      RefusedError: if ``key`` cannot be a session.
    """
    try:
        session = lanes.session(key)
    except ValueError:
        raise RefusedError(404, "there is no such session") from None
    few = session.waiting <= _FEW_TO_LIST
    jobs = session.jobs()[:_MAX_FIRST] if few else session.waiters(_MAX_FIRST)
    return {**_listed(frames, key, [session], jobs), "ended": ended(frames.records, session=key)}


def lane_story(lanes: Lanes, frames: Frames, label: str) -> Frame | None:
    """Return the first jobs that run in a lane, or in those of a template, and that wait longest.

    Those that are overdue come first. It also has what has ended there. None if there is no such
    lane.
    """
    members = members_of(lanes, label)
    if not members:
        return None
    some = members[:_MAX_FIRST]
    overdue = chain.from_iterable(lane.overdue(_MAX_FIRST) for lane in some)
    runs = chain.from_iterable(lane.running(_MAX_FIRST) for lane in some)
    running = list(dict.fromkeys((*overdue, *runs)))
    waiting = list(chain.from_iterable(lane.waiters(_MAX_FIRST) for lane in some))
    waiting.sort(key=lambda job: (job.waiting_since is None, job.waiting_since or 0, job.id))
    found = _listed(frames, label, members, [*running[:_MAX_FIRST], *waiting[:_MAX_FIRST]])
    tried = members[0].limits_tried if len(members) == 1 else ()
    return {**found, "ended": ended(frames.records, lane=label), "tried": shown(tried)}


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
