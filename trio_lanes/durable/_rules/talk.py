"""What the runs of a job say while they run: events, which tasks on any instance read."""

from __future__ import annotations

from typing import Final

from .._contract.protocol import EVENTS_KEPT
from .._contract.state import DEAD, ENDED
from .job_record import JobRecord
from .queues import Queues

AT_ONCE: Final = 100
"""How many events one call returns at most."""


def emit(queues: Queues, job: JobRecord, event: str) -> int:
    """Keep an event of a job; return its number. Tasks that read the job's events are woken."""
    number = job.emitted + 1
    queues.tables.update(job, emitted=number)
    queues.tables.put_event(job, number, event, EVENTS_KEPT)
    queues.ended.append((job.id, None))
    return number


def events(queues: Queues, id: int, after: int) -> list[tuple[int, str]] | None:
    """Return the next events of a job; None: there are none yet.

    Raises:
      LookupError: if the job is not known.
    """
    job = queues.known(id)
    if job is None:
        raise LookupError(id)
    found = queues.tables.events(id, after, AT_ONCE) if job.emitted > after else []
    over = job.state in ENDED or job.state is DEAD
    return found if found or over else None
