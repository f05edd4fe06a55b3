"""Warnings about long waits. A warning never cancels a job.

A job with an ``on_wait`` or a ``warn_after`` of its own has a timer of its own. All other jobs of a
lane share one timer, set for the oldest wait, which only writes to the log: at most one line for
each lane and ``warn_after`` seconds, and another when the longest wait is twice as long. It says
nothing where rates and pauses alone hold that job: they do what they are for. A job that
wants the slot back that it has lent counts among them, since it waits as long if limits were
lowered, or the holders of the slots wait. While an instrument has the hook ``job_waiting_long``,
they share one more timer, set for the next job for which the hook is to be called. Of rates the log
has a line where they let no job start for hours (`warn_of_long_debt`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Final, final
from weakref import WeakSet

import trio

from .._actors.actor import Served
from .._actors.group import Group
from .._actors.job import AnyJob
from .._actors.lane import LaneActor
from .._actors.state import WAITING
from .._queue.timers import Timers
from .hooks import Hooks

logger: Final = logging.getLogger("trio_lanes")

_FEW_QUIET: Final = 64

_LONG_DEBT: Final = 3600.0  # seconds without a start, of which the log tells

_LEAST: Final = 0.001  # seconds: a smaller value may vanish when added to the time of a clock


@final
class WaitWarnings:
    """Sets the timers of long waits, and writes the warnings."""

    def __init__(self, timers: Timers, hooks: Hooks, when_long: Callable[[], object]) -> None:
        """``when_long`` is called when a wait is so long that a line may be written."""
        self._timers: Final = timers
        self._hooks: Final = hooks
        self._when_long: Final = when_long
        # {name of a lane: when the log had a line about it, and before when it has no other unless
        # another job waits longest}. By name, since a lane of a template may be another object by
        # then.
        self._quiet: dict[str, tuple[float, float]] = {}
        self._most_quiet = _FEW_QUIET  # with more entries, expired entries are dropped
        # Jobs with a key that wait, and of whose wait hooks and `on_wait` were told
        self._told: Final[WeakSet[AnyJob]] = WeakSet()

    def watch(self, job: AnyJob) -> None:
        """Give ``job``, which begins to wait, a timer of its own if it needs one."""
        options = job._options
        self._told.discard(job)
        if options.warn_after is not None:
            job._lane.count_own_warn_after()
        if options.is_watched:
            self._at(_due(job), partial(self._too_long, job), job)
        elif self._hooks.job_waiting_long:
            lane: LaneActor = job._lane
            lane.note_unwarned(job)
            if lane.warning is not None:  # else the lane is about to be served
                self._tell_in_time(lane)

    def watch_again(self, job: AnyJob) -> None:
        """Go on with ``job``, which waits, by other options; its lane has forgotten its warnings.

        It gets a timer of its own in any case: behind the jobs that came later it would be due too
        late. A wait that was told is told again only if that is due later.
        """
        if job._options.warn_after is not None:
            job._lane.count_own_warn_after()
        due, now = _due(job), trio.current_time()
        if due <= now and job in self._told:
            return
        if job._options.is_watched or self._hooks.job_waiting_long:
            self._at(max(due, now), partial(self._too_long, job), job)

    def watch_lane(self, lane: LaneActor) -> None:
        """Set the timer of ``lane`` for its oldest wait."""
        oldest = _oldest(lane)
        assert oldest is not None  # the caller has checked that a job waits
        due = oldest._waiting_since + lane.config.warn_after
        # a lane may begin to wait with a job that has waited for long in its session
        self._look_at(lane, max(due, self._quiet_until(lane), trio.current_time()))
        self._tell_in_time(lane)

    def _tell_in_time(self, lane: LaneActor) -> None:
        """Have hooks called at the next long wait in ``lane``. The jobs there are due in order."""
        if lane.unwarned and lane.unwarned_timer is None:
            due = _due(next(iter(lane.unwarned.values())))
            if due != float("inf"):
                when = max(due, trio.current_time())
                timer = self._timers.call_at(when, partial(self._tell_hooks, lane))
                lane.keep_unwarned_timer(timer)

    def _tell_hooks(self, lane: LaneActor) -> None:
        lane.keep_unwarned_timer(None)
        now = trio.current_time()
        while lane.unwarned and _due(next(iter(lane.unwarned.values()))) <= now:
            job = lane.pop_unwarned()
            self._note_told(job)
            self._hooks.call(self._hooks.job_waiting_long, job, now - job._waiting_since)
        self._tell_in_time(lane)

    def _look_at(self, lane: LaneActor, when: float) -> None:
        if when != float("inf"):
            lane.keep_warning(self._timers.call_at(when, partial(self._oldest_too_long, lane)))

    def _at(self, when: float, call: Callable[[], None], job: AnyJob) -> None:
        if when != float("inf"):
            job._keep_timer(self._timers.call_at(when, call))

    def _too_long(self, job: AnyJob) -> None:
        waited = trio.current_time() - job._waiting_since
        self._note_told(job)
        on_wait, context = job._options.on_wait, job._context
        if on_wait is not None:
            assert context is not None  # nothing has entered it: the job waits
            try:
                context.run(on_wait, job, waited)
            except Exception:
                logger.exception("on_wait of %r raised", job)
        if self._hooks.job_waiting_long:
            self._hooks.call(self._hooks.job_waiting_long, job, waited)
        if job._state is WAITING and job._options.is_watched:  # else the lane's timer says it
            self._say(job._lane)

    def _note_told(self, job: AnyJob) -> None:
        if job._options.coalesce is not None:
            self._told.add(job)

    def _oldest_too_long(self, lane: LaneActor) -> None:
        lane.keep_warning(None)
        now = trio.current_time()
        # The other jobs have timers of their own.
        bound = (job for job in lane.bound.values() if job._options.warn_after is None)
        waits = [job._waiting_since for job in (*islice(bound, 1), *islice(lane.slot_requests, 1))]
        if not waits:
            return
        again = now + _pause(lane)  # always later than now, or the timers would never come to rest
        due = max(min(waits) + lane.config.warn_after, self._quiet_until(lane))
        if due <= now:
            self._say(lane)
        else:
            again = min(due, again)  # another job may wait longest by then
        self._look_at(lane, again)

    def _say(self, lane: LaneActor) -> None:
        now = trio.current_time()
        oldest = _oldest(lane)
        if oldest is not None and self._quiet_until(lane) <= now:
            waited = now - oldest._waiting_since
            self._quiet[lane.name] = now, now + max(_pause(lane), waited)
            self._drop_what_is_over(now)
            self._when_long()
            causes = oldest.root_causes()
            if {cause.kind for cause in causes} <= {"rate", "pause"}:
                return
            wanted = len(lane.slot_requests)
            lent = f", lent slots wanted back: {wanted}" if wanted else ""
            logger.warning(
                "lane %r: %d waiting%s, the longest for %.1f s; %r, job %s",
                lane.name,
                lane.waiting,
                lent,
                waited,
                oldest.name,
                ", and ".join(map(str, causes)),
            )

    def _quiet_until(self, lane: LaneActor) -> float:
        """Return when the longest wait is twice as long as in the last line, at the earliest."""
        said, oldest = self._quiet.get(lane.name, (-float("inf"),))[0], _oldest(lane)
        assert oldest is not None  # the callers have checked that a job waits
        return said + max(_pause(lane), said - oldest._waiting_since)

    def _drop_what_is_over(self, now: float) -> None:
        if len(self._quiet) > self._most_quiet:
            self._quiet = {name: quiet for name, quiet in self._quiet.items() if quiet[1] > now}
            self._most_quiet = 2 * len(self._quiet) + _FEW_QUIET


def warn_of_long_debt(served: Served, now: float) -> None:
    """Log that ``served``, which waits for a rate limit, starts no job for very long."""
    wait = served.rate_until - now
    if wait > _LONG_DEBT and any(left < 0 for _, left, _ in served.rates.left(now)):
        logger.warning(
            "%s %r starts no job for %.3g s, as its rate limit was charged more than it admits: "
            "was that cost meant? `configure` with another algorithm begins anew",
            "group" if isinstance(served, Group) else "lane",
            served.name,
            wait,
        )


def _oldest(lane: LaneActor) -> AnyJob | None:
    """Return the job that has waited longest, to start in ``lane`` or to get its slot back."""
    jobs = (*islice(lane.bound.values(), 1), *islice(lane.slot_requests, 1))
    return min(jobs, key=attrgetter("_waiting_since"), default=None)


def _due(job: AnyJob) -> float:
    """Return the time at which a warning about ``job`` is due."""
    own = job._options.warn_after
    return job._waiting_since + (job._lane.config.warn_after if own is None else own)


def _pause(lane: LaneActor) -> float:
    """Return the seconds between two lines about ``lane``: 1 for a ``warn_after`` next to 0."""
    return lane.config.warn_after if lane.config.warn_after >= _LEAST else 1.0
