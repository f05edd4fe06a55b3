"""What an inbox is told, checked where it was given; and what it tells of itself."""

from __future__ import annotations

import math
import sys
from typing import Any, final

import attrs

from .receipt import SettledKind


@final
@attrs.frozen
class InboxStatistics:
    """An inbox at one moment, and what became of all messages that it was offered."""

    offered: int
    """Messages that were posted; neither those that were refused by an exception, nor those whose
    id was known."""
    waiting: int
    """Messages in line."""
    in_turn: int
    """Messages that the active turn was started with."""
    settled: dict[SettledKind, int]
    """How many became what. Their sum and the two above are ``offered``."""


def check_cap(value: Any) -> int | float:
    """How many messages may wait: at least one, or `math.inf`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"cap must be a whole number, not {value!r}")
    if value != math.inf and (not isinstance(value, int) or value < 1):
        raise ValueError(f"cap must be a whole number from 1 up, got {value!r}")
    return value


def check_seconds(field: str, value: Any, most: float) -> float:
    """A length of time from 0 up, and no longer than ``most``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field} must be a number of seconds, not {value!r}")
    if not 0 <= value <= min(most, sys.float_info.max) and value != most:
        raise ValueError(f"{field} must be seconds from 0 up that fit a float, got {value!r}")
    return value
