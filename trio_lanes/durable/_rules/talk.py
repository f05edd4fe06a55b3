"""What is said while a job runs: events of its runs, and messages to them.

Both are numbered, and belong to the job. A message is taken by the run that it was sent to, or by
none: what it has not taken at its end is deleted, so the sender knows. What it has taken is kept,
and a later run of the job takes it again.
"""

from __future__ import annotations

from typing import Final

from .._contract.state import DEAD, ENDED
from .queues import Queues
from .tables import INSTANCES, ListItem

MAX_EVENTS: Final = 100
"""How many events one call returns at most."""


def events(queues: Queues, id: int, after: int) -> tuple[list[tuple[int, str]] | None] | None:
    """Return the next events of a job, or None if it is unknown, in a tuple; None: none yet."""
    job = queues.known(id)
    if job is None:
        return (None,)
    items = queues.tables.items(job.event_list, after, MAX_EVENTS) if job.emitted > after else ()
    found = [(item.number, item.data) for item in items]
    over = job.state in ENDED or job.state is DEAD
    return (found,) if found or over else None


def sent(queues: Queues, id: int, number: int) -> tuple[bool | None, float]:
    """Return whether a message was taken; None: it may be taken yet, for so many seconds.

    They are those of the lease of the run: without a lease, it takes no message any more, whoever
    gives its job back and whenever.
    """
    job = queues.known(id)
    items = () if job is None else queues.tables.items(job.message_list, number - 1, 1)
    item = next(iter(items), None)
    if job is None or item is None or item.number != number:
        return False, 0.0
    if item.taken:
        return True, 0.0
    info = queues.tables.of(INSTANCES).get(job.instance or "")
    left = 0.0 if info is None else info.lease_until - queues.now
    return (None, left) if left > 0 else (False, 0.0)


def receive(
    queues: Queues, id: int, fence: int, after: int
) -> tuple[tuple[int, str] | None] | None:
    """Take the next message to a run, in a tuple, or (None,): the run is lost; None: none yet."""
    job = queues.run_of(id, fence)
    if job is None:
        return (None,)
    for item in queues.tables.items(job.message_list, after, 1):
        if not item.taken:
            queues.tables.append(job.message_list, ListItem(item.number, item.data, item.tag))
            queues.news.append((job.id, None))
        return ((item.number, item.data),)
    return None
