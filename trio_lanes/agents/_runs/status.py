"""The status of a run as an application shows it to users, and the table of its transitions.

The names are the names of the common APIs for runs. A run is queued, then in progress. It may wait
for an action of a person or a client; afterwards it goes on or is queued again. ``cancelling`` is
the time between the request to stop and the end; the run may still complete. The other five
statuses are final.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, final

from trio_lanes import LaneError


@final
class RunStatus(enum.StrEnum):
    """The status of a run: four active statuses and five final statuses.

    A member equals its own value, so it can be stored and sent as it is.
    """

    QUEUED = "queued"
    """The run was accepted and has not started."""
    IN_PROGRESS = "in_progress"
    """The run is active."""
    REQUIRES_ACTION = "requires_action"
    """The run waits for an action of a person or a client."""
    CANCELLING = "cancelling"
    """The run was asked to stop, and has not ended."""
    CANCELLED = "cancelled"
    """The run was stopped."""
    FAILED = "failed"
    """The run ended with an error."""
    COMPLETED = "completed"
    """The run did all its work."""
    INCOMPLETE = "incomplete"
    """The run ended by itself before its work was complete, for example at a length limit."""
    EXPIRED = "expired"
    """The time of the run ran out."""


_S: Final = RunStatus
_WAYS_TO_STOP: Final = frozenset({_S.CANCELLING, _S.CANCELLED, _S.FAILED, _S.EXPIRED})
"""Where a run may go at any time until it is asked to stop or has ended."""

RUN_TRANSITIONS: Final[Mapping[RunStatus, frozenset[RunStatus]]] = MappingProxyType(
    {
        **dict.fromkeys(RunStatus, frozenset()),
        _S.QUEUED: _WAYS_TO_STOP | {_S.IN_PROGRESS},
        _S.IN_PROGRESS: _WAYS_TO_STOP | {_S.REQUIRES_ACTION, _S.COMPLETED, _S.INCOMPLETE},
        _S.REQUIRES_ACTION: _WAYS_TO_STOP | {_S.QUEUED, _S.IN_PROGRESS, _S.COMPLETED},
        _S.CANCELLING: frozenset({_S.CANCELLED, _S.FAILED, _S.COMPLETED}),
    }
)
"""The allowed next statuses of each status; a final status has none."""


class IllegalTransitionError(LaneError, RuntimeError):
    """The transition of a run is not in the table.

    Attributes:
      old: the present status.
      new: the requested status.
    """

    def __init__(self, old: RunStatus, new: RunStatus) -> None:
        self.old: Final = old
        self.new: Final = new
        super().__init__(old, new)

    def __str__(self) -> str:
        following = [status for status in RunStatus if status in RUN_TRANSITIONS[self.old]]
        return f"a run cannot go from {self.old} to {self.new}; " + (
            f"allowed from {self.old}: {', '.join(following)}"
            if following
            else f"{self.old} is final"
        )


def check_transition(old: RunStatus | str, new: RunStatus | str) -> None:
    """Return if a run may go from ``old`` to ``new``; otherwise raise.

    A transition to the same status is always allowed. Each status may be given as its value, as
    read from a database. Not a checkpoint; changes nothing.

    Raises:
      IllegalTransitionError: if the table does not have the transition.
      ValueError: if ``old`` or ``new`` is not a status.
    """
    old, new = RunStatus(old), RunStatus(new)
    if new is not old and new not in RUN_TRANSITIONS[old]:
        raise IllegalTransitionError(old, new)
