"""`Running`: the running jobs of a store, in sets by instance and by lane; never counters.

The sets hold ids, so an instance never reads the payloads of jobs that other instances run. Records
are kept of the runs that this process has started, and of those that the rules look at: runs that
want a slot back, are cancelled, or have run in a crash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, final

from .job_record import HOLDS_SLOT, LENT_SLOT, WANTS_SLOT, JobRecord


@final
class Running:
    """The running jobs, in sets.

    Args:
      sets: (lane, instance, `JobRecord.lent`, the ids joined by commas) of what is in a table.
      special: the records of those that want a slot back, are cancelled, or have run in a crash.
    """

    def __init__(
        self, sets: Iterable[tuple[str, str, int, str]] = (), special: Iterable[JobRecord] = ()
    ) -> None:
        # {lane: the ids of runs that hold a slot of it}
        self._holding: Final[defaultdict[str, set[int]]] = defaultdict(set)
        # {instance: the ids of its runs that have not lent their slots}
        self._not_lent: Final[defaultdict[str, set[int]]] = defaultdict(set)
        self._special: Final[dict[int, JobRecord]] = {}
        for job in special:
            self._special[job.id] = job
        self._records: Final[dict[int, JobRecord]] = dict(self._special)  # a reference keeps them
        for lane, instance, lent, joined in sets:
            ids = [int(id) for id in joined.split(",")]
            if lent == HOLDS_SLOT:
                self._holding[lane].update(ids)
            if lent != LENT_SLOT:
                self._not_lent[instance].update(ids)

    def put(self, job: JobRecord) -> None:
        """Add a running job, or update the state of its slot and its cancellation."""
        if job.id in self._records or job.lent != HOLDS_SLOT:
            self.drop(job.id, job.lane)
        self._records[job.id] = job
        assert job.instance is not None
        if job.lent == HOLDS_SLOT:
            self._holding[job.lane].add(job.id)
        if job.lent != LENT_SLOT:
            self._not_lent[job.instance].add(job.id)
        if job.lent == WANTS_SLOT or job.cancel is not None or job.crashed_with:
            self._special[job.id] = job

    def drop(self, id: int, lane: str) -> None:
        """Remove a job that runs no longer."""
        self._records.pop(id, None)
        self._special.pop(id, None)
        self._holding[lane].discard(id)
        for ids in self._not_lent.values():  # it may have come from another incarnation
            ids.discard(id)

    def all(self) -> Iterable[JobRecord]:
        """Return the runs whose records are known."""
        return self._records.values()

    def count_and_suspects(self, instance: str) -> tuple[int, list[JobRecord]]:
        """Return how many runs of an instance have not lent their slots, and its suspects.

        A suspect is a run of a job that has run in a crash: its ``crashed_with`` is not 0.
        """
        ids = self._not_lent.get(instance, ())
        return len(ids), [
            job for id, job in self._special.items() if job.crashed_with and id in ids
        ]

    def cancelled(self, instance: str) -> list[JobRecord]:
        """Return the runs of an instance whose cancellation is recorded."""
        special = self._special.values()
        return [job for job in special if job.cancel is not None and job.instance == instance]

    def slots_used(self, lane: str) -> int:
        """Return how many runs hold a slot of a lane: the size of a set, never a counter."""
        return len(self._holding.get(lane, ()))

    def slot_requests(self, lane: str | None = None) -> list[JobRecord]:
        """Return the runs, of a lane or of all, that want slots back, in order of their fences."""
        requests = [
            job
            for job in self._special.values()
            if job.lent == WANTS_SLOT and lane in (None, job.lane)
        ]
        return sorted(requests, key=lambda job: job.fence)

    def lanes(self) -> set[str]:
        """Return the lanes of which a run holds a slot or wants it back."""
        holding = {lane for lane, ids in self._holding.items() if ids}
        return holding.union(job.lane for job in self.slot_requests())
