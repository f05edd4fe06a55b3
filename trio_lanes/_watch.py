"""Waiting for lanes to be idle, empty or to have room.

Conditions are looked at after each transition, and only while somebody waits for one. Whoever
waits for the same condition waits in one place, so a thousand waiters cost a transition what one
does. Inside a job, those that wait for that job do not count, whether they began to before or
begin to meanwhile; so conditions are looked at as well when a job begins to wait for another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Final, final

import attrs
import trio
from trio.lowlevel import ParkingLot, enable_ki_protection

from ._job import AnyJob


@final
@attrs.frozen(eq=False)
class Watch:
    """A condition, and who waits for it."""

    condition: Callable[[], bool]
    job: AnyJob | None = None
    """The job inside which it is waited for."""
    awaits: Callable[[AnyJob], bool] = lambda job: False
    """Whether that is a wait for the end of a job, which runs."""
    lot: ParkingLot = attrs.field(factory=ParkingLot, init=False)


@final
class Watches:
    """The conditions that somebody waits for now."""

    def __init__(self) -> None:
        self._watched: Final[dict[Hashable, Watch]] = {}
        self.watched: Final = self._watched.values()

    @enable_ki_protection
    async def wait(self, key: Hashable, watch: Watch) -> None:
        """Wait until the condition has been true after a transition, or is now. A checkpoint.

        Equal keys must mean the same condition. Cancelling it leaves nothing behind.
        """
        if watch.condition():
            await trio.lowlevel.checkpoint()
            return
        watch = self._watched.setdefault(key, watch)
        try:
            if watch.job is not None:
                self.check()  # those for whom its job waits leave that out from now on
            await watch.lot.park()
        finally:
            if not watch.lot and self._watched.get(key) is watch:
                del self._watched[key]

    def waiting_for(self, job: AnyJob, known: Collection[AnyJob]) -> set[AnyJob]:
        """The jobs, but for those ``known``, inside which the end of ``job`` is waited for here."""
        return {
            watch.job
            for watch in self._watched.values()
            if watch.job is not None and watch.job not in known and watch.awaits(job)
        }

    def check(self) -> None:
        """Wake whoever waits for what is true now."""
        for key, watch in list(self._watched.items()):
            if watch.condition() and watch.lot:
                del self._watched[key]
                watch.lot.unpark_all()
