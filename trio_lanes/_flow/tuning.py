"""Lanes whose limits tune themselves: the ends of their jobs are told to their tuners.

This hangs on the joint `on_ended` as long as the plan has an `Adaptive` concurrency. A tuner learns
before anything of the end is done, since it calls a function of the user's; a limit that it changes
is set when the job has settled, before another job starts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, Protocol, final

import attrs

from .._actors.job import AnyJob
from .._actors.lane import LaneActor
from .._actors.state import FAILED, HELD, SUCCEEDED, JobState
from .._limits.adaptive import Adaptive
from .._observe.announcer import Announcer
from .._observe.hooks import Hooks
from .._waiting import deadlock
from .._waiting.current import JobsByTask
from .._waiting.waits import TaskWaits


class Tunes(Protocol):
    """What tuning asks of the loop."""

    now: float

    @property
    def current_time(self) -> Callable[[], float]: ...
    @property
    def running(self) -> JobsByTask: ...
    @property
    def waits(self) -> TaskWaits: ...
    @property
    def hooks(self) -> Hooks: ...
    @property
    def announcer(self) -> Announcer: ...
    def check_thread(self) -> None: ...
    def batch(self) -> AbstractContextManager[None]: ...
    def after_act(self, effect: Callable[..., object], *args: Any) -> None: ...


@final
class Tuning:
    """What the tuners of lanes learn, and what follows from it."""

    def __init__(self, scheduler: Tunes) -> None:
        self._scheduler: Final = scheduler

    def on_ended(self, job: AnyJob, state: JobState, error: BaseException | None) -> None:
        """Have the tuner of its lane learn of the end of ``job``."""
        lane: LaneActor = job._lane
        tuner, now = lane.tuner, self._scheduler.now
        if tuner is None:
            return
        began, changes = _began(job), False
        if state is SUCCEEDED:
            timed = began == job.started_at and job._slot is HELD
            changes = tuner.succeeded(began, now, lane.slots, timed=timed)
        elif state is FAILED and error is not None and tuner.refuses(error):
            changes = tuner.refused(began, now)
        if changes:
            self._scheduler.after_act(self._retune, lane)

    def overloaded(self, job: AnyJob) -> None:
        """`Job.overloaded`."""
        scheduler = self._scheduler
        lane: LaneActor = job._lane
        scheduler.check_thread()
        if lane.tuner is not None and lane.tuner.refused(_began(job), scheduler.current_time()):
            with scheduler.batch():
                self._retune(lane)

    def _retune(self, lane: LaneActor) -> None:
        """Give ``lane`` the limit of its tuner."""
        scheduler, tuner = self._scheduler, lane.tuner
        if tuner is not None:
            falls = tuner.limit < lane.concurrency
            known = () if scheduler.running.proved else deadlock.stuck_jobs(scheduler.waits.inside)
            self.set_concurrency(lane, tuner.config)
            # Nobody would raise it for jobs that hold all of it, since it rises by their ends.
            scheduler.after_act(
                partial(scheduler.waits.limits_changed, ends_waits=falls, known=known)
            )

    def set_concurrency(self, lane: LaneActor, value: int | float | Adaptive) -> None:
        """Give ``lane`` alone another concurrency."""
        scheduler = self._scheduler
        lane.set_config(attrs.evolve(lane.config, concurrency=value), scheduler.now)
        scheduler.announcer.tell_of_lane(scheduler.hooks.lane_configured, lane)


def _began(job: AnyJob) -> float:
    """Return when ``job``, which runs or has just ended, got its slot."""
    assert job.started_at is not None
    return max(job.started_at, job._waiting_since)
