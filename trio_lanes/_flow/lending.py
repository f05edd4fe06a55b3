"""Lending: a running job gives its slot in the global lane away while it waits for something.

What is lent is the token of the lane and that of its group, never the session's: nothing else of
the session may run meanwhile. A job lends from the first of its tasks that lends to the last.
Taking the slot back goes before all that waits, whether the lane is paused or its tokens are
reserved, but respects the limit; and it cannot be cancelled, so that a job never cleans up
without its slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import trio
from trio.lowlevel import Abort, enable_ki_protection

from .._waiting import deadlock as _deadlock
from .._waiting.current import jobs_here
from .._actors.job import AnyJob
from .._limits.rate import costs_of
from .._actors.state import RUNNING
from .._waiting.waits import RaiseCancel

if TYPE_CHECKING:
    from .scheduler import Scheduler


@enable_ki_protection
def lend(scheduler: Scheduler, job: AnyJob) -> None:
    """Another task of ``job`` lends its slot.

    Raises:
      RuntimeError: if the current task is not inside ``job``; then nothing has changed.
    """
    _check_inside(scheduler, job)
    with scheduler.transition():
        job._lenders += 1
        if job._has_slot:
            _give_away(job)
        elif job in job._lane.returning:  # its former lender need not wait for a slot any more
            del job._lane.returning[job]
            scheduler.touch(job._lane)
            _wake(job)


def _check_inside(scheduler: Scheduler, job: AnyJob) -> None:
    """Refuse a task that is not inside ``job``: the body would go on without its slot."""
    scheduler.check_thread()
    if job._state is RUNNING and job not in jobs_here(scheduler.running):
        raise RuntimeError(f"only a task inside {job!r} can give its slot away")


def _give_away(job: AnyJob) -> None:
    lane = job._lane
    job._has_slot = False
    lane.lending[job] = True
    lane.give_tokens_back(job)
    job._restart_idle_clock()


@enable_ki_protection
async def take_back(scheduler: Scheduler, job: AnyJob) -> None:
    """A task of ``job`` lends its slot no more; the last one waits for a new one. Shielded."""
    job._lenders -= 1
    if job._lenders or job._has_slot or job._state is not RUNNING:
        await trio.lowlevel.cancel_shielded_checkpoint()
        return
    lane = job._lane
    with scheduler.transition():
        if scheduler.broken is not None:
            goes_without(job)
        elif not job._readmitting:  # else it gets a slot when the lane starts it
            _want_back(scheduler, job, is_cancelled=job.cancel_called)
    if job._waits:
        _deadlock.holds_on(scheduler, job)

    def abort(raise_cancel: RaiseCancel) -> Abort:
        was_cancelled(scheduler, job)
        return Abort.FAILED

    if lane.lending.get(job):
        await _slot(job, abort)
    else:
        await trio.lowlevel.cancel_shielded_checkpoint()


def _want_back(scheduler: Scheduler, job: AnyJob, *, is_cancelled: bool) -> None:
    """Have the lane of ``job`` give it a slot, before all jobs that wait for one."""
    lane = job._lane
    # A job that went on without its slot before does so again if none can come.
    lane.returning[job] = is_cancelled or scheduler.closing.shut or not lane.lending[job]
    lane.lending[job] = True
    scheduler.touch(lane)


def was_cancelled(scheduler: Scheduler, job: AnyJob) -> None:
    """Let ``job``, which was cancelled, go on without its slot if none can come."""
    returning = job._lane.returning
    if returning.get(job) is False:
        with scheduler.transition():
            returning[job] = True
            scheduler.touch(job._lane)


def regained(job: AnyJob) -> None:
    """``job`` has a slot again, whose tokens have been taken."""
    job._has_slot = True
    del job._lane.lending[job]
    job._restart_idle_clock()
    _wake(job)
    if job._lenders:  # it was readmitted, and others of its tasks lend its slot
        _give_away(job)


def goes_without(job: AnyJob) -> None:
    """``job`` is cancelled, and no slot can come: it cleans up without one, lest it never ends."""
    job._lane.lending[job] = False
    _wake(job)


def stop(scheduler: Scheduler, job: AnyJob) -> None:
    """``job`` has ended, or was given up, while it was without a slot."""
    lane = job._lane
    del lane.lending[job]
    lane.returning.pop(job, None)
    if job._readmitting:
        _leave_line(job)
    scheduler.touch(lane)
    _wake(job)


async def _slot(job: AnyJob, abort: Callable[[RaiseCancel], Abort]) -> None:
    """Wait for the slot that ``job`` does not have now."""
    job._slot_waiters = [*(job._slot_waiters or ()), trio.lowlevel.current_task()]
    await trio.lowlevel.wait_task_rescheduled(abort)


def _wake(job: AnyJob) -> None:
    tasks, job._slot_waiters = job._slot_waiters, None
    for task in tasks or ():
        trio.lowlevel.reschedule(task)


@enable_ki_protection
async def readmit(
    scheduler: Scheduler, job: AnyJob, cost: float | Mapping[str, float] | None
) -> None:
    """Give the slot back, and return when the lane would start ``job`` again.

    Raises:
      RuntimeError: as `lend`, or if the job has lent its slot.
    """
    _check_inside(scheduler, job)
    if job._lenders or not job._has_slot:
        raise RuntimeError(f"{job!r} has lent its slot, so it cannot be readmitted now")
    if cost is None:
        costs = job._options.cost  # in units that were known, and cost nothing where they are not
    else:
        costs = costs_of(cost)
        job._lane.check_cost(costs, job._session_lane)
    await trio.lowlevel.checkpoint_if_cancelled()
    with scheduler.transition():
        _give_away(job)
        job._costs = costs
        job._readmitting = True
        job._waiting_since = scheduler.now
        if job._session_lane is not None:
            job._session_lane.readmit(job)
        else:
            job._lane.readmit(job)
    if not job._readmitting:
        await trio.lowlevel.cancel_shielded_checkpoint()
        return
    if scheduler.waits:
        _deadlock.holds_on(scheduler, job)
    task = trio.lowlevel.current_task()
    raise_cancel: RaiseCancel | None = None

    def abort(raise_cancel_: RaiseCancel) -> Abort:
        nonlocal raise_cancel
        with scheduler.transition():
            _leave_line(job)
            if job._lenders:  # another task of the job takes the slot back
                assert job._slot_waiters is not None
                job._slot_waiters.remove(task)
                return Abort.SUCCEEDED
            # In the same transition: no job that stood behind it takes the slot in between.
            raise_cancel = raise_cancel_
            _want_back(scheduler, job, is_cancelled=True)
        return Abort.FAILED

    await _slot(job, abort)
    if raise_cancel is not None:
        raise_cancel()


def _leave_line(job: AnyJob) -> None:
    """``job`` is not to be readmitted any more."""
    if job._arrival:  # else its session has not let it stand there
        job._lane.withhold(job)
    readmitted(job)


def readmitted(job: AnyJob) -> None:
    """``job``, which stands in no line any more, is not to be readmitted, or has been."""
    job._readmitting = False
    if job._arrival:
        job._arrival = 0
        job._lane.readmitting -= 1
    session = job._session_lane
    if session is not None:
        del session.readmitting[job]
        session.floor.touch(session)  # it may let another one go
