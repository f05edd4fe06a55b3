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

    def __init__(
        self, scope: Hashable = None, known: dict[Hashable, tuple[float, Receipt]] | None = None
    ) -> None:
        self._known: Final = {} if known is None else known  # oldest first
        self._scope: Final = scope

    def within(self, scope: Hashable) -> KnownIds:
        """Return a view of the same ids, in which an id counts inside ``scope``."""
        return KnownIds(scope, self._known)

    def add(self, receipt: Receipt, now: float) -> None:
        """Remember ``receipt`` by its id. A receipt without an id is not remembered."""
        if receipt.id is not None:
            self._known[self._scope, receipt.id] = now, receipt

    def find(self, id: Hashable, now: float) -> Receipt | None:
        """Return the receipt of the recent message with this id, or None."""
        known = self._known
        while known:
            oldest = next(iter(known))
            if now - known[oldest][0] < SAME_FOR:
                break
            del known[oldest]
        key = (self._scope, id)
        return None if id is None or key not in known else known[key][1]
