"""Waiting for lanes to be idle, empty or to have room.

Conditions are looked at after each transition, and only while somebody waits for one. Whoever
waits for the same condition waits in one place, so a thousand waiters cost a transition what one
does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, final

import trio
from trio.lowlevel import ParkingLot


@final
class Watches:
    """The conditions that somebody waits for now."""

    def __init__(self) -> None:
        self._watched: Final[dict[Hashable, tuple[Callable[[], bool], ParkingLot]]] = {}

    def __len__(self) -> int:
        return len(self._watched)

    async def wait(self, key: Hashable, condition: Callable[[], bool]) -> None:
        """Wait until ``condition()`` has been true after a transition, or is now. A checkpoint.

        Equal keys must mean the same condition. Cancelling it leaves nothing behind.
        """
        if condition():
            await trio.lowlevel.checkpoint()
            return
        _, lot = self._watched.setdefault(key, (condition, ParkingLot()))
        try:
            await lot.park()
        finally:
            if not lot and self._watched.get(key, (None, None))[1] is lot:
                del self._watched[key]

    def check(self) -> None:
        """Wake whoever waits for what is true now."""
        for key, (condition, lot) in list(self._watched.items()):
            if condition():
                del self._watched[key]
                lot.unpark_all()
