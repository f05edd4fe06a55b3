"""Finding waits that can never end, when they begin.

A job that waits for another job, or for room, is *stuck* if what it waits for can only come from
jobs that are stuck. Which are is the least that the following leaves, starting from all jobs that
wait: a job is not stuck if each thing that it waits for can come.

* The end of a running job can come unless that job is stuck.
* A waiting job can start if its session, its lane and the group of that can each get a token to
  it: if more tokens are there than stuck jobs hold. In a session, jobs before it that cannot start
  take a place as stuck ones do.
* Room can come where any waiting job can start.

This is a knot, not only a chain: one holder that can still go on is enough for a whole lane.
Pauses, rate limits, timeouts and later changes of limits are no part of it, so whoever waits for
one of these is not stuck. What other tasks of a job may do is not known: a job with a waiting task
is taken to end only after that wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, final

from ._errors import LaneDeadlockError
from ._state import RUNNING, WAITING

if TYPE_CHECKING:
    from ._actor import Actor
    from ._job import AnyJob
    from ._lane import LaneActor
    from ._session import SessionActor
    from ._waits import Wait

_CURE: Final = (
    "leave `session` out of the inner job, give it another lane, or lend the outer job's slot "
    "meanwhile (yield_slot)"
)


def check(wait: Wait) -> None:
    """Raise if ``wait``, which its job knows of already, can never end.

    Raises:
      LaneDeadlockError: it lists the knot and the cure.
    """
    job = wait.job
    assert job is not None
    if _is_free(wait.target):
        return
    knot = Knot(_waiting_jobs(job))
    if job in knot.stuck:
        raise LaneDeadlockError(knot.describe(job))


def _is_free(target: AnyJob | None) -> bool:
    """Whether ``target`` runs and waits for nothing, as most do."""
    return target is not None and target._state is RUNNING and _goes_on(target)


def _goes_on(job: AnyJob) -> bool:
    return not job._waits and job._has_slot


def _waiting_jobs(job: AnyJob) -> list[AnyJob]:
    running = job._keeper.running.values()
    return [job, *(other for other in running if other is not job and not _goes_on(other))]


@final
class Knot:
    """The jobs that are stuck, of some that wait."""

    def __init__(self, waiting: Iterable[AnyJob]) -> None:
        self.stuck = {job for job in waiting if job._state is RUNNING}
        left = True
        while left:
            self._flows: dict[LaneActor, bool] = {}  # answers that hold for this set
            freed = {job for job in self.stuck if self._can_go_on(job)}
            self.stuck -= freed
            left = bool(freed)

    def _can_go_on(self, job: AnyJob) -> bool:
        if not job._has_slot and not self._lane_flows(job._lane):
            return False
        return all(self._can_come(wait) for wait in (job._waits or {}).values())

    def _can_come(self, wait: Wait) -> bool:
        target = wait.target
        if target is None:
            assert wait.room_in is not None
            return self._room_can_come(wait.room_in)
        if target._state is WAITING:
            return self._can_start(target)
        return wait.until_started or target not in self.stuck

    def _room_can_come(self, actor: Actor) -> bool:
        jobs = list(actor.waiting_jobs())
        return not jobs or any(self._can_start(job) for job in jobs)

    def _can_start(self, job: AnyJob) -> bool:
        session = job._session_lane
        if not self._lane_flows(job._lane):
            return False
        return session is None or self._session_flows(session, job)

    def _session_flows(self, session: SessionActor, job: AnyJob) -> bool:
        taken = sum(other in self.stuck for other in session.running_jobs())
        if session.waiting > 1:
            taken += sum(
                not self._lane_flows(other._lane)
                for other in session.waiting_jobs()
                if other._place < job._place
            )
        return not taken or taken < session.concurrency

    def _lane_flows(self, lane: LaneActor) -> bool:
        """Whether ``lane`` can get a token to a job, if its turn comes."""
        flows = self._flows.get(lane)
        if flows is None:
            borrowers = lane.limiter.statistics().borrowers
            taken = sum(holder in self.stuck for holder in borrowers)
            flows = not taken or taken < lane.limiter.total_tokens
            if flows and lane.group is not None:
                flows = self._group_flows(lane)
            self._flows[lane] = flows
        return flows

    def _group_flows(self, lane: LaneActor) -> bool:
        group = lane.group
        assert group is not None
        taken = dict.fromkeys(group.used, 0)
        for job in self.stuck:
            if job._lane.group is group and job._has_slot:
                taken[job._lane.label] += 1
        total = sum(taken.values())
        kept = sum(
            max(0, tokens - taken[member])
            for member, tokens in group.config.reserve.items()
            if member != lane.label
        )
        return not total or total + kept < group.config.concurrency

    # ---- what to say

    def describe(self, first: AnyJob) -> str:
        """The stuck jobs that ``first`` waits for, directly or not, and the cure."""
        lines = []
        told: set[AnyJob] = set()
        line = [first]
        while line:
            job = line.pop(0)
            if job in told:
                continue
            told.add(job)
            waits = [self._needed(wait) for wait in (job._waits or {}).values()]
            goals = [goal for goal, _ in waits] or [f"its slot in lane {job.lane!r}"]
            lines.append(f"  {_called(job)} {_holdings(job)}, and waits for {', '.join(goals)}")
            for _, holders in waits:
                line += holders
            if not job._has_slot:
                line += self._holders(job._lane)
        return "\n".join(["this wait would never end:", *lines, f"cure: {_CURE}"])

    def _needed(self, wait: Wait) -> tuple[str, list[AnyJob]]:
        """What ``wait`` waits for, and the stuck jobs that keep it from coming."""
        target = wait.target
        if target is None:
            assert wait.room_in is not None
            jobs = list(wait.room_in.waiting_jobs())
            holders = [holder for job in jobs for holder in self._in_the_way(job)]
            return f"room in lane {wait.room_in.name!r}", holders
        if target._state is WAITING:
            where = f"lane {target.lane!r}"
            if target.session is not None:
                where = f"session {target.session!r} and {where}"
            return f"{_called(target)}, which waits for {where}", self._in_the_way(target)
        return _called(target), [target]

    def _in_the_way(self, job: AnyJob) -> list[AnyJob]:
        session = job._session_lane
        ours = [] if session is None else session.running_jobs()
        return [*(other for other in ours if other in self.stuck), *self._holders(job._lane)]

    def _holders(self, lane: LaneActor) -> list[AnyJob]:
        return [
            job
            for job in self.stuck
            if job._has_slot
            and (job._lane is lane or (lane.group is not None and job._lane.group is lane.group))
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
