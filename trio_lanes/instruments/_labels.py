"""The labels of lanes in metrics and logs: a bounded set of names."""

from __future__ import annotations

from trio_lanes import Lane, SessionLane

from .._config.names import ALL_SESSIONS


def lane_label(lane: Lane | SessionLane) -> str:
    """Return the label of a lane in a metric or a log record: one for all sessions."""
    return ALL_SESSIONS if isinstance(lane, SessionLane) else lane.label
