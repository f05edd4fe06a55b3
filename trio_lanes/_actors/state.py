"""The states of a job, and the table of their transitions. Only `advance` changes a state.

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
    """The state of a job: ``WAITING``, ``RUNNING``, or one of three ends."""

    WAITING = "waiting"
    """It is accepted and has not started."""
    RUNNING = "running"
    """It has started: its body is about to be called, or has not ended."""
    SUCCEEDED = "succeeded"
    """Its body returned."""
    FAILED = "failed"
    """Its body raised, or was ended by its ``timeout`` or ``idle_timeout``."""
    CANCELLED = "cancelled"
    """It was cancelled before it started, its body was ended by a cancellation, or it was reset."""

    _following: tuple[JobState, ...]  # its row of the table below


TRANSITIONS: Final[Mapping[JobState, tuple[JobState, ...]]] = {
    JobState.WAITING: (JobState.RUNNING, JobState.CANCELLED),
    JobState.RUNNING: (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED),
    JobState.SUCCEEDED: (),
    JobState.FAILED: (),
    JobState.CANCELLED: (),
}
for _state, _row in TRANSITIONS.items():
    _state._following = _row  # looking it up in the table calls Enum's own hash, in Python


class Slot(enum.Enum):
    """The relation of a job to the slot of its global lane, and of the lane's group.

    These are the words of slots. The methods without a module are those of `LaneActor`::

        word       from, to         what happens                            where
        take       NONE -> HELD     the job starts                          take_slot
        lend       HELD -> LENT     a task of it waits without the slot     give_slot_back
        yield      the same         the user's word: `Job.yield_slot`       lending.lend
        want       LENT -> WANTED   the last such wait is over              want_slot
        regain     WANTED -> HELD   a slot came, before all waiting jobs    take_slot
        lend again WANTED -> LENT   another task of it waits, meanwhile     lend_again
        forgo      WANTED -> FORGONE  it is cancelled, and no slot can come forgo_slot
        readmit    HELD -> QUEUED   it waits as before its start            give_slot_back
        take       QUEUED -> HELD   its lane starts it again                take_slot
        want       QUEUED -> WANTED it is cancelled, and cleans up          want_slot
        cease      QUEUED -> LENT   the same, and other tasks of it lend    cease_queueing
        drop       LENT, WANTED, QUEUED, FORGONE -> NONE   it has ended     drop
        give back  HELD -> NONE     it has ended                            give_slot_back

    A session *withholds* a readmitted job (QUEUED) from the line of its lane as long as its rate
    limits or its pause stop it: the job stays QUEUED. A job that lends keeps the slot of its
    session in all these states.
    """

    NONE = "none"
    """It has not started, or has ended."""
    HELD = "held"
    """It has the slot: a token of the lane's limiter, and a token of the group."""
    LENT = "lent"
    """It has lent the slot, and will want it back."""
    WANTED = "wanted"
    """It wants the slot back, before all jobs that wait."""
    QUEUED = "queued"
    """It is to be readmitted, and waits as if it had not started."""
    FORGONE = "forgone"
    """It is cancelled, no slot could come for it, and it ends without one."""


# Bound once: looking a member up on the class costs as much as the rest of `advance`.
WAITING: Final = JobState.WAITING
RUNNING: Final = JobState.RUNNING
SUCCEEDED: Final = JobState.SUCCEEDED
FAILED: Final = JobState.FAILED
CANCELLED: Final = JobState.CANCELLED


NONE: Final = Slot.NONE
HELD: Final = Slot.HELD
LENT: Final = Slot.LENT
WANTED: Final = Slot.WANTED
QUEUED: Final = Slot.QUEUED
FORGONE: Final = Slot.FORGONE


class _Stateful(Protocol):
    _state: JobState


def advance(job: _Stateful, state: JobState) -> None:
    """Take ``job`` to ``state``. Nothing else assigns a job's state.

    Raises:
      RuntimeError: if the table has no such transition, which is a bug in this library.
    """
    if state not in job._state._following:
        raise RuntimeError(f"{job!r} cannot go to {state.name}")
    job._state = state
