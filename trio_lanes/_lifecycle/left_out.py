"""The jobs that a wait for lanes inside a job leaves out.

A task inside a job may wait until lanes are idle, empty or have room. If this wait included a job
that cannot go on before the caller's job has ended, neither the wait nor that job could ever end.
So the wait leaves out:

* the jobs inside which the caller is;
* each running job that waits for a job that is left out, or for lanes in which such a job is, or
  needs a slot that such jobs hold;
* each waiting job that needs a place in its session, a slot or a token of a group, if jobs that are
  left out hold all of these.

The search for deadlocks finds these jobs: it assumes that the caller's jobs never end, and each job
whose start or end cannot come then is left out. Waits for lanes inside of other jobs are no part of
that search. They are added round by round: a job whose wait for lanes cannot come true is assumed
never to end either. So two jobs that wait for each other's lanes leave out each other.

Several waits for lanes may hold up each other only together: each waits for a job that needs a
slot, and their own jobs hold all slots. For each wait alone, another job could still give its slot
back. Then the largest set of waits that hold up each other is left out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from typing import final

from .._actors.job import AnyJob
from .._actors.lane import LaneActor
from .._actors.session import SessionActor
from .._actors.state import RUNNING
from .._flow.loop import Scheduler
from .._waiting.needs import Search, place_of
from .._waiting.watch import Watch


def may_leave_out_waiting(scheduler: Scheduler, inside: Iterable[AnyJob]) -> bool:
    """Whether a wait inside the jobs ``inside`` may leave out a waiting job of these lanes.

    Called first as well: if a job that submits many jobs waits for room, each job is a check.
    """
    jobs = may_be_left_out(scheduler, inside)
    if any(job._session_lane is not None and job._session_lane.waiting for job in jobs):
        return True
    held = Counter(job._lane for job in jobs)
    return any(
        lane.group is not None or lane.token_request is not None or lane.concurrency <= held[lane]
        for lane in scheduler.lanes.values()
        if lane.waiting
    )


def may_be_left_out(scheduler: Scheduler, inside: Iterable[AnyJob]) -> list[AnyJob]:
    """Return the running jobs of these lanes that a wait inside these jobs may leave out.

    Other running jobs go on. It is cheap, and called first: while many jobs wait for lanes,
    conditions are checked often.
    """
    watching = chain.from_iterable(watch.jobs for watch in scheduler.watches.inside)
    waiting = (wait.job for wait in scheduler.waits)
    without_slot = chain.from_iterable(lane.without_slot for lane in scheduler.lanes.values())
    return [
        job
        for job in dict.fromkeys(chain(inside, watching, waiting, without_slot))
        if job is not None and job._keeper is scheduler and job._state is RUNNING
    ]


def comes_true(
    scheduler: Scheduler, inside: Iterable[AnyJob], is_true: Callable[[LeftOut], bool]
) -> bool:
    """Whether a wait inside these jobs ends now: ``is_true`` says it for the jobs left out."""
    left_out = LeftOut(scheduler, inside)
    if is_true(left_out):
        return True
    larger = _held_together(scheduler, left_out, is_true)
    return larger is not None and is_true(larger)


def all_left_out(scheduler: Scheduler, inside: Iterable[AnyJob]) -> LeftOut:
    """Return the jobs that any wait inside the jobs ``inside`` leaves out."""
    left_out = LeftOut(scheduler, inside)
    return _held_together(scheduler, left_out, lambda larger: True) or left_out


def _held_together(
    scheduler: Scheduler, left_out: LeftOut, may_be_true: Callable[[LeftOut], bool]
) -> LeftOut | None:
    """Return the jobs left out because of waits that hold up each other only together.

    None if there are no such waits, or if the wait would not end by that.
    """
    watches = scheduler.watches.inside
    others = {watch: None for watch in watches if not left_out.held.keys() >= {*watch.jobs}}
    owns: dict[Watch, LeftOut] = {}
    # The set begins with all other waits. A wait leaves it if, although the jobs of the set never
    # end, all that it waits for can come, apart from the jobs that it leaves out itself.
    while others:
        jobs = chain(left_out.held, *(watch.jobs for watch in others))
        larger = LeftOut(scheduler, jobs, with_watches=False)
        if not may_be_true(larger):
            return None  # a smaller set leaves out less
        going = []
        for watch in others:
            if watch not in owns and watch.is_held_up(larger):
                owns[watch] = LeftOut(scheduler, watch.jobs)
            if watch not in owns or not watch.is_held_up(_Beyond(larger, owns[watch])):
                going.append(watch)
        if not going:
            return larger
        for watch in going:
            del others[watch]
    return None


@final
class LeftOut:
    """The jobs that cannot go on before all of some running jobs have ended."""

    def __init__(
        self, scheduler: Scheduler, jobs: Iterable[AnyJob], *, with_watches: bool = True
    ) -> None:
        self.held = dict.fromkeys(jobs)
        """The running jobs that are known to be left out."""
        watches = scheduler.watches.inside if with_watches else ()
        is_complete = False
        while not is_complete:
            self._search = Search(self.held)
            is_complete = True
            for watch in watches:
                if not self.held.keys() >= {*watch.jobs} and watch.is_held_up(self):
                    self.held.update(dict.fromkeys(watch.jobs))
                    is_complete = False

    def has(self, job: AnyJob) -> bool:
        """Whether ``job``, which runs, is left out."""
        return job in self.held or not self._search.can_come([(self._search.end_of, job)])

    def running(self, scheduler: Scheduler) -> list[AnyJob]:
        """Return the running jobs of these lanes that are left out."""
        return [job for job in may_be_left_out(scheduler, self.held) if self.has(job)]

    def waiting(self, scheduler: Scheduler) -> list[AnyJob]:
        """Return the waiting jobs of these lanes that are left out."""
        can_come, slot_of = self._search.can_come, self._search.slot_of
        busy = [lane for lane in scheduler.lanes.values() if lane.waiting]
        stuck = {lane for lane in busy if not can_come(slot_of(lane))}
        found = [job for lane in stuck for job in lane.waiting_jobs()]
        sessions = (job._session_lane for job in chain(found, self.running(scheduler)))
        for session in dict.fromkeys(sessions):
            if session is not None:
                for lane, jobs in _by_lane(session).items():
                    if lane not in stuck:
                        # If a job of a session cannot start, no job behind it can.
                        found += jobs[bisect_left(jobs, True, key=self._cannot_start) :]
        return found

    def _cannot_start(self, job: AnyJob) -> bool:
        return not self._search.can_come(self._search.start_of(job, job._session_lane))


@final
class _Beyond:
    """The jobs that are in one `LeftOut` and not in another."""

    def __init__(self, left_out: LeftOut, but: LeftOut) -> None:
        self._left_out = left_out
        self._but = but

    @property
    def held(self) -> list[AnyJob]:
        return [job for job in self._left_out.held if not self._but.has(job)]

    def running(self, scheduler: Scheduler) -> list[AnyJob]:
        return [job for job in self._left_out.running(scheduler) if not self._but.has(job)]

    def waiting(self, scheduler: Scheduler) -> list[AnyJob]:
        but = {*self._but.waiting(scheduler)}
        return [job for job in self._left_out.waiting(scheduler) if job not in but]


def _by_lane(session: SessionActor) -> dict[LaneActor, list[AnyJob]]:
    """Return the waiting jobs of ``session`` in order, by the lanes that they are bound for."""
    found: dict[LaneActor, list[AnyJob]] = {}
    for job in sorted(session.waiting_jobs(), key=place_of):
        found.setdefault(job._lane, []).append(job)
    return found
