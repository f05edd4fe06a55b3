"""What is said while a job runs: events of its runs, and messages to them.

Both are numbered, and belong to the job. A message is taken by the run that it was sent to, or by
none: what it has not taken at its end is deleted, so the sender knows. What it has taken is kept,
and a later run of the job takes it again.
"""

from __future__ import annotations

from typing import Final

from .._contract.state import DEAD, ENDED
from .queues import Queues

BATCH: Final = 100
"""How many events one call returns at most."""


def events(queues: Queues, id: int, after: int) -> tuple[list[tuple[int, str]] | None] | None:
    """Return the next events of a job, or None if it is unknown, in a tuple; None: none yet."""
    job = queues.known(id)
    if job is None:
        return (None,)
    found = queues.tables.events(id, after, BATCH) if job.emitted > after else []
    over = job.state in ENDED or job.state is DEAD
    return (found,) if found or over else None


def sent(queues: Queues, id: int, number: int) -> tuple[bool] | None:
    """Return whether a message was taken, in a tuple; None: it may be taken yet."""
    job = queues.known(id)
    found = [] if job is None else queues.tables.messages(id, number - 1, 1)
    if not found or found[0][0] != number:
        return (False,)
    return (True,) if found[0][2] else None


def receive(
    queues: Queues, id: int, fence: int, after: int
) -> tuple[tuple[int, str] | None] | None:
    """Take the next message to a run, in a tuple, or (None,): the run is lost; None: none yet."""
    job = queues.run_of(id, fence)
    if job is None:
        return (None,)
    for number, key, taken, message in queues.tables.messages(job.id, after, 1):
        if not taken:
            queues.tables.put_message(job.id, number, key, True, message)
            queues.ended.append((job.id, None))
        return ((number, message),)
    return None
