"""Which jobs a wait for lanes leaves out, if it is made inside a job.

A task inside a job may wait until lanes are idle, empty or have room. A job that cannot go on
before the caller's job has ended would keep such a wait, and with it itself, from ever ending. So
the wait leaves out:

* the jobs that the caller is inside of;
* each running job that waits, by its handle, for a job that is left out; or that waits for lanes
  in which such a job is; or that needs a slot which such jobs hold;
* each waiting job that needs a place in its session, a slot or a token of a group, if all of these
  are held by jobs that are left out.

Found by the search for deadlocks: the caller's jobs are taken never to end, and what cannot come
then is left out. Waits for lanes inside of other jobs are no part of that search. They are added
one round after the other: a job whose wait for lanes cannot come true is taken never to end either.
Two jobs that wait for each other's lanes so leave out each other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, final

from ._job import AnyJob
from ._needs import Search, end_of, place_of, slot_of, start_of
from ._state import RUNNING

if TYPE_CHECKING:
    from ._lane import LaneActor
    from ._scheduler import Scheduler
    from ._session import SessionActor


def most_left_out(scheduler: Scheduler, inside: Iterable[AnyJob]) -> int:
    """No more running jobs than that can be left out by a wait inside those jobs.

    Asked first, since it costs nothing: while many jobs wait for lanes, those are looked at often.
    """
    watching = sum(len(watch.jobs) for watch in scheduler.watches.inside)
    lending = sum(len(lane.lending) for lane in scheduler.lanes.values())
    return len([*inside]) + len(scheduler.waits) + watching + lending


def may_leave_out_waiting(scheduler: Scheduler, inside: Iterable[AnyJob]) -> bool:
    """Whether a wait inside those jobs may leave out any job of these lanes that waits.

    Asked first as well: a job that submits many others and waits for room is looked at for each.
    """
    jobs = _may_be_held(scheduler, inside)
    if any(job._session_lane is not None and job._session_lane.waiting for job in jobs):
        return True
    held = Counter(job._lane for job in jobs)
    return any(
        lane.group is not None or lane.asker is not None or lane.concurrency <= held[lane]
        for lane in scheduler.lanes.values()
        if lane.waiting
    )


def _may_be_held(scheduler: Scheduler, inside: Iterable[AnyJob]) -> list[AnyJob]:
    """The running jobs of these lanes that a wait inside those jobs may leave out."""
    watching = chain.from_iterable(watch.jobs for watch in scheduler.watches.inside)
    waiting = (wait.job for wait in scheduler.waits)
    lending = chain.from_iterable(lane.lending for lane in scheduler.lanes.values())
    return [
        job
        for job in dict.fromkeys(chain(inside, watching, waiting, lending))
        if job is not None and job._keeper is scheduler and job._state is RUNNING
    ]


@final
class LeftOut:
    """The jobs that cannot go on before all of some running jobs have ended."""

    def __init__(self, scheduler: Scheduler, jobs: Iterable[AnyJob]) -> None:
        self.held = dict.fromkeys(jobs)
        """Running jobs that are known to be left out."""
        watches = scheduler.watches.inside
        is_complete = False
        while not is_complete:
            self._search = Search(self.held)
            is_complete = True
            for watch in watches:
                if not self.held.keys() >= {*watch.jobs} and watch.is_held_up(self):
                    self.held.update(dict.fromkeys(watch.jobs))
                    is_complete = False

    def running(self, scheduler: Scheduler) -> list[AnyJob]:
        """The running jobs of these lanes that are left out."""
        return [
            job
            for job in _may_be_held(scheduler, self.held)
            if job in self.held or not self._search.can_come([(end_of, job)])
        ]

    def waiting(self, scheduler: Scheduler) -> list[AnyJob]:
        """The waiting jobs of these lanes that are left out."""
        can_come = self._search.can_come
        busy = [lane for lane in scheduler.lanes.values() if lane.waiting]
        stuck = {lane for lane in busy if not can_come(slot_of(lane))}
        found = [job for lane in stuck for job in lane.waiting_jobs()]
        sessions = (job._session_lane for job in chain(found, self.running(scheduler)))
        for session in dict.fromkeys(sessions):
            if session is not None:
                for lane, jobs in _by_lane(session).items():
                    if lane not in stuck:
                        # If one of them cannot start, then none behind it can.
                        found += jobs[bisect_left(jobs, True, key=self._cannot_start) :]
        return found

    def _cannot_start(self, job: AnyJob) -> bool:
        return not self._search.can_come(start_of(job, job._session_lane))


def _by_lane(session: SessionActor) -> dict[LaneActor, list[AnyJob]]:
    """The waiting jobs of ``session`` in their order, by the lanes that they are bound for."""
    found: dict[LaneActor, list[AnyJob]] = {}
    for job in sorted(session.waiting_jobs(), key=place_of):
        found.setdefault(job._lane, []).append(job)
    return found
