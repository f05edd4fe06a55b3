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
from .tables import Item

BATCH: Final = 100
"""How many events one call returns at most."""


def emit(queues: Queues, job: JobRecord, event: str) -> int:
    """Keep an event of a job; return its number. Tasks that read the job's events are woken."""
    number = job.emitted + 1
    queues.tables.update(job, emitted=number)
    queues.tables.append(job.event_list, Item(number, event), EVENTS_KEPT)
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
    items = queues.tables.items(job.event_list, after, BATCH) if job.emitted > after else ()
    found = [(item.number, item.data) for item in items]
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
        for item in tables.items(job.message_list, 0, MESSAGES_KEPT):
            if item.tag == key:
                return job.id, item.number
    if job.sent >= MESSAGES_KEPT:
        return "not_streaming"
    number = job.sent + 1
    tables.update(job, sent=number)
    tables.append(job.message_list, Item(number, message, key, taken=False))
    queues.ended.append((job.id, None))
    return job.id, number


def sent(queues: Queues, id: int, number: int) -> bool | None:
    """Return whether a message was taken; None: it may be taken yet."""
    job = queues.known(id)
    items = () if job is None else queues.tables.items(job.message_list, number - 1, 1)
    return next((item.taken or None for item in items if item.number == number), False)


def receive(queues: Queues, job: JobRecord, after: int) -> tuple[int, str] | None:
    """Take the next message to a run; None: there is none yet."""
    for item in queues.tables.items(job.message_list, after, 1):
        if not item.taken:
            queues.tables.append(job.message_list, Item(item.number, item.data, item.tag))
            queues.ended.append((job.id, None))
        return item.number, item.data
    return None
