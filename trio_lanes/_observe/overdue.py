"""Bodies that outlive their cancellation, by their lane's ``overdue_after`` seconds.

Each is told of once, whatever cancelled it first: `Job.cancel`, a deadline, a reset, or the end of
the lanes. Nothing is watched unless an instrument listens.

The timers here are others than those of the lanes, which stop when the lanes are shut: a body may
outlive that. They keep the nursery open no longer than the bodies do: when one ends, so does the
watch over it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, NamedTuple, final

import trio

from .._actors.job import AnyJob
from .._queue.timers import Timer, Timers
from .hooks import Hooks


class _Watch(NamedTuple):
    timer: Timer
    cancelled: bool  # else it only has a deadline, as far as is known


@final
class Overdue:
    """The bodies of one `Lanes` that were cancelled, or that have a deadline."""

    def __init__(
        self, hooks: Hooks, spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
    ) -> None:
        self._hooks: Final = hooks
        self._timers: Final = Timers(spawn)
        self.watched: Final[dict[AnyJob, _Watch]] = {}  # until their bodies have ended

    def expect(self, job: AnyJob) -> None:
        """Look at ``job``, which may have a deadline, or another one, when that is long over."""
        if not job.cancel_called:
            self._expect(job)

    def cancel(self, jobs: Iterable[AnyJob]) -> None:
        """``jobs``, which run, are about to be cancelled, if they were not before."""
        now = trio.current_time()
        for job in jobs:
            watch = self.watched.get(job)
            if not (job.cancel_called or (watch is not None and watch.cancelled)):
                self._set(job, now, partial(self._tell, job, now), cancelled=True)

    def ended(self, job: AnyJob) -> None:
        """The body of ``job`` has ended, or never will begin."""
        watch = self.watched.pop(job, None)
        if watch is not None:
            watch.timer.cancel()

    def _set(self, job: AnyJob, since: float, call: Callable[[], None], *, cancelled: bool) -> None:
        self.ended(job)
        when = since + job._lane.config.overdue_after
        if when != math.inf:
            self.watched[job] = _Watch(self._timers.call_at(when, call), cancelled)

    def _expect(self, job: AnyJob) -> None:
        self._set(job, job._deadline, partial(self._too_late, job), cancelled=False)

    def _too_late(self, job: AnyJob) -> None:
        # Setting the timer anew whenever a body makes progress would cost too much.
        if job._deadline + job._lane.config.overdue_after > trio.current_time():
            self._expect(job)
        else:
            self._tell(job, job._deadline)

    def _tell(self, job: AnyJob, since: float) -> None:
        self._hooks.call(self._hooks.job_overdue, job, trio.current_time() - since)
