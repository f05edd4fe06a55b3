"""`JobRecord`: a job as a store of tables keeps it."""

from __future__ import annotations

from typing import final

import attrs

from .._contract.state import DurableState


@final
@attrs.define
class JobRecord:
    """A job, as one row of a table.

    Attributes:
      place: the place in the queue of its session, from acceptance to the end, also while the job
        runs. None: the job is in no queue (it has ended, is not due yet, is dead, or has no
        session).
      ready: the place in the ready list of its lane, priority and handler's name. Only a job that
        may be claimed has one. Places are unique in a store, so the lists of several handlers can
        be merged.
      shelf: why claims skip the job on the ready list, where it keeps its place; 0: they do not.
    """

    id: int
    name: str
    lane: str
    session: str | None
    priority: int
    payload: str
    timeout: float
    state: DurableState
    submitted_at: float
    key: str | None = None
    digest: str | None = None
    """A hash of the payload; only of a job with a key."""
    retry: str | None = None
    cost: str | None = None
    """What each start takes from rates, as JSON text: {unit: amount}; None: one request."""
    headers: str | None = None
    run_at: float | None = None
    """The Unix time at which the job is due, if its submitter gave one."""
    owner: str | None = None
    place: int | None = None
    ready: int | None = None
    shelf: int = 0
    due: float | None = None
    """When a parked job is due; of a job that waits or runs, when it was, or when its session was
    free; when the store forgets an ended job."""
    why: str | None = None
    """By what it was due: ``"delay"``, ``"retry"`` or ``"session"``; None: at once."""
    attempts: int = 0
    crashes: int = 0
    crashes_alone: int = 0
    """How many of the crashes happened while the process ran no other job."""
    crashed_with: int = 0
    """How many jobs, this one included, ran in the process that crashed last; 0 again as soon as
    a run ends without a crash."""
    fence: int = 0
    instance: str | None = None
    lent: int = 0
    """Whether a running job holds its slot, has lent it, or wants it back."""
    cancel: str | None = None
    """The recorded cancellation, as JSON text."""
    checkpoint: str | None = None
    outcome: str | None = None
    error: str | None = None
    """The type of the error of a dead or failed job; of every other job None."""
    sent: int = 0
    """The number of the last message to the job."""
    emitted: int = 0
    """The number of the job's last event."""
    expires: float | None = None
    """When the job ends as EXPIRED; None: never, or it was claimed, or has ended."""
    coalesce: str | None = None
    """The key of its `Coalesce`, until the job has ended or is dead."""
    history: str = ""
    """The last runs; see `history`."""
    party: str | None = None
    """For which owner a ready job of a fair lane stands; None: it takes no turns. See `fair`."""
    ring: str = ""
    """In which ring of its ready list it is."""

    @property
    def event_list(self) -> str:
        """The name of the list of its events."""
        return f"events {self.id}"

    @property
    def message_list(self) -> str:
        """The name of the list of the messages to it."""
        return f"messages {self.id}"


def place_on_list(job: JobRecord) -> int:
    """Return the place of a job that is on a ready list."""
    assert job.ready is not None
    return job.ready


ON_LIST, BEHIND_OWNER, SESSION_PAUSED = 0, 1, 2
"""The values of `JobRecord.shelf`: not set aside; another job of its owner is before it; the
session is paused."""

HOLDS_SLOT, LENT_SLOT, WANTS_SLOT = 0, 1, 2
"""The values of `JobRecord.lent`."""
