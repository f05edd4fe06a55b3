"""Whether the lanes still take work: open, closing, or shut.

While they close, new work from outside is refused, and running jobs may submit what they need to
end. Once they are shut nothing starts any more, and whatever waits has been told.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, final

import trio

from .._waiting.current import jobs_here
from .._config.errors import LanesClosedError
from .._actors.state import RUNNING

if TYPE_CHECKING:
    from .scheduler import Scheduler

logger: Final = logging.getLogger("trio_lanes")


@final
class Closing:
    """The door of one `Lanes`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler: Final = scheduler
        self.is_open = True  # whether new work is taken from anywhere
        self._told: LanesClosedError | None = None  # what new work is told, when it is not
        self._refused = 0  # submissions
        self.begun: Final = trio.Event()
        self.shut = False  # whether nothing at all starts any more

    def error(self) -> LanesClosedError:
        """A new error that says why work is refused."""
        told = self._told
        assert told is not None
        return LanesClosedError(told.reason, told.retry_after)

    @property
    def inside(self) -> bool:
        """Whether the current task is inside a running job of these lanes."""
        return any(
            job._keeper is self._scheduler and job._state is RUNNING
            for job in jobs_here(self._scheduler.running)
        )

    def check(self) -> None:
        """Refuse a submission by the current task, unless that is inside a running job."""
        if not self.shut and self.inside:
            return
        self._refused += 1
        if self._refused == 1:
            logger.warning("refusing new work: %s", self._told)
        raise self.error()

    def close(self, reason: str, retry_after: float | None = None) -> None:
        """Refuse new work from outside from now on."""
        if self.is_open:
            scheduler = self._scheduler
            with scheduler.transition():
                self._told = LanesClosedError(reason, retry_after)  # first: threads look, too
                self.is_open = False
                self.begun.set()
                self._refuse_entrants(by_jobs=False)
                if scheduler.hooks.lanes_closing:
                    scheduler.hooks.call(scheduler.hooks.lanes_closing, reason, retry_after)

    def shut_down(self, reason: str) -> None:
        """Start nothing any more: whatever waits settles with `LanesClosedError`."""
        if not self.shut:
            scheduler = self._scheduler
            with scheduler.transition():
                self.shut = True
                self.close(reason)
                self._refuse_entrants(by_jobs=True)
                for lane in [*scheduler.lanes.values()]:
                    scheduler.withdraw_all(lane.waiting_jobs(), lambda job: self.error())
                # Or the lanes could not end before the last pause is over and all rates refilled.
                scheduler.timers.stop()
                for actor in scheduler.actors():
                    scheduler.touch(actor)  # it may go now
                for lane in scheduler.lanes.values():
                    lane.returning.update(dict.fromkeys(lane.returning, True))
                    if scheduler.broken is not None:
                        lane.let_go()  # which its next step would do

    def _refuse_entrants(self, *, by_jobs: bool) -> None:
        for actor in self._scheduler.actors():
            for entrant in list((actor.room_line or {}).values()):
                # One that is told may cancel another, which then stands in line no more.
                is_there = entrant.job in (actor.room_line or {})
                if is_there and (by_jobs or not entrant.inside):
                    self._scheduler.lines.refuse(entrant, self.error())
