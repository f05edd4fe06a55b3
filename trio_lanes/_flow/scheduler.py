"""The way of a job through its lanes: accepted, forwarded, started, ended.

Each of these is a transition, or part of one; what it makes possible is done by the steps of the
actors that it touches.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import count
from typing import Any, Final, final
from weakref import WeakSet

import trio

from .._waiting import deadlock as _deadlock

from . import lending as _lending
from .._queue.backlog import rank
from .closing import Closing
from .._actors.options import NO_OPTIONS
from .workers import Crew
from .._waiting.current import job_here, jobs_by_task
from .._config.errors import JobCancelledError, QueueTimeoutError
from .._instrument import Hooks
from .._actors.job import AnyJob, keep_timer
from .._actors.lane import LaneActor
from .lane_table import LaneTable
from .._observe.overdue import Overdue
from .._waiting.room import Entrant, Lines
from .settle import Unseen, Verdict, interrupted, raised, settle, watch_failure
from .._actors.state import CANCELLED, FAILED, RUNNING, SUCCEEDED, WAITING, JobState, advance
from .._observe.wait_warnings import WaitWarnings
from .._waiting.waits import Wait, wake

logger: Final = logging.getLogger("trio_lanes")


@final
class Scheduler(LaneTable):
    """All lanes of one `open_lanes`, and the jobs in them."""

    __slots__ = (
        "_crew",
        "_next_id",
        "_wait_warnings",
        "abandoned",
        "closing",
        "finished",
        "next_arrival",
        "next_return",
        "overdue",
        "running",
        "unseen",
        "waits",
    )

    def __init__(self, nursery: trio.Nursery, hooks: Hooks) -> None:
        super().__init__(nursery, hooks)
        self.lines = Lines(self)
        self.running: Final = jobs_by_task()
        self.waits: Final = self.running.waits
        self._crew: Final = Crew(self, self.running, self.spawn)
        self._wait_warnings: Final = WaitWarnings(self.timers, hooks)
        self.overdue: Final = Overdue(hooks, self.spawn)
        self.closing: Final = Closing(self)
        self._next_id: Final = count(1).__next__
        # Places in sessions and arrivals in global lanes: the end of every line; and, for those
        # that are readmitted, before every line, but behind others of them.
        self.next_arrival: Final = count(1).__next__
        self.next_return: Final = count(-(2**62)).__next__
        self.unseen: Final[WeakSet[Unseen]] = WeakSet()
        self.abandoned = 0  # bodies that were given up by a reset, and have not ended
        self.finished = 0  # jobs whose bodies have ended by themselves, ever

    # ---- a job is accepted

    def accept(self, job: AnyJob) -> None:
        """Take ``job``, give it its place in line, and start whatever can start."""
        outermost = self.begin()
        try:
            lane = job._lane
            if lane.from_template:
                lane = job._lane = self.bring_to_life(lane)
            job.id = self._next_id()
            job.submitted_at = self.now
            lane.waiting += 1
            if job.session is not None:
                session = self.sessions.get(job.session) or self.awake(job.session)
                session.waiting += 1
                job._session_lane = session
            if self.tells:
                self.has_changed(job)
            if job._options.delay:
                self._postpone(job)
            else:
                self._join(job, alone=outermost)
            if self.hooks.job_submitted:
                self.hooks.call(self.hooks.job_submitted, job)
            if outermost:
                self.serve()
        except BaseException as error:
            self.broke_down(error)
            raise
        if self.waits and not job._options.yield_slot:
            _deadlock.accepted(self, job)
        if not job._options.queue_timeout:
            self._out_of_time(job)

    def _join(self, job: AnyJob, *, alone: bool = False) -> None:
        """Give ``job`` its place in line; ``alone`` if nothing else has happened before."""
        job._waiting_since = self.now
        order = self.next_arrival()
        lane, session = job._lane, job._session_lane
        lane.bound[job.id] = job
        if session is None:
            job._arrival = order
            lane.mailbox.send(job)
            self.touch(lane)
        else:
            job._place = order
            if job._priority:
                job._place = rank(job._priority, order)
                session.is_ranked = True
            if not (alone and session.stands_behind(job)):
                session.send(job)
                self.touch(session)
            if lane.warning is None:
                self.touch(lane)  # the wait counts there, though the session may hold the job
        options = job._options
        if options is not NO_OPTIONS or self.hooks.job_waiting_long:
            self._wait_warnings.watch(job)
            if 0 < options.queue_timeout < math.inf:
                self._set_timer(job, options.queue_timeout, self._out_of_time)

    def _postpone(self, job: AnyJob) -> None:
        """Have ``job`` take its place in line when its delay is over."""
        job._lane.delayed[job.id] = job
        self.touch(job._lane)  # who waits for room in it is to be looked at
        if job._session_lane is not None:
            job._session_lane.delayed[job.id] = job
        self._set_timer(job, job._options.delay, self._due)

    def _due(self, job: AnyJob) -> None:
        with self.transition():
            self._forget_delay(job)
            self._join(job)
        if self.waits:
            _deadlock.accepted(self, job)
        if not job._options.queue_timeout:
            self._out_of_time(job)

    def _forget_delay(self, job: AnyJob) -> bool:
        """Whether ``job`` was not due yet."""
        if job._session_lane is not None:
            job._session_lane.delayed.pop(job.id, None)
        return job._lane.delayed.pop(job.id, None) is not None

    def _set_timer(self, job: AnyJob, delay: float, call: Callable[[AnyJob], None]) -> None:
        keep_timer(job, self.timers.call_at(self.now + delay, partial(call, job)))

    def _out_of_time(self, job: AnyJob) -> None:
        if job._state is WAITING and job.id not in job._lane.delayed:
            self.withdraw(job, QueueTimeoutError(job._options.queue_timeout))

    def warn_later(self, lane: LaneActor) -> None:
        """Have long waits in ``lane`` warned about."""
        self._wait_warnings.watch_lane(lane)

    # ---- forwarded, started

    def regained(self, job: AnyJob) -> None:
        """Give ``job``, which had lent its slot, a new one."""
        job._lane.take_tokens(job, charge=False)
        self._go_on(job)

    def never_comes(self, job: AnyJob) -> bool:
        """Whether no slot can come that ``job`` wants back."""
        return _deadlock.never_comes(job)

    def goes_without(self, job: AnyJob) -> None:
        """Have ``job``, which is cancelled, clean up without a slot."""
        _lending.goes_without(job)

    def _go_on(self, job: AnyJob) -> None:
        """Have ``job``, which runs, go on with a new slot."""
        _lending.regained(job)
        if job._waits:
            _deadlock.holds_on(self, job)
        if self.hooks.job_overdue:
            self.overdue.expect(job)  # its idle clock has begun again

    def forward(self, job: AnyJob, arrival: int) -> None:
        """Put ``job`` in the line of its global lane, as one that came at ``arrival``."""
        assert job._session_lane is not None
        job._session_lane.forwarded[job._place] = job
        job._arrival = arrival
        job._lane.mailbox.send(job)
        self.touch(job._lane)
        if self.hooks.job_forwarded:
            self.hooks.call(self.hooks.job_forwarded, job)

    def start(self, job: AnyJob) -> None:
        """Give ``job``, which its lane has taken out of line, its slots, and have it run."""
        lane, session = job._lane, job._session_lane
        if lane.plain:  # what take_tokens() comes down to
            lane.limiter.acquire_on_behalf_of_nowait(job)
            lane.slots += 1
        else:
            lane.take_tokens(job)
        if session is not None and session.rates.units:
            session.rates.charge(job._costs, self.now)
            self.touch(session)  # it may let the next one go
        job._charged = job._costs
        job._charged_at = self.now
        job._charged_group = lane.group
        if job._state is RUNNING:
            _lending.readmitted(job)
            self._go_on(job)
            return
        advance(job, RUNNING)
        job.started_at = job._progress_at = self.now
        job._has_slot = True
        lane.active += 1
        lane.started += 1
        if session is not None:
            session.started(job)
        self._leave_line(job)
        if self.hooks.job_overdue and job._options.limits_run:
            self.overdue.expect(job)
        if self.hooks.job_started:
            self.hooks.call_in_context(self.hooks.job_started, job)
        self._crew.grant(job)
        if job._waiters:  # last: one of Trio's hooks that is told of who is woken may reset it
            wake(job)

    def _leave_line(self, job: AnyJob) -> None:
        lane, session = job._lane, job._session_lane
        joined = lane.bound.pop(job.id, None)  # a job that is not due has no place
        if joined is not None and joined._options.warn_after is not None:
            lane.exempt -= 1
        if self.tells:
            self.has_changed(job)
        lane.waiting -= 1
        if lane.room_line or (lane.watched and not lane.waiting):
            self.touch(lane)
        if session is not None:
            session.waiting -= 1
            if session.room_line or session.entering or (session.watched and not session.waiting):
                self.touch(session)
        if job._timers is not None:
            for timer in job._timers:
                timer.cancel()
            job._timers = None

    # ---- ended

    def returned(self, job: AnyJob, value: Any) -> None:
        """The body of ``job`` returned ``value``."""
        if self.overdue.watched:
            self.overdue.ended(job)
        if job._state is RUNNING:
            self._end(job, SUCCEEDED, value, None)
        else:
            self.abandoned -= 1

    def raised(self, job: AnyJob, error: BaseException) -> BaseException | None:
        """``error`` left the body of ``job`` and its scope; what is to leave its task, too."""
        return self._judge(job, raised(error), error)

    def interrupted(self, job: AnyJob) -> BaseException | None:
        """The scope of ``job`` ended its body; what is to leave its task."""
        verdict = interrupted(job)
        return self._judge(job, verdict, verdict.error)

    def _judge(self, job: AnyJob, verdict: Verdict, error: BaseException) -> BaseException | None:
        leaves = verdict.leaves
        if job._state is RUNNING:
            if verdict.state is FAILED and (job._unhandled or leaves is error):
                leaves = error
                job._unhandled = True  # whoever gets it from the lanes has seen it
            if leaves is not None:
                why = "the lanes were cancelled"
                if verdict.state is FAILED and leaves is error:  # not the cancellation around it
                    why = f"a job raised {type(error).__name__}"
                self.stop(why)
        self.overdue.ended(job)
        if job._state is RUNNING:
            self._end(job, verdict.state, None, verdict.error)
        else:  # it was reset, at the latest by a hook that was told of what was stopped
            self.abandoned -= 1
        return leaves

    def stop(self, reason: str) -> None:
        """Nothing starts any more, and what still runs is cancelled with the nursery."""
        self.closing.shut_down(reason)
        if self.hooks.job_overdue:
            for lane in self.lanes.values():
                self.overdue.cancel(lane.running_jobs())

    def _end(self, job: AnyJob, state: JobState, value: Any, error: BaseException | None) -> None:
        outermost = self.begin()
        try:
            lane, session = job._lane, job._session_lane
            if session is not None:  # first: its next job competes for the slot in the lane
                session.ended(job)
                self.touch(session)
            if job._has_slot:
                job._has_slot = False
                lane.give_tokens_back(job)
            else:
                _lending.stop(self, job)
            lane.active -= 1
            lane.finished += 1
            self._settle(job, state, value, error)
            if outermost:
                self.serve()
        except BaseException as exc:
            self.broke_down(exc)
            raise

    def _settle(
        self, job: AnyJob, state: JobState, value: Any, error: BaseException | None
    ) -> None:
        if self.tells:
            self.has_changed(job)
        settle(job, self.now, state, value, error)
        if state is not CANCELLED:
            self.finished += 1
        if error is not None and state is FAILED and not job._unhandled:
            unseen = watch_failure(job)
            if unseen is not None:
                self.unseen.add(unseen)
        if self.hooks.job_finished:
            self.hooks.call_in_context(self.hooks.job_finished, job)
        job._context = None
        job._session_lane = None
        if job._waiters:
            wake(job)

    # ---- taken out before it started, or stopped

    def withdraw(self, job: AnyJob, error: Exception) -> None:
        """Settle ``job``, which waits, with ``error``: it will never be called."""
        outermost = self.begin()
        try:
            lane, session = job._lane, job._session_lane
            if not self._forget_delay(job) and self.broken is None:
                if session is not None:
                    session.remove(job)
                else:
                    lane.remove(job)
            if session is not None:
                self.touch(session)
            self.touch(lane)
            self._leave_line(job)
            self._settle(job, CANCELLED, None, error)
            if outermost:
                self.serve()
        except BaseException as exc:
            self.broke_down(exc)
            raise

    def withdraw_all(self, jobs: Iterable[AnyJob], error: Callable[[AnyJob], Exception]) -> int:
        """Withdraw those of ``jobs`` that still wait, as one transition; how many there were."""
        with self.transition():
            withdrawn = 0
            for job in list(jobs):
                if job._state is WAITING:  # what an instrument does may have been faster
                    self.withdraw(job, error(job))
                    withdrawn += 1
        return withdrawn

    def interrupt(self, job: AnyJob, error: JobCancelledError) -> None:
        """Cancel the body of ``job``; if that ends it, it settles with ``error``."""
        scope = job._scope
        if self.hooks.job_overdue:
            self.overdue.cancel([job])
        if job._interruption is None and (scope is None or not scope.cancel_called):
            job._interruption = error
        if scope is not None:
            scope.cancel(error.reason)
        _lending.was_cancelled(self, job)  # a shield may keep the cancellation from its tasks

    def abandon(self, job: AnyJob, error: JobCancelledError) -> bool:
        """Cancel ``job``, which runs, and settle it now: what its body still does is its own.

        False if a hook, which was told of what that withdrew, has done so before.
        """
        begun = job._task is not None  # else it never will
        job._interruption = None
        self.interrupt(job, error)
        if job._state is not RUNNING:
            return False
        if begun:
            self.abandoned += 1
        else:
            self.overdue.ended(job)
        self._end(job, CANCELLED, None, error)
        return True

    def cancel(self, job: AnyJob, reason: str | None) -> bool:
        """`Job.cancel`."""
        self.check_thread()
        error = JobCancelledError(reason)
        if job._state is WAITING:
            self.withdraw(job, error)
        elif job._state is RUNNING:
            self.interrupt(job, error)
        else:
            return False
        return True

    def waiting_job(self) -> AnyJob | None:
        """The job on whose behalf the current task is about to wait."""
        return job_here(self.running)

    def check(self, wait: Wait) -> None:
        """Refuse ``wait``, which begins, if it would never end."""
        _deadlock.check(self, wait)

    def check_accepted(self, job: AnyJob) -> None:
        """Look whether that ``job`` waits now has others wait for ever."""
        if self.waits:
            _deadlock.accepted(self, job)

    def refuse(self, entrant: Entrant, error: Exception) -> None:
        """Have ``entrant`` wait for room no more, and tell it ``error``."""
        with self.transition():
            self.lines.refuse(entrant, error)

    def awaited(self) -> None:
        """A job has begun to wait: waits for lanes inside of jobs may have to leave it out."""
        if self.watches.inside:
            self.watches.check_inside()

    def lend(self, job: AnyJob) -> None:
        """`Job.yield_slot` begins."""
        _lending.lend(self, job)

    async def take_back(self, job: AnyJob) -> None:
        """`Job.yield_slot` ends."""
        await _lending.take_back(self, job)

    async def readmit(self, job: AnyJob, cost: float | Mapping[str, float] | None) -> None:
        """`Job.readmit`."""
        await _lending.readmit(self, job, cost)
