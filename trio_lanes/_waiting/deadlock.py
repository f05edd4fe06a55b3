"""Finding the waits that can never end, as soon as they cannot end any more.

Theory of operation
-------------------
Most such waits are found when they begin (`check`). But an act that is no wait may close a cycle,
too: a job enters its session before a job that a task waits for, and its own lane is stuck; a job
takes the last room; a job takes its slot back while another task of it waits for the job that is
next to get this slot; a limit of 0, which is no part of the graph, is raised. The loop asks about
each of these acts when it happens (`broken_by`), and only if a task waits inside a job at all. No
other act has to be checked: a job that starts goes on, and a job that ends only gives tokens back.
A limit that the application lowers is not checked, since it may be raised again. A limit that tunes
itself rises only as jobs of its lane end, so its falls are checked, as the rise of a limit of 0 is.

Invariant: each wait inside a job can end, outside of acts. So a wait that begins is a deadlock only
if it needs its own job: what that job holds is all that it can keep from coming. What a job holds
is its end, its place in its session, and its slot with its token of a group. If no wait needs these
there is nothing to search, however long the chain is that the job joins. So `check` searches from
both ends in turn, twice as far each time: from the target to the events that it needs (`Search`),
and from the job to the jobs that need it (`may_need`). The shorter of the two decides, so many
waits that form chains and trees in any order cost little more each than a few.

A limit that is lowered may break the invariant. The loop then looks at all waits once
(`stuck_jobs`), and where one is stuck, waits that begin are searched to the end, until the limits
change again or no task waits.

Of the waits whose end would break the cycle, the latest ends in an error. No wait has to end if
cancelled jobs that want slots back can break the cycle: they go on without slots, as they do when
no slot can come.

The module changes nothing: it returns the waits, errors and jobs on which the loop acts. The
assumptions of a search (a wait that has ended, jobs that go on without their slots) are arguments
of `Search`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, Final, TypeAlias, final

from .._actors.job import AnyJob
from .._actors.lane import LaneActor
from .._actors.session import SessionActor
from .._actors.state import HELD, RUNNING, WAITING
from .._actors.wait import Wait
from .._config.errors import LaneDeadlockError
from .current import JobsByTask
from .needs import Need, Search, can_continue, may_need, wants_slot

_FIRST_STEPS: Final = 8
"""How many steps a search from either end of a wait takes at first."""

_CURE: Final = (
    "leave `session` out of the inner job, give it another lane, or lend the outer job's slot "
    "meanwhile (yield_slot)"
)

_CURE_OF_ENDS: Final = (
    "leave one of these waits out, since none of these jobs needs a slot: no job can wait for its "
    "own end, directly or through other jobs"
)


Goal: TypeAlias = Callable[[Search], list[Need]]
"""An event that has to come, as the needs that a search starts with."""


def check(wait: Wait, table: JobsByTask) -> Collection[AnyJob]:
    """Raise if ``wait``, which is registered in ``table`` already, can never end.

    Returns the cancelled jobs that have to go on without their slots for it to end; mostly none.

    Raises:
      LaneDeadlockError: it lists the jobs of the cycle, and the cure.
    """
    targets = wait.any_of if wait.target is None else (wait.target,)
    if any(target._state is RUNNING and can_continue(target) for target in targets):
        return ()  # the usual case

    goal: Goal = partial(Search.needed_for, wait=wait)
    search = Search()
    # Room that never comes need be no cycle: the bounds may be too narrow for the request.
    most = _FIRST_STEPS if table.proved and wait.request is None else math.inf
    while True:
        if most < math.inf and not may_need(wait, table.seeking, most):
            return ()
        can_come = search.can_come(goal(search), most)
        if can_come is not None:
            break
        most *= 2
    if can_come:
        return ()
    stuck = search.stuck_jobs()
    released = _released(stuck, goal)
    if released:
        return released
    assert wait.job is not None
    raise _error(stuck, wait.job)


def stuck_jobs(waits: Iterable[Wait]) -> Collection[AnyJob]:
    """Return the jobs that can never end, if not each of ``waits``, inside jobs, can end."""
    search = Search()
    ends = [(search.end_of, wait.job) for wait in waits if wait.job is not None]
    return () if search.can_come([*ends]) else search.stuck_jobs()


# ---- cycles that are closed by an act that is no wait


def goals_of_accepted(job: AnyJob, waits: Iterable[Wait], *, any_requests: bool) -> list[Goal]:
    """Return the events that ``job``, which has begun to wait, may have made impossible.

    It may stand before other jobs of its session, and it may have taken room that others wanted.
    """
    goals: list[Goal] = []
    lane: LaneActor = job._lane
    session: SessionActor | None = job._session_lane
    if job._state is WAITING and session is not None and _may_pass_others(session):
        goals.append(lambda search: search.slot_of(lane))
    if any_requests and lane.bounded and not lane.has_room:
        for wait in waits:
            request = wait.request
            if request is not None and request.job._lane is lane and request.actor is not lane:
                assert wait.job is not None
                goals.append(end_of(wait.job))
    return goals


def _may_pass_others(session: SessionActor) -> bool:
    """Whether a job that comes into the line of ``session`` may come before others."""
    others = session.waiting > 1 and (session.is_ranked or session.delayed)
    return bool(others or session.passed_requests or session.room_line or session.readmitting)


def start_of(job: AnyJob) -> Goal:
    """The start of ``job``, which waits."""
    return lambda search: search.start_of(job, job._session_lane)


def end_of(job: AnyJob) -> Goal:
    """The end of ``job``, which runs."""
    return lambda search: [(search.end_of, job)]


def broken_by(
    goal: Goal, waits: Collection[Wait]
) -> tuple[Wait, LaneDeadlockError] | Collection[AnyJob]:
    """Return the wait of ``waits`` that has to end in an error for ``goal`` to come, and the error.

    The loop asks again until no wait is returned, but a collection: the cancelled jobs that have to
    go on without their slots, mostly none.
    """
    stuck = _stuck(goal)
    released = _released(stuck, goal)
    if stuck is None or released:
        return released
    search = Search()
    search.can_come(goal(search))
    in_vain = [
        wait
        for wait in reversed([*waits])
        if wait.job in stuck and not search.can_come(search.needed_for(wait))
    ]
    without = (wait for wait in in_vain if _stuck(goal, ignored=wait) is None)
    last = next(without, next(iter(in_vain), None))
    return [] if last is None or last.job is None else (last, _error(stuck, last.job))


def can_never_regain_slot(job: AnyJob) -> bool:
    """Whether ``job``, which wants its slot back, can get none by the present limits."""
    lane: LaneActor = job._lane
    budget = 1 if lane.group is None else lane.group.config.concurrency
    if min(lane.limiter.total_tokens, budget) < 1:
        return True
    return _stuck(lambda search: search.slot_of(lane, job)) is not None


def _stuck(goal: Goal, **otherwise: Any) -> list[AnyJob] | None:
    """Return the jobs that can never end, if ``goal`` cannot come; None if it can."""
    search = Search(**otherwise)
    return None if search.can_come(goal(search)) else search.stuck_jobs()


def _released(stuck: Iterable[AnyJob] | None, goal: Goal) -> list[AnyJob]:
    """Return the cancelled jobs of ``stuck``, if ``goal`` comes once they go on without slots."""
    cancelled = [job for job in stuck or () if job._lane.slot_requests.get(job)]
    if not cancelled or _stuck(goal, without=cancelled) is not None:
        return []
    return cancelled


# ---- the message


def _error(stuck: Iterable[AnyJob], first: AnyJob) -> LaneDeadlockError:
    return LaneDeadlockError(_Cycle(stuck).describe(first))


@final
class _Cycle:
    """Jobs that can never end."""

    def __init__(self, stuck: Iterable[AnyJob]) -> None:
        self._stuck: Final = tuple(stuck)

    def describe(self, first: AnyJob) -> str:
        """List what ``first`` waits for, directly or not, and the cure."""
        lines = []
        cure = _CURE_OF_ENDS
        closed: AnyJob | None = None  # a job that can never start, whoever ends
        described: set[AnyJob] = set()
        line = deque([first])
        while line:
            job = line.popleft()
            if job in described:
                continue
            described.add(job)
            goals = []
            for wait in (job._waits or {}).values():
                targets = wait.any_of if wait.target is None else (wait.target,)
                if not targets or any(target._state is WAITING for target in targets):
                    cure = _CURE
                asked = targets if wait.request is None else (wait.request.job,)
                closed = closed or next(filter(_is_reserved, asked), None)
                goal, holders = self._needed(wait)
                goals.append(goal)
                line += holders
            if wants_slot(job):
                cure = _CURE
                goals.append(f"a slot of lane {job.lane!r} again")
                line += self._in_the_way(job._lane, None)
            lines.append(f"  {called(job)} {holdings(job)}, and waits for {' and '.join(goals)}")
        if closed is not None and (group := closed._lane.group) is not None:
            cure = (
                f"lower the reservations of the group {group.name!r}, "
                f"which leave no token for lane {closed.lane!r}"
            )
        return "\n".join(["this wait would never end:", *lines, f"cure: {cure}"])

    def _needed(self, wait: Wait) -> tuple[str, list[AnyJob]]:
        """Return the object of ``wait`` in words, and the stuck jobs that hold it."""
        if wait.any_of:
            needed = [self._needed_of(target) for target in wait.any_of]
            return " or ".join(goal for goal, _ in needed), [
                holder for _, holders in needed for holder in holders
            ]
        if wait.target is None:
            request = wait.request
            assert request is not None
            starts = {(request.job._lane, request.session): None}
            starts |= {(job._lane, job._session_lane): None for job in request.actor.waiting_jobs()}
            holders = [job for start in starts for job in self._in_the_way(*start)]
            return f"room in lane {request.actor.name!r}", holders
        return self._needed_of(wait.target)

    def _needed_of(self, target: AnyJob) -> tuple[str, list[AnyJob]]:
        if target._state is WAITING:
            where = f"lane {target.lane!r}"
            if target.session is not None:
                where = f"session {target.session!r} and {where}"
            holders = self._in_the_way(target._lane, target._session_lane)
            return f"{called(target)}, which waits for {where}", holders
        return called(target), [target]

    def _in_the_way(self, lane: LaneActor, session: SessionActor | None) -> list[AnyJob]:
        """Return the stuck jobs that hold slots or tokens that a job of these lanes needs."""
        return [
            job
            for job in self._stuck
            if (session is not None and job._session_lane is session)
            or (job._slot is HELD and job._lane.limiter is lane.limiter)
            or (job._slot is HELD and lane.group is not None and job._lane.group is lane.group)
        ]


def _is_reserved(job: AnyJob) -> bool:
    """Whether ``job``, which is to start, never gets a token beside the reservations of others."""
    lane: LaneActor = job._lane
    return job._state is WAITING and lane.group is not None and lane.group.leaves_none(lane.label)


def called(job: AnyJob) -> str:
    return f"job {job.id} {job.name!r}"


def holdings(job: AnyJob) -> str:
    held = []
    if job.session is not None:
        held.append(f"session {job.session!r}")
    if job._slot is HELD:
        held.append(f"a slot of lane {job.lane!r}")
        if job._lane.group is not None:
            held.append(f"a token of group {job._lane.group.name!r}")
    return "holds " + (" and ".join(held) or "nothing")
