"""`DurableLanes.health`: what is wrong with a store and the work in it, in a line each.

Of each lane it follows the longest wait to its roots, and the first of a job without a handler; of
dead jobs, the sessions that they keep closed. It says how many lanes it has left out, for want of
time or as there were too many.
"""

from __future__ import annotations

import math
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

import trio

from ... import Problem, Problems, resolve_session_lane
from ..._config.names import template_of
from ..._config.problems import PROBLEM_AFTER, distinct, problem_of
from ..._config.reasons import in_words
from .._contract.errors import ResultGoneError
from .._contract.protocol import LISTED, PAGE
from .._contract.records import DurableLaneStatistics, DurableStatus, GroupLimit, LaneLimit
from .._contract.state import WAITING

if TYPE_CHECKING:
    from .lanes import DurableLanes

_SLOW: Final = 1.0
"""Seconds in which a store should answer."""
_LONGEST_LOOK: Final = 5.0
"""Seconds until the waits of no further lane are looked at."""
_MOST_DEAD: Final = 20
"""How many dead jobs are looked at, the oldest first."""


async def health(lanes: DurableLanes) -> Problems:
    """Return what is wrong; empty: nothing that was looked at."""
    found: list[Problem | None] = []
    unseen = 0
    if lanes.local is not None:
        local = lanes.local.health()
        found, unseen = [*local], local.unseen
    began = trio.current_time()
    now = await lanes.statistics()
    took = trio.current_time() - began
    if took > _SLOW:
        text = f"the store has taken {in_words(took)} to answer"
        found.append(Problem("slow", "", text, "look at its load, its disk and the network"))
    limits, groups = await lanes.limits(), await lanes.groups()
    waiting = {name: lane for name, lane in now.lanes.items() if lane.waiting or lane.unhandled}
    for at, name in enumerate(sorted(waiting, key=lambda name: -waiting[name].waiting)):
        if at == LISTED or trio.current_time() - began > _LONGEST_LOOK:
            unseen += len(waiting) - at
            break
        label = name if name in limits else template_of(name, limits)
        served: list[LaneLimit | GroupLimit] = [limits[label]] if label is not None else []
        served += [one for one in groups.values() if label in one.members]
        longest = max((rate.longest for one in served for rate in one.rates), default=math.inf)
        for job in await _jobs_of(lanes, name, waiting[name]):
            since = job.history[-1].ended_at if job.history else None
            waited = job.seen_at - (since or job.submitted_at + job.waits.get("delay", 0.0))
            with suppress(ResultGoneError):  # it may end meanwhile
                causes = await lanes.root_causes(job.id) if waited > PROBLEM_AFTER else ()
                if waited > PROBLEM_AFTER and (await lanes.job(job.id).status()).state is job.state:
                    found.append(problem_of(job.id, name, waited, causes, longest))
    if now.dead and (await lanes.rules()).hold:
        for dead in await lanes.dead(limit=_MOST_DEAD):
            found.append(await _held_by(lanes, dead))
    return distinct(found, unseen)


async def _jobs_of(
    lanes: DurableLanes, name: str, lane: DurableLaneStatistics
) -> list[DurableStatus]:
    """Return the oldest job of a lane that waits, and the oldest without a handler."""
    found = await lanes.jobs(name, states=[WAITING], limit=PAGE if lane.unhandled else 1)
    if not lane.unhandled:
        return found
    handled = {handler for info in await lanes.instances() for handler in info.names}
    return [*found[:1], *islice((job for job in found if job.name not in handled), 1)]


async def _held_by(lanes: DurableLanes, dead: DurableStatus) -> Problem | None:
    """Return the problem of a session that a dead job keeps closed, and that has other jobs."""
    if dead.session is None:
        return None
    queue = await lanes.queue(dead.session, 1)
    reasons = [reason for behind in queue for reason in await lanes.blocked_by(behind.id)]
    if "dead" not in [reason.kind for reason in reasons]:
        return None
    lane = resolve_session_lane(dead.session)
    text = f"job {dead.id} {dead.name!r} is dead and keeps {lane} closed ({dead.error})"
    return Problem("dead", lane, text, f"requeue or purge {dead.id}", dead.id)
