"""What lanes are called where many events are kept apart by name: a bounded set of labels."""

from __future__ import annotations

from typing import Final

from .._actors.job import AnyJob
from .._config.names import SESSION_PREFIX
from .._views import Lane, SessionLane

SESSIONS: Final = SESSION_PREFIX + "*"
"""The label of every session lane: there is no bound to the number of sessions."""


def job_label(job: AnyJob) -> str:
    """The label of the global lane that runs ``job``: its name, or the template it comes from."""
    return job._lane.label


def lane_label(lane: Lane | SessionLane) -> str:
    """The label of ``lane``."""
    return SESSIONS if isinstance(lane, SessionLane) else lane._actor.label
