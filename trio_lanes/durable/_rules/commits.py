"""`Commits`: what a store object notes of its commits."""

from __future__ import annotations

from time import monotonic
from typing import Final, final

from .._contract.records import StoreActivity

MINUTE: Final = 60.0


@final
class Commits:
    """The commits of a store object since it was opened. Only one thread notes them.

    Attributes:
      made: how many there were.
    """

    def __init__(self) -> None:
        self.made = 0
        self._longest: dict[int, float] = {}  # {minute of the monotonic clock: the longest wait}

    def waited(self, seconds: float) -> None:
        """Note a wait for the lock of the store, which ends now."""
        minute = int(monotonic() // MINUTE)
        longest = {at: wait for at, wait in self._longest.items() if at >= minute - 1}
        longest[minute] = max(seconds, longest.get(minute, 0.0))
        self._longest = longest  # as a whole, since another thread reads it

    def activity(self) -> StoreActivity:
        """Return the counts, and the longest wait of this minute and the one before."""
        minute, longest = int(monotonic() // MINUTE), self._longest
        waits = (wait for at, wait in longest.items() if at >= minute - 1)
        return StoreActivity(commits=self.made, longest_wait=max(waits, default=0.0))
