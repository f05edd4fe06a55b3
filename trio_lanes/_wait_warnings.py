"""Warnings about long waits. They tell, and never cancel.

A job with an ``on_wait`` or a ``warn_after`` of its own, or any job when an instrument listens,
has a timer of its own. All others share one for each lane, set for the oldest wait, which only
writes to the log: at most one line for each lane and ``warn_after`` seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, final

import trio

from ._instrument import Hooks
from ._job import AnyJob
from ._lane import LaneActor
from ._state import WAITING
from ._timers import Timers

logger: Final = logging.getLogger("trio_lanes")


@final
class WaitWarnings:
    """Sets the timers of long waits, and says what they find."""

    def __init__(self, timers: Timers, hooks: Hooks) -> None:
        self._timers: Final = timers
        self._hooks: Final = hooks

    def watch(self, job: AnyJob) -> None:
        """Give ``job``, which begins to wait, a timer of its own if it needs one."""
        options = job._options
        own = options.warn_after is not None or options.on_wait is not None
        if own or self._hooks.job_waiting_long:
            self._at(job.submitted_at + _patience(job), partial(self._too_long, job), job)

    def watch_lane(self, lane: LaneActor) -> None:
        """Set the timer of ``lane`` for its oldest wait, unless that is far from it."""
        oldest = lane.oldest
        if oldest is not None:
            due = max(oldest.submitted_at, lane.warned_at) + lane.config.warn_after
            if due != float("inf"):
                lane.warning = self._timers.call_at(due, partial(self._oldest_too_long, lane))

    def _at(self, when: float, call: Callable[[], None], job: AnyJob) -> None:
        if when != float("inf"):
            timer = self._timers.call_at(when, call)
            job._timers = [*(job._timers or ()), timer]

    def _too_long(self, job: AnyJob) -> None:
        waited = trio.current_time() - job.submitted_at
        on_wait = job._options.on_wait
        if on_wait is not None:
            try:
                on_wait(job, waited)
            except Exception:
                logger.exception("on_wait of %r raised", job)
        if self._hooks.job_waiting_long:
            self._hooks.call(self._hooks.job_waiting_long, job, waited)
        if job._state is WAITING:
            self._say(job._lane, waited)

    def _oldest_too_long(self, lane: LaneActor) -> None:
        lane.warning = None
        now = trio.current_time()
        for job in lane.bound.values():
            if job._options.warn_after is None:  # the others have said what they want
                waited = now - job.submitted_at
                if waited >= lane.config.warn_after:
                    self._say(lane, waited)
                break
        self.watch_lane(lane)

    def _say(self, lane: LaneActor, waited: float) -> None:
        now = trio.current_time()
        if now - lane.warned_at >= lane.config.warn_after:
            lane.warned_at = now
            logger.warning(
                "lane %r: %d waiting, the longest for %.1f s", lane.name, lane.waiting, waited
            )


def _patience(job: AnyJob) -> float:
    own = job._options.warn_after
    return job._lane.config.warn_after if own is None else own
