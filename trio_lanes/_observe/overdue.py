"""Overdue bodies: bodies that outlive their cancellation by their lane's ``overdue_after`` seconds.

A body is overdue once, counted from the first of its cancellations: by `Job.cancel`, a deadline, a
reset, or the end of the lanes. Its lane knows it until it ends, or is given up by a reset; the log
has a line, and the hook is called.

A body that never blocks is not watched, and all others share one timer: it is set for the first
body that might be overdue, and stays when that ends in time. So it mostly costs a body with a
timeout only an entry in a table. When it goes off, it looks at all of them, and is set for the next
that might be overdue. It is not a timer of the lanes, which stop when the lanes are shut: a body
may outlive that. It keeps the nursery open no longer than the bodies do.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, final

import trio

from .._actors.job import AnyJob
from .._actors.lane import LaneActor
from .._actors.state import RUNNING
from .._queue.timers import Timer, Timers
from .hooks import Hooks

logger: Final = logging.getLogger("trio_lanes")

_DEADLINE: Final = math.inf
_REPORTED: Final = -math.inf


@final
class Overdue:
    """The bodies of one `Lanes` that were cancelled, or that have a deadline."""

    def __init__(
        self, hooks: Hooks, spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
    ) -> None:
        self._hooks: Final = hooks
        self._timers: Final = Timers(spawn)
        self._timer: Timer | None = None
        # Until their bodies have ended; _DEADLINE and _REPORTED stand for times
        self.watched: Final[dict[AnyJob, float]] = {}  # {job: when it was cancelled}

    def expect(self, job: AnyJob) -> None:
        """Watch ``job``, which has blocked, by its deadline, which may be a new one."""
        if self.watched.setdefault(job, _DEADLINE) == _DEADLINE:
            self._set(job._deadline + job._lane.config.overdue_after)

    def cancel(self, jobs: Iterable[AnyJob]) -> None:
        """Watch ``jobs``, which run and are about to be cancelled."""
        now = trio.current_time()
        for job in jobs:
            if not job.cancel_called and self.watched.get(job, _DEADLINE) == _DEADLINE:
                self.watched[job] = now
                self._set(now + job._lane.config.overdue_after)

    def ended(self, job: AnyJob) -> None:
        """The body of ``job`` has ended, or never will begin."""
        if self.watched.pop(job, None) == _REPORTED:
            job._lane.forget_overdue(job)
        if not self.watched and self._timer is not None:
            self._timer.cancel()

    def tell_late(self, instrument: object, lanes: Iterable[LaneActor]) -> None:
        """Call the hook of ``instrument``, which was added now, for the jobs that are overdue."""
        hooks = [hook for hook in self._hooks.job_overdue if hook[0] is instrument]
        now = trio.current_time()
        for lane in [*lanes] if hooks else ():
            for job, since in [*lane.overdue.items()]:
                self._hooks.call(hooks, job, now - since)

    def _set(self, when: float) -> None:
        """Look at the bodies at ``when``, if not before."""
        timer = self._timer
        if when < (timer.when if timer is not None and timer.is_set else math.inf):
            self._timer = self._timers.call_at(when, self._look)
            if timer is not None:
                timer.cancel()

    def _look(self) -> None:
        now, soonest = trio.current_time(), math.inf
        found: dict[LaneActor, list[tuple[AnyJob, float]]] = {}
        for job, since in self.watched.items():
            if since != _REPORTED:
                begin = job._deadline if since == _DEADLINE else since
                if (due := begin + job._lane.config.overdue_after) <= now:
                    found.setdefault(job._lane, []).append((job, begin))
                else:
                    soonest = min(soonest, due)
        self._set(soonest)
        for lane, jobs in found.items():
            for job, since in jobs:
                self.watched[job] = _REPORTED
                if job._state is RUNNING:  # else it was reset
                    lane.note_overdue(job, since)
            first, since = jobs[0]
            logger.warning(
                "lane %r: the body of job %d %r%s goes on %.1f s after it was asked to stop",
                lane.name,
                first.id,
                first.name,
                f" (and of {len(jobs) - 1} others)" if jobs[1:] else "",
                now - since,
            )
        for jobs in found.values():
            for job, since in jobs:
                self._hooks.call(self._hooks.job_overdue, job, now - since)
