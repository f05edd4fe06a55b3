"""The share of each user in the room of the gateway: a user that floods leaves room to others."""

from __future__ import annotations

from collections import Counter
from typing import Final

from trio_lanes import LaneFullError, Lanes


class Shares:
    """How many requests of each user have not ended. ``lane`` is the lane of turns."""

    def __init__(self, lanes: Lanes, lane: str) -> None:
        self._lanes: Final = lanes
        self._lane: Final = lane
        self._unended: Final[Counter[str]] = Counter()

    def check(self, user: str | None) -> None:
        """Raise `LaneFullError` if the user has half of the places in which requests wait."""
        config = self._lanes.lane(self._lane).config
        if user and self._unended[user] >= config.concurrency + config.max_waiting / 2:
            raise LaneFullError(self._lane, config.max_waiting)

    def begun(self, user: str | None) -> None:
        """A request of the user has its place."""
        if user:
            self._unended[user] += 1

    def ended(self, user: str | None) -> None:
        """A request of the user has no place any more."""
        if user:
            self._unended[user] -= 1
            if not self._unended[user]:
                del self._unended[user]
