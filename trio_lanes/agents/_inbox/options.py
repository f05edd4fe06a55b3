"""Checks of the options of an inbox, and the statistics that it returns."""

from __future__ import annotations

import math
import sys
from typing import Any, final

import attrs

from .receipt import SettledKind


@final
@attrs.frozen
class InboxStatistics:
    """The state of an inbox at one moment, and the number of messages per outcome."""

    offered: int
    """Messages that were posted. Neither a post that raised nor a post with a known id counts."""
    waiting: int
    """Messages in the queue."""
    in_turn: int
    """Messages that the active turn was started with."""
    settled: dict[SettledKind, int]
    """Messages per outcome. ``waiting``, ``in_turn`` and these numbers add up to ``offered``."""


def check_cap(value: Any) -> int | float:
    """Return ``value`` if it is a valid ``cap``: a whole number from 1 up, or `math.inf`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"cap must be a whole number, not {value!r}")
    if value != math.inf and (not isinstance(value, int) or value < 1):
        raise ValueError(f"cap must be a whole number from 1 up, got {value!r}")
    return value


def check_seconds(field: str, value: Any, most: float) -> float:
    """Return ``value`` if it is a number of seconds from 0 to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field} must be a number of seconds, not {value!r}")
    if not 0 <= value <= min(most, sys.float_info.max) and value != most:
        raise ValueError(f"{field} must be seconds from 0 up that fit a float, got {value!r}")
    return value
