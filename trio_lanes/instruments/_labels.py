"""The labels of lanes in metrics and logs: a bounded set of names."""

from __future__ import annotations

from typing import Final

from trio_lanes import Lane, SessionLane

SESSIONS: Final = "session:*"
"""The label of all session lanes: the number of sessions has no bound."""


def lane_label(lane: Lane | SessionLane) -> str:
    """Return the label of a lane in a metric or a log record."""
    return SESSIONS if isinstance(lane, SessionLane) else lane.label
