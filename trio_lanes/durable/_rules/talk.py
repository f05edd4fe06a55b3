"""What is said while a job runs: events of its runs, and messages to them.

Both are numbered, and belong to the job. A message is taken by the run that it was sent to, or by
none: what it has not taken at its end is deleted, so the sender knows. What it has taken is kept,
and a later run of the job takes it again.
"""

from __future__ import annotations

from typing import Final

from .._contract.protocol import EVENTS_KEPT, MESSAGES_KEPT
from .._contract.state import DEAD, ENDED, RUNNING
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


def send(
    queues: Queues, job: JobRecord | None, message: str, key: str | None
) -> tuple[int, int] | str:
    """Keep a message for the run of a job; return the job and the number, or why not."""
    if job is None or job.state is not RUNNING:
        return "no_active_run"
    tables = queues.tables
    if key is not None:
        for number, known, _, _ in tables.messages(job.id, 0, MESSAGES_KEPT):
            if known == key:
                return job.id, number
    if job.sent >= MESSAGES_KEPT:
        return "not_streaming"
    number = job.sent + 1
    tables.update(job, sent=number)
    tables.put_message(job.id, number, key, False, message)
    queues.ended.append((job.id, None))
    return job.id, number


def sent(queues: Queues, id: int, number: int) -> bool | None:
    """Return whether a message was taken; None: it may be taken yet."""
    job = queues.known(id)
    found = [] if job is None else queues.tables.messages(id, number - 1, 1)
    if not found or found[0][0] != number:
        return False
    return True if found[0][2] else None


def receive(queues: Queues, job: JobRecord, after: int) -> tuple[int, str] | None:
    """Take the next message to a run; None: there is none yet."""
    for number, key, taken, message in queues.tables.messages(job.id, after, 1):
        if not taken:
            queues.tables.put_message(job.id, number, key, True, message)
            queues.ended.append((job.id, None))
        return number, message
    return None
