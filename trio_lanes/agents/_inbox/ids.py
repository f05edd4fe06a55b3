"""The ids of the messages that an inbox was given lately. Time is given in."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, final

from .receipt import Receipt

SAME_FOR: Final = 300.0
"""Seconds in which an id means the same message."""


@final
class KnownIds:
    """Which receipt an id has, for five minutes."""

    def __init__(self) -> None:
        self._known: Final[dict[Hashable, tuple[float, Receipt]]] = {}  # oldest first

    def add(self, receipt: Receipt, now: float) -> None:
        """``receipt`` was offered, with an id that is not known or without one."""
        if receipt.id is not None:
            self._known[receipt.id] = now, receipt

    def find(self, id: Hashable, now: float) -> Receipt | None:
        """The receipt of the message that ``id`` means already."""
        known = self._known
        while known:
            oldest = next(iter(known))
            if now - known[oldest][0] < SAME_FOR:
                break
            del known[oldest]
        return None if id is None or id not in known else known[id][1]
