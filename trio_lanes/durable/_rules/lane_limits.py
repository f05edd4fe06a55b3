"""The limits of a lane: its own limits, or the limits of the longest template that matches it."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ..._config.names import TEMPLATE_MARK, template_of
from .._contract.records import LaneLimit


def label_of(lanes: Mapping[str, LaneLimit], name: str) -> str | None:
    """Return the lane or template whose limits a lane has; None: the lane does not exist."""
    if name.endswith(TEMPLATE_MARK):  # not `is_template`: each end of a job comes here
        return None
    own = lanes.get(name)
    return name if own is not None and not own.pause_only else template_of(name, lanes)


def limit_of(lanes: Mapping[str, LaneLimit], name: str) -> LaneLimit | None:
    """Return the limits of a lane, with its pause; None: the lane does not exist."""
    label = label_of(lanes, name)
    if label is None:
        return None
    limit, own = lanes[label], lanes.get(name)
    if own is None or own is limit or own.paused_until is None:
        return limit
    return attrs.evolve(limit, paused_until=max(own.paused_until, limit.paused_until or 0.0))


def configured(lanes: Mapping[str, LaneLimit]) -> dict[str, LaneLimit]:
    """Return the lanes and templates that were configured."""
    return {name: limit for name, limit in lanes.items() if not limit.pause_only}
