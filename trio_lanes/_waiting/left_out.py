"""The jobs that a wait for lanes inside a job leaves out.

A task inside a job may wait until lanes are idle, empty or have room. If this wait included a job
that cannot go on before the caller's job has ended, neither could ever end. So it leaves out:

* the jobs inside which the caller is;
* each running job that waits for a job that is left out, or needs a slot that such jobs hold;
* each waiting job that needs a place in its session, a slot or a token of a group, if jobs that are
  left out hold all of these.

The search for deadlocks finds these jobs: it assumes that the caller's jobs never end, and each job
whose start or end cannot come then is left out. Waits for lanes are no part of that search: jobs
that hold up each other's waits for lanes are a deadlock, which `Watches` finds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Final, final

from .._actors.job import AnyJob
from .._actors.lane import LaneActor
from .._actors.session import SessionActor
from .._actors.state import RUNNING
from .._actors.wait import Wait
from .needs import Search, place_of


@final
class LeftOut:
    """The jobs of some lanes that cannot go on before all of the jobs ``held`` have ended."""

    def __init__(
        self, held: Iterable[AnyJob], lanes: Mapping[str, LaneActor], waits: Collection[Wait]
    ) -> None:
        self._held: Final = (*held,)
        self._lanes: Final = lanes
        self._waits: Final = waits  # all of this run
        self._search: Final = Search(self._held)

    # The first two are cheap: while jobs wait for lanes, each batch is a check.

    def candidates(self) -> list[AnyJob]:
        """Return the running jobs that may be left out. Other running jobs go on."""
        without_slot = chain.from_iterable(lane.without_slot for lane in self._lanes.values())
        found = dict.fromkeys(chain(self._held, (wait.job for wait in self._waits), without_slot))
        return [job for job in found if job is not None and job._state is RUNNING]

    def may_have_waiting(self) -> bool:
        """Whether a waiting job may be left out."""
        jobs = self.candidates()
        if any(job._session_lane is not None and job._session_lane.waiting for job in jobs):
            return True
        held = Counter(job._lane for job in jobs)
        return any(
            lane.group is not None
            or lane.token_request is not None
            or lane.concurrency <= held[lane]
            for lane in self._lanes.values()
            if lane.waiting
        )

    def has(self, job: AnyJob) -> bool:
        """Whether ``job``, which runs, is left out."""
        return not self._search.can_come([(self._search.end_of, job)])

    def running(self) -> list[AnyJob]:
        """Return the running jobs that are left out."""
        return [job for job in self.candidates() if self.has(job)]

    def waiting(self) -> list[AnyJob]:
        """Return the waiting jobs that are left out."""
        can_come, slot_of = self._search.can_come, self._search.slot_of
        busy = [lane for lane in self._lanes.values() if lane.waiting]
        stuck = {lane for lane in busy if not can_come(slot_of(lane))}
        found = [job for lane in stuck for job in lane.waiting_jobs()]
        sessions = (job._session_lane for job in chain(found, self.running()))
        for session in dict.fromkeys(sessions):
            if session is not None:
                for lane, jobs in _by_lane(session).items():
                    if lane not in stuck:
                        # If a job of a session cannot start, no job behind it can.
                        found += jobs[bisect_left(jobs, True, key=self._cannot_start) :]
        return found

    def _cannot_start(self, job: AnyJob) -> bool:
        return not self._search.can_come(self._search.start_of(job, job._session_lane))


def _by_lane(session: SessionActor) -> dict[LaneActor, list[AnyJob]]:
    """Return the waiting jobs of ``session`` in order, by the lanes that they are bound for."""
    found: dict[LaneActor, list[AnyJob]] = {}
    for job in sorted(session.waiting_jobs(), key=place_of):
        found.setdefault(job._lane, []).append(job)
    return found
