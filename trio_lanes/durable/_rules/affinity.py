"""Affinity: the next job of a session is left for a while to the instance that ran the one before.

That incarnation is the home of the session. The tables keep it as they keep the answer of an act.

* A claim passes over a ready job whose home is another instance that is alive, has the handler, and
  had room in its last step: over as many jobs as that room is.
* It does so for `Opening.affinity` at most, counted from when the job was submitted, was due, and
  was the next of its session. At `Homes.due` the worker looks again.
* Such a job keeps the turn of its lane and a slot. Where a rate counts starts, the lane waits. So
  what is claimed meanwhile takes nothing that the home needs.
"""

from __future__ import annotations

from typing import Final, final

from .job_record import JobRecord
from .queues import Queues
from .tables import INSTANCES


def note_home(queues: Queues, job: JobRecord) -> None:
    """Note that a run has ended on an instance, which is the home of its session now."""
    if job.session is not None:
        queues.tables.put_answer(ticket_of(job.session), (job.instance, queues.now), queues.now)


def ticket_of(session: str) -> str:
    """Return under which ticket the home of a session is kept; no act has it."""
    return f"home {session}"


@final
class Homes:
    """The homes of sessions, as an instance that claims sees them."""

    def __init__(self, queues: Queues, instance: str) -> None:
        self._queues: Final = queues
        self._names: Final = {info.id: info.names for info in queues.tables.of(INSTANCES).values()}
        self._room: Final[dict[str, int]] = {}  # {another one: how many more jobs are left to it}
        for id in self._names.keys() - {instance}:
            last = queues.tables.last_step(id)
            if last is not None and queues.is_alive(id):
                self._room[id] = last.room
        self.due: float | None = None
        """When the first job that was left to its home may be claimed all the same; or None."""

    def keep(self, job: JobRecord) -> bool:
        """Whether a job is left to its home now. Call it once for each job."""
        queues = self._queues
        if job.session is None or job.crashed_with or not self._room:
            return False
        known = queues.tables.answer(ticket_of(job.session), queues.now)
        home, since = ("", 0.0) if known is None else known[0]
        until = max(since, job.submitted_at, job.due or 0.0) + queues.opening.affinity
        if until <= queues.now or not self._room.get(home) or job.name not in self._names[home]:
            return False
        self._room[home] -= 1
        self.due = until if self.due is None else min(self.due, until)
        return True
