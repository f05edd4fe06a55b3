"""The ids of recent messages of an inbox. The caller passes the time in."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, final

from .receipt import Receipt

SAME_FOR: Final = 300.0
"""Seconds for which an id stands for the same message."""


@final
class KnownIds:
    """The receipts of recent messages by id; each is kept for five minutes."""

    def __init__(self) -> None:
        self._known: Final[dict[Hashable, tuple[float, Receipt]]] = {}  # oldest first

    def add(self, receipt: Receipt, now: float) -> None:
        """Remember ``receipt`` by its id. A receipt without an id is not remembered."""
        if receipt.id is not None:
            self._known[receipt.id] = now, receipt

    def find(self, id: Hashable, now: float) -> Receipt | None:
        """Return the receipt of the recent message with this id, or None."""
        known = self._known
        while known:
            oldest = next(iter(known))
            if now - known[oldest][0] < SAME_FOR:
                break
            del known[oldest]
        return None if id is None or id not in known else known[id][1]
