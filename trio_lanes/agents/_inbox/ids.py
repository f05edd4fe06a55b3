"""The ids of recent messages of an inbox. The caller passes the time in.

Of a message that has settled, its outcome alone is kept: kind, result and error. The entries are
tuples, which cost least, also of the garbage collector.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, TypeAlias, final

from .receipt import Receipt, Settled, SettledKind

SAME_FOR: Final = 300.0
"""Seconds for which an id stands for the same message."""

_Entry: TypeAlias = tuple[float, Receipt] | tuple[float, SettledKind, Any, BaseException | None]


@final
class KnownIds:
    """The recent messages by session and id; each is kept for five minutes from its post.

    Older ones are forgotten at the next call, whatever the message is.
    """

    def __init__(self) -> None:
        self._known: Final[dict[Hashable, _Entry]] = {}  # oldest first

    def add(self, receipt: Receipt, now: float) -> None:
        """Remember ``receipt`` by its id. A receipt without an id is not remembered."""
        if receipt.id is not None:
            self._known[receipt._inbox.session, receipt.id] = now, receipt

    def settle(self, receipt: Receipt, settled: Settled, now: float) -> None:
        """Keep the outcome of a message in place of its receipt."""
        self.forget_old(now)
        key = (receipt._inbox.session, receipt.id)
        entry = self._known.get(key)
        if entry is not None and entry[1] is receipt:
            self._known[key] = entry[0], settled.kind, settled.result, settled.error

    def find(self, session: str, id: Hashable, now: float) -> Receipt | Settled | None:
        """Return the receipt of the recent message with this id, or its outcome, or None."""
        self.forget_old(now)
        entry = None if id is None else self._known.get((session, id))
        if entry is None:
            return None
        return entry[1] if len(entry) == 2 else Settled(*entry[1:])

    def forget_old(self, now: float) -> None:
        """Forget the messages whose time is over."""
        known = self._known
        while known:
            oldest = next(iter(known))
            if now - known[oldest][0] < SAME_FOR:
                break
            del known[oldest]
