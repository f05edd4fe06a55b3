"""The states of a durable job, and the table of their transitions.

* A job is accepted as WAITING, or as PARKED if it is not due yet.
* Only a claim takes a job to RUNNING. The job leaves RUNNING under the fence of that claim: to an
  end, to PARKED (another attempt, later), or back to WAITING (the run was given back, or its
  instance has died).
* A job that no claim has taken by the time of its ``expires`` becomes EXPIRED. After a claim it
  never does.
* The store keeps a DEAD job until a person requeues it (WAITING) or purges it.
* The store forgets an ended job after ``result_ttl``. Until then a person can requeue or purge a
  FAILED job.

Each transition happens inside one transaction of the store. So a process that dies leaves each job
in one of these states, never between two of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final


class DurableState(enum.Enum):
    """The state of a durable job."""

    WAITING = "waiting"
    """The job is queued; no instance has claimed it."""
    PARKED = "parked"
    """The job is delayed, or between two attempts."""
    RUNNING = "running"
    """An instance has claimed the job, under a fence."""
    SUCCEEDED = "succeeded"
    """The handler returned."""
    FAILED = "failed"
    """The handler raised `NoRetry`, or an exception that is not retried. `DurableLanes.requeue`
    runs the job again."""
    DEAD = "dead"
    """The attempts or crashes of the job are used up; it is kept until ``requeue`` or ``purge``."""
    CANCELLED = "cancelled"
    """The job was cancelled or cleared."""
    EXPIRED = "expired"
    """No run of the job had begun by the time that its ``expires`` gave."""

    # the members are singletons, so identity is enough; the hash of Enum is written in Python
    __hash__: Callable[[enum.Enum], int] = object.__hash__  # type: ignore[assignment]  # unbound


WAITING: Final = DurableState.WAITING
PARKED: Final = DurableState.PARKED
RUNNING: Final = DurableState.RUNNING
SUCCEEDED: Final = DurableState.SUCCEEDED
FAILED: Final = DurableState.FAILED
DEAD: Final = DurableState.DEAD
CANCELLED: Final = DurableState.CANCELLED
EXPIRED: Final = DurableState.EXPIRED

TRANSITIONS: Final[Mapping[DurableState, frozenset[DurableState]]] = {
    WAITING: frozenset({RUNNING, CANCELLED, EXPIRED}),
    PARKED: frozenset({WAITING, CANCELLED, EXPIRED}),
    RUNNING: frozenset({SUCCEEDED, FAILED, DEAD, CANCELLED, PARKED, WAITING}),
    DEAD: frozenset({WAITING}),
    SUCCEEDED: frozenset(),
    FAILED: frozenset({WAITING}),
    CANCELLED: frozenset(),
    EXPIRED: frozenset(),
}

ENDED: Final = frozenset({SUCCEEDED, FAILED, CANCELLED, EXPIRED})
"""The states of jobs that the store forgets after ``result_ttl``."""
WITHOUT_RESULT: Final = frozenset({FAILED, DEAD, CANCELLED, EXPIRED})
"""The ends after which a submission with ``key_after="failure"`` begins anew."""
DEAD_LETTERS: Final = frozenset({DEAD, FAILED})
"""The states of jobs that can be requeued or purged."""


def check_transition(before: DurableState, after: DurableState) -> None:
    """Check that a job may go from one state to another.

    Raises:
      RuntimeError: if the table has no such transition, which is a bug in the store.
    """
    if after not in TRANSITIONS[before]:
        raise RuntimeError(f"a job cannot go from {before.value} to {after.value}")
