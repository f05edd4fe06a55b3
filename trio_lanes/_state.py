"""The states of a job. Everything that may change one is the table in this module.

A job is accepted as WAITING. It leaves that state once: to RUNNING when a lane gives it a slot,
or to CANCELLED when it is withdrawn, cleared, out of time or refused. A running job leaves
RUNNING once, when its body has ended or when it is reset. Since "started or cleared?" is decided
here, synchronously, a job that was granted its slot in the tick of a clear is either untouched
or never called.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, Protocol


class JobState(enum.Enum):
    """Where a job is in its life: ``WAITING``, ``RUNNING``, or one of three ends."""

    WAITING = "waiting"
    """Accepted; it has a place in line and has not been called."""
    RUNNING = "running"
    """It holds its slots. Its body is about to be called, or has not ended."""
    SUCCEEDED = "succeeded"
    """Its body returned."""
    FAILED = "failed"
    """Its body raised, or outlived its ``timeout`` or ``idle_timeout``."""
    CANCELLED = "cancelled"
    """It was cancelled: before it started, or while it ran and that ended it."""

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is a Python function


TRANSITIONS: Final[Mapping[JobState, frozenset[JobState]]] = {
    JobState.WAITING: frozenset({JobState.RUNNING, JobState.CANCELLED}),
    JobState.RUNNING: frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}

# Bound once: looking a member up on the class costs as much as the rest of a transition.
WAITING: Final = JobState.WAITING
RUNNING: Final = JobState.RUNNING
SUCCEEDED: Final = JobState.SUCCEEDED
FAILED: Final = JobState.FAILED
CANCELLED: Final = JobState.CANCELLED


class _Stateful(Protocol):
    _state: JobState


def advance(job: _Stateful, state: JobState) -> None:
    """Take ``job`` to ``state``. Nothing else assigns a job's state.

    Raises:
      RuntimeError: if the table has no such transition, which is a bug in this library.
    """
    if state not in TRANSITIONS[job._state]:
        raise RuntimeError(f"{job!r} cannot go to {state.name}")
    job._state = state
