"""The states of a durable job. Everything that may change one is the table in this module.

A job is accepted as WAITING, or as PARKED if it is not due yet. A claim, and nothing else, takes
it to RUNNING. It leaves RUNNING under the fence of that claim: to an end, to PARKED (another
attempt, later), or back to WAITING (it was given back, or its instance is no more). DEAD is kept
for a person, who takes it back to WAITING or away. The ends are forgotten after ``result_ttl``;
until then a person can take a FAILED one back to WAITING, or away.

All of it happens in one store's transactions, so a process that dies leaves a job in one of these
states, and never in between.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final


class DurableState(enum.Enum):
    """Where a durable job is in its life."""

    WAITING = "waiting"
    """It has a place in line, and has not been claimed."""
    PARKED = "parked"
    """It is for later: delayed, or between two attempts."""
    RUNNING = "running"
    """One instance has claimed it, under a fence."""
    SUCCEEDED = "succeeded"
    """Its handler returned."""
    FAILED = "failed"
    """It raised `NoRetry`, or an exception that is not retried. `DurableLanes.requeue` runs it."""
    DEAD = "dead"
    """Its attempts or crashes are used up; it is kept for a person."""
    CANCELLED = "cancelled"
    """It was cancelled or cleared."""

    # there is one of each; that of Enum is written in Python
    __hash__: Callable[[enum.Enum], int] = object.__hash__  # type: ignore[assignment]  # unbound


WAITING: Final = DurableState.WAITING
PARKED: Final = DurableState.PARKED
RUNNING: Final = DurableState.RUNNING
SUCCEEDED: Final = DurableState.SUCCEEDED
FAILED: Final = DurableState.FAILED
DEAD: Final = DurableState.DEAD
CANCELLED: Final = DurableState.CANCELLED

TRANSITIONS: Final[Mapping[DurableState, frozenset[DurableState]]] = {
    WAITING: frozenset({RUNNING, CANCELLED}),
    PARKED: frozenset({WAITING, CANCELLED}),
    RUNNING: frozenset({SUCCEEDED, FAILED, DEAD, CANCELLED, PARKED, WAITING}),
    DEAD: frozenset({WAITING}),
    SUCCEEDED: frozenset(),
    FAILED: frozenset({WAITING}),
    CANCELLED: frozenset(),
}

ENDED: Final = frozenset({SUCCEEDED, FAILED, CANCELLED})
"""The states of what is forgotten after a time. Only a person takes a FAILED job out of them."""


def check_transition(before: DurableState, after: DurableState) -> None:
    """Nothing changes a state without asking this.

    Raises:
      RuntimeError: if the table has no such transition, which is a bug in the store.
    """
    if after not in TRANSITIONS[before]:
        raise RuntimeError(f"a job cannot go from {before.value} to {after.value}")
