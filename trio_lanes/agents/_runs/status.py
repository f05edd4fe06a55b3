"""What an application says of a run to its users. All that may change it is the table here.

The words are those of the APIs that serve runs. A run is queued, then in progress; it may wait for
an action of somebody else, and goes on from there or is queued again. ``cancelling`` is the time
between the wish and the end, which may still be a completion. The five others are ends.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, final

from trio_lanes import LaneError


@final
class RunStatus(enum.StrEnum):
    """How far a run is: four states in which it lives, and five ends.

    A member equals its own value, so it can be stored and sent as it is.
    """

    QUEUED = "queued"
    """Accepted; nothing has been done."""
    IN_PROGRESS = "in_progress"
    """It is at work."""
    REQUIRES_ACTION = "requires_action"
    """It waits for what a person or a client must do first."""
    CANCELLING = "cancelling"
    """It was asked to stop, and has not ended."""
    CANCELLED = "cancelled"
    """It was stopped."""
    FAILED = "failed"
    """It broke."""
    COMPLETED = "completed"
    """It did all that it was to do."""
    INCOMPLETE = "incomplete"
    """It ended by itself before it was through, at a limit of length for example."""
    EXPIRED = "expired"
    """Its time was over."""


_S: Final = RunStatus

RUN_TRANSITIONS: Final[Mapping[RunStatus, frozenset[RunStatus]]] = MappingProxyType(
    {
        _S.QUEUED: frozenset({_S.IN_PROGRESS, _S.CANCELLING, _S.CANCELLED, _S.FAILED, _S.EXPIRED}),
        _S.IN_PROGRESS: frozenset(
            {
                _S.REQUIRES_ACTION,
                _S.COMPLETED,
                _S.INCOMPLETE,
                _S.FAILED,
                _S.CANCELLING,
                _S.CANCELLED,
                _S.EXPIRED,
            }
        ),
        _S.REQUIRES_ACTION: frozenset(
            {
                _S.QUEUED,
                _S.IN_PROGRESS,
                _S.COMPLETED,
                _S.FAILED,
                _S.CANCELLING,
                _S.CANCELLED,
                _S.EXPIRED,
            }
        ),
        _S.CANCELLING: frozenset({_S.CANCELLED, _S.FAILED, _S.COMPLETED}),
        _S.CANCELLED: frozenset(),
        _S.FAILED: frozenset(),
        _S.COMPLETED: frozenset(),
        _S.INCOMPLETE: frozenset(),
        _S.EXPIRED: frozenset(),
    }
)
"""Where a run may go from each status; from an end, nowhere."""


class IllegalTransitionError(LaneError, RuntimeError):
    """A run was to go where the table has no way.

    Attributes:
      old: the status that it has.
      new: the status that it was to have.
    """

    def __init__(self, old: RunStatus, new: RunStatus) -> None:
        self.old: Final = old
        self.new: Final = new
        super().__init__(old, new)

    def __str__(self) -> str:
        ways = ", ".join(status for status in RunStatus if status in RUN_TRANSITIONS[self.old])
        return f"a run cannot go from {self.old} to {self.new}; " + (
            f"from {self.old} it may go to: {ways}" if ways else f"{self.old} is an end"
        )


def check_transition(old: RunStatus | str, new: RunStatus | str) -> None:
    """Return if a run may go from ``old`` to ``new``; the same status again is always allowed.

    Each may be given as its value, as read from a database. Not a checkpoint; changes nothing.

    Raises:
      IllegalTransitionError: if the table has no such way.
      ValueError: if one is no status.
    """
    old, new = RunStatus(old), RunStatus(new)
    if new is not old and new not in RUN_TRANSITIONS[old]:
        raise IllegalTransitionError(old, new)
