"""Overdue bodies: bodies that outlive their cancellation by their lane's ``overdue_after`` seconds.

The hook is called once for each body, after its first cancellation: by `Job.cancel`, a deadline, a
reset, or the end of the lanes. No body is timed unless an instrument has the hook.

These timers are not the timers of the lanes, which stop when the lanes are shut: a body may outlive
that. They keep the nursery open no longer than the bodies do: the timer of a body ends with it.
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


class _OverdueWatch(NamedTuple):
    timer: Timer
    cancelled: bool  # else the body only has a deadline


@final
class Overdue:
    """The bodies of one `Lanes` that were cancelled, or that have a deadline."""

    def __init__(
        self, hooks: Hooks, spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
    ) -> None:
        self._hooks: Final = hooks
        self._timers: Final = Timers(spawn)
        self.watched: Final[dict[AnyJob, _OverdueWatch]] = {}  # until their bodies have ended

    def expect(self, job: AnyJob) -> None:
        """Set the timer of ``job`` by its deadline, which may be a new one."""
        if not job.cancel_called:
            self._expect(job)

    def cancel(self, jobs: Iterable[AnyJob]) -> None:
        """Set the timers of ``jobs``, which run and are about to be cancelled."""
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
            self.watched[job] = _OverdueWatch(self._timers.call_at(when, call), cancelled)

    def _expect(self, job: AnyJob) -> None:
        self._set(job, job._deadline, partial(self._too_late, job), cancelled=False)

    def _too_late(self, job: AnyJob) -> None:
        # Setting the timer again whenever a body makes progress would cost too much.
        if job._deadline + job._lane.config.overdue_after > trio.current_time():
            self._expect(job)
        else:
            self._tell(job, job._deadline)

    def _tell(self, job: AnyJob, since: float) -> None:
        self._hooks.call(self._hooks.job_overdue, job, trio.current_time() - since)
