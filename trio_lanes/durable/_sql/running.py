"""`Running`: the running jobs of a store, in sets by instance and by lane; never counters.

The sets hold ids, so an instance never reads the payloads of jobs that other instances run. Records
are kept of the runs that this process has started, and of those that the rules look at: runs that
want a slot back, are cancelled, or have run in a crash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, final

from .._rules.job_record import HOLDS_SLOT, LENT_SLOT, WANTS_SLOT, JobRecord

SPECIAL: Final = "state = 'running' AND (lent = 2 OR cancel IS NOT NULL OR crashed_with > 0)"


@final
class Running:
    """The running jobs, in sets.

    Attributes:
      holding: {lane: the ids of runs that hold a slot of it}
      not_lent: {instance: the ids of its runs that have not lent their slots}
      special: the runs that want a slot back, are cancelled, or have run in a crash, by id.
    """

    def __init__(
        self, sets: Iterable[tuple[str, str, int, str]], special: Iterable[JobRecord]
    ) -> None:
        self.holding: Final[defaultdict[str, set[int]]] = defaultdict(set)
        self.not_lent: Final[defaultdict[str, set[int]]] = defaultdict(set)
        self.special: Final[dict[int, JobRecord]] = {job.id: job for job in special}
        self._records: Final[dict[int, JobRecord]] = dict(self.special)  # a reference keeps them
        for lane, instance, lent, joined in sets:
            ids = [int(id) for id in joined.split(",")]
            if lent == HOLDS_SLOT:
                self.holding[lane].update(ids)
            if lent != LENT_SLOT:
                self.not_lent[instance].update(ids)

    def put(self, job: JobRecord) -> None:
        """Add a running job, or update the state of its slot and its cancellation."""
        if job.id in self._records or job.lent != HOLDS_SLOT:
            self.drop(job)
        self._records[job.id] = job
        assert job.instance is not None
        if job.lent == HOLDS_SLOT:
            self.holding[job.lane].add(job.id)
        if job.lent != LENT_SLOT:
            self.not_lent[job.instance].add(job.id)
        if job.lent == WANTS_SLOT or job.cancel is not None or job.crashed_with:
            self.special[job.id] = job

    def drop(self, job: JobRecord) -> None:
        """Remove a job that runs no longer."""
        self._records.pop(job.id, None)
        self.special.pop(job.id, None)
        self.holding[job.lane].discard(job.id)
        for ids in self.not_lent.values():  # it may have come from another incarnation
            ids.discard(job.id)

    def slot_requests(self) -> list[JobRecord]:
        """Return the runs that want their slots back, in order of their fences."""
        requests = [job for job in self.special.values() if job.lent == WANTS_SLOT]
        return sorted(requests, key=lambda job: job.fence)
