"""Finding waits that can never end, as soon as they cannot.

Most such waits are found when they begin. But a knot may also be closed by what is no wait: a job
comes into the line of a session before one that is waited for, and its own lane is stuck; room that
was there is taken; a job takes its slot back while another of its tasks waits for who is next in
line for it. Each of these is looked at when it happens, and only if somebody waits inside a job at
all. Nothing else has to be: whoever starts goes on, and whoever ends only gives back.

Then that wait ends in an error which began last, of those by whose end the knot is undone. But no
wait has to if the knot is undone by cancelled jobs of it that want slots back: these then go on
without, as they do when no slot can come any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, final

from .._config.errors import LaneDeadlockError
from .._actors.job import AnyJob
from .._actors.lane import LaneActor
from .needs import Key, Search, end_of, goes_on, needed_for, slot_of, start_of, wants_slot
from .._actors.session import SessionActor
from .._actors.state import RUNNING, WAITING

if TYPE_CHECKING:
    from .._flow.scheduler import Scheduler
    from .waits import Wait

_CURE: Final = (
    "leave `session` out of the inner job, give it another lane, or lend the outer job's slot "
    "meanwhile (yield_slot)"
)


def check(scheduler: Scheduler, wait: Wait) -> None:
    """Raise if ``wait``, which its job knows of already, can never end.

    Raises:
      LaneDeadlockError: it lists the knot and the cure.
    """
    targets = wait.any_of if wait.target is None else (wait.target,)
    if any(target._state is RUNNING and goes_on(target) for target in targets):
        return  # as most do
    search, needed = Search(), needed_for(wait)
    if not (search.can_come(needed) or _let_go(search, needed)):
        assert wait.job is not None
        raise LaneDeadlockError(_Knot(search.stuck_jobs()).describe(wait.job))


# ---- knots that are closed by no wait


def accepted(scheduler: Scheduler, job: AnyJob) -> None:
    """``job`` waits now: before others of its session, and in room that others wanted."""
    lane, session = job._lane, job._session_lane
    if job._state is WAITING and session is not None and _may_pass_others(session):
        _undo(scheduler, slot_of(lane))
    if scheduler.lines.length and lane.bounded and not lane.has_room:
        for wait in list(scheduler.waits):
            entrant = wait.entrant
            if entrant is not None and entrant.job._lane is lane and entrant.actor is not lane:
                _undo(scheduler, [(end_of, wait.job)])


def _may_pass_others(session: SessionActor) -> bool:
    """Whether one that comes into the line of ``session`` may come before others."""
    others = session.waiting > 1 and (session.is_ranked or session.delayed)
    return bool(others or session.entering or session.room_line or session.readmitting)


def moved(scheduler: Scheduler, job: AnyJob) -> None:
    """``job``, which waits, has another place in its session."""
    if job._session_lane is not None:
        _undo(scheduler, start_of(job, job._session_lane))


def holds_on(scheduler: Scheduler, job: AnyJob) -> None:
    """``job`` has its slot again, or is to be started again, while others of its tasks wait."""
    _undo(scheduler, [(end_of, job)])


def _undo(scheduler: Scheduler, keys: list[Key]) -> None:
    """End waits until all of ``keys`` can come."""
    while waits := _in_vain(scheduler, keys):
        last = next((wait for wait in waits if _comes_without(wait, keys)), waits[0])
        assert last.job is not None
        search = Search()
        search.can_come(keys)
        last.fail(LaneDeadlockError(_Knot(search.stuck_jobs()).describe(last.job)))


def _in_vain(scheduler: Scheduler, keys: list[Key]) -> list[Wait]:
    """The waits for what cannot come, if not all of ``keys`` can; the last to begin is first."""
    search = Search()
    if search.can_come(keys) or _let_go(search, keys):
        return []
    stuck = search.stuck_jobs()
    return [
        wait
        for wait in reversed(scheduler.waits)
        if wait.job in stuck and not search.can_come(needed_for(wait))
    ]


def _comes_without(wait: Wait, keys: list[Key]) -> bool:
    """Whether ``keys`` could come if it were not for ``wait``."""
    assert wait.job is not None
    assert wait.job._waits is not None
    del wait.job._waits[wait.task]
    try:
        return Search().can_come(keys)
    finally:
        wait.job._waits[wait.task] = wait


def _let_go(search: Search, keys: list[Key]) -> bool:
    """Whether ``keys`` come if cancelled jobs go on without their slots; then these do so."""
    cancelled = [job for job in search.stuck_jobs() if job._lane.returning.get(job)]
    if not cancelled:
        return False
    for job in cancelled:
        job._lane.lending[job] = False
    try:
        comes = Search().can_come(keys)
    finally:
        for job in cancelled:
            job._lane.lending[job] = True
    if comes:
        for job in cancelled:  # of whichever lanes
            with job._lane.floor.transition():
                job._lane.floor.touch(job._lane)
    return comes


def never_comes(job: AnyJob) -> bool:
    """Whether no slot can come that ``job`` wants back, as the limits are by now."""
    lane = job._lane
    budget = 1 if lane.group is None else lane.group.config.concurrency
    if min(lane.limiter.total_tokens, budget) < 1:
        return True
    return not Search().can_come(slot_of(lane, job))


# ---- what to say


@final
class _Knot:
    """Jobs that can never end."""

    def __init__(self, stuck: Iterable[AnyJob]) -> None:
        self._stuck: Final = tuple(stuck)

    def describe(self, first: AnyJob) -> str:
        """What ``first`` waits for, directly or not, and the cure."""
        lines = []
        told: set[AnyJob] = set()
        line = deque([first])
        while line:
            job = line.popleft()
            if job in told:
                continue
            told.add(job)
            goals = []
            for wait in (job._waits or {}).values():
                goal, holders = self._needed(wait)
                goals.append(goal)
                line += holders
            if wants_slot(job):
                goals.append(f"a slot of lane {job.lane!r} again")
                line += self._in_the_way(job._lane, None)
            lines.append(f"  {_called(job)} {_holdings(job)}, and waits for {' and '.join(goals)}")
        return "\n".join(["this wait would never end:", *lines, f"cure: {_CURE}"])

    def _needed(self, wait: Wait) -> tuple[str, list[AnyJob]]:
        """What ``wait`` waits for, and the stuck jobs that keep it from coming."""
        if wait.any_of:
            needed = [self._needed_of(target) for target in wait.any_of]
            return " or ".join(goal for goal, _ in needed), [
                holder for _, holders in needed for holder in holders
            ]
        if wait.target is None:
            entrant = wait.entrant
            assert entrant is not None
            starts = {(entrant.job._lane, entrant.session): None}
            starts |= {(job._lane, job._session_lane): None for job in entrant.actor.waiting_jobs()}
            holders = [job for start in starts for job in self._in_the_way(*start)]
            return f"room in lane {entrant.actor.name!r}", holders
        return self._needed_of(wait.target)

    def _needed_of(self, target: AnyJob) -> tuple[str, list[AnyJob]]:
        if target._state is WAITING:
            where = f"lane {target.lane!r}"
            if target.session is not None:
                where = f"session {target.session!r} and {where}"
            holders = self._in_the_way(target._lane, target._session_lane)
            return f"{_called(target)}, which waits for {where}", holders
        return _called(target), [target]

    def _in_the_way(self, lane: LaneActor, session: SessionActor | None) -> list[AnyJob]:
        """The stuck jobs that hold what a job needs that goes through these."""
        return [
            job
            for job in self._stuck
            if (session is not None and job._session_lane is session)
            or (job._has_slot and job._lane.limiter is lane.limiter)
            or (job._has_slot and lane.group is not None and job._lane.group is lane.group)
        ]


def _called(job: AnyJob) -> str:
    return f"job {job.id} {job.name!r}"


def _holdings(job: AnyJob) -> str:
    held = []
    if job.session is not None:
        held.append(f"session {job.session!r}")
    if job._has_slot:
        held.append(f"a slot of lane {job.lane!r}")
        if job._lane.group is not None:
            held.append(f"a token of group {job._lane.group.name!r}")
    return "holds " + (" and ".join(held) or "nothing")
