"""`Cache`: the state of a store's tables in a database, as far as it is known without a query.

The rules ask for the same values again and again: the head of a queue, the running jobs, the number
of waiting jobs, the next time at which a job is due. Most changes to them are made by this process
itself. So they are cached here.

* The tables are the truth. A value that is not cached is read from them.
* The whole cache is dropped when a transaction was undone, and when another connection has written
  to the tables and has not said what (`is_now`, `is_over`).
* Only the fronts of queues and ready lists are cached, never a whole list.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, final

from .._contract.state import ENDED, PARKED, RUNNING, DurableState
from .._rules.counts import COUNTED, Counts, Key
from .._rules.job_record import ON_LIST, JobRecord
from .._rules.running import Running
from .list_front import ListFront

QUEUES_KEPT: Final = 2_000
"""How many queues are cached; with more, all fronts are dropped."""
PAYLOADS: Final = 32 * 1024 * 1024
"""How many characters of payloads may be read before all cached fronts are dropped."""
NEVER: Final = math.inf

ListKey: TypeAlias = tuple[str, int, str, str]
"""(lane, priority, handler's name, ring)"""
_Move: TypeAlias = tuple[str, str, DurableState | None, DurableState | None]
"""(lane, handler's name, state before, state after)"""


def place_of(job: JobRecord) -> int | None:
    """Return a job's place in its session's queue."""
    return job.place


def ready_of(job: JobRecord) -> int | None:
    """Return a job's place on its ready list; None if it is shelved or not on it."""
    return job.ready if job.shelf == ON_LIST else None


@final
class Cache:
    """The cached state of a store's tables. An attribute that is None must be read from them.

    Attributes:
      queues: by session, the front of its queue.
      lists: by lane, priority, handler's name and ring, the front of the ready list.
      runs: the running jobs.
      suspected: the lanes in which a job waits that was running in a crash.
      counts: how many jobs there are, by lane, state and handler's name. Call `count` before.
      uncounted: {the same: the difference of this number from that in the table}. The same holds.
        It has ends of jobs, too, under the state with a plus, and no name.
      parked_until: the first time at which a parked job is due or a job expires, or an earlier
        one.
      kept_until: the first time at which an ended job is forgotten, or an earlier one.
    """

    def __init__(self) -> None:
        self.queues: Final[dict[str, ListFront]] = {}
        self.lists: Final[dict[ListKey, ListFront]] = {}
        self.runs: Running | None = None
        self.suspected: set[str] | None = None
        self.counts: Counts | None = None
        self.uncounted: Final[dict[Key, int]] = {}
        self._moves: Final[dict[_Move, int]] = {}  # {move: of how many jobs}, not counted yet
        self.parked_until: float | None = None
        self.kept_until: float | None = None

    def appeared(self, job: JobRecord) -> None:
        """Record a new job."""
        self._touch(job.lane)
        self._moved(job, None, job.state)
        self._changed_due(job)
        self._changed_place(job)
        self._changed_ready(job)

    def changed(self, job: JobRecord, before: DurableState, changes: Mapping[str, Any]) -> None:
        """Record that some fields of a job have changed, which was in the state ``before``."""
        self._touch(job.lane)
        if "state" in changes:
            self._moved(job, before, job.state)
            self._changed_due(job)
        elif job.state is PARKED or "expires" in changes:
            self._changed_due(job)
        if job.crashed_with or "crashed_with" in changes:
            self.suspected = None
        if self.runs is not None:
            if job.state is RUNNING:
                self.runs.put(job)
            elif before is RUNNING:
                self.runs.drop(job.id, job.lane)
        if job.place is not None and "place" in changes:
            self._changed_place(job)
        if job.ready is not None and ("ready" in changes or "shelf" in changes):
            self._changed_ready(job)

    def disappeared(self, job: JobRecord) -> None:
        """Record that a job was deleted that did not run."""
        self._touch(job.lane)
        self._moved(job, job.state, None)

    def is_now(self, job: JobRecord) -> None:
        """Take in what another instance has made of a job; `counts` is told apart."""
        self._touch(job.lane)
        self._changed_due(job)
        if self.runs is not None:
            self.runs.drop(job.id, job.lane)  # its instance may be another
            if job.state is RUNNING:
                self.runs.put(job)
        self._changed_place(job)
        self._changed_ready(job)

    def is_unread(self, job: JobRecord) -> None:
        """Take in what another instance has made of a job whose texts are not known.

        So no front has it, and who wants it reads it.
        """
        self.is_over(job.id, job.lane)
        self._changed_due(job)
        if job.session is not None:
            self.queues.pop(job.session, None)
        self.lists.pop((job.lane, job.priority, job.name, job.ring), None)
        if job.state is RUNNING:
            self.runs = None

    def is_over(self, id: int, lane: str) -> None:
        """Take in that another instance has ended or deleted a job."""
        self._touch(lane)
        if self.runs is not None:
            self.runs.drop(id, lane)

    def _touch(self, lane: str) -> None:
        if self.counts is not None and self.counts.aside:
            self.counts.touch(lane)

    def _moved(
        self, job: JobRecord, before: DurableState | None, after: DurableState | None
    ) -> None:
        move = job.lane, job.name, before, after
        self._moves[move] = self._moves.get(move, 0) + 1

    def count(self) -> None:
        """Count the jobs that have appeared, changed their states or disappeared since the last."""
        for (lane, name, before, after), number in self._moves.items():
            self._count(lane, before, name, -number)
            self._count(lane, after, name, number)
        self._moves.clear()

    def _count(self, lane: str, state: DurableState | None, name: str, by: int) -> None:
        if state is None or state not in COUNTED:
            return
        key = lane, state.value, name
        self.uncounted[key] = self.uncounted.get(key, 0) + by
        if self.counts is not None:
            self.counts.add(key, by)

    def _changed_due(self, job: JobRecord) -> None:
        """Record that a job may be due at another time."""
        if job.expires is not None and self.parked_until is not None:
            self.parked_until = min(self.parked_until, job.expires)
        if job.due is None:
            return
        if job.state is PARKED and self.parked_until is not None:
            self.parked_until = min(self.parked_until, job.due)
        elif job.state in ENDED and self.kept_until is not None:
            self.kept_until = min(self.kept_until, job.due)

    def _changed_place(self, job: JobRecord) -> None:
        """Record that a job has another place in its session's queue, or none."""
        if job.session is not None and job.place is not None:
            queue = self.queues.get(job.session)
            if queue is not None:
                queue.add(job.place, job)

    def _changed_ready(self, job: JobRecord) -> None:
        """Record that a job has another place on its ready list, or none, or is shelved."""
        ready = ready_of(job)
        if ready is not None:
            ready_list = self.lists.get((job.lane, job.priority, job.name, job.ring))
            if ready_list is not None:
                ready_list.add(ready, job)

    def forget_fronts(self) -> None:
        """Drop the fronts of all queues and lists. Call it between transactions."""
        self.queues.clear()
        self.lists.clear()
