"""Lending: a running job gives its slot in the global lane away while it waits.

Theory of operation
-------------------
A job lends the token of its lane and that of the lane's group, never the session's: no other job of
the session may run meanwhile. `Slot` has the states; `LaneActor` changes them. A job lends from the
first of its tasks that lends (HELD -> LENT) to the last (LENT -> WANTED). It then gets a slot
before all jobs that wait, even if the lane is paused or its tokens are reserved, but within the
limit (WANTED -> HELD). This wait cannot be cancelled, so that a job never cleans up without its
slot. The exception: a cancelled job goes on without a slot if none can come (WANTED -> FORGONE).

A job that is readmitted gives its slot back and waits again, as if it had not started
(HELD -> QUEUED -> HELD). A cancelled job wants a slot to clean up with (QUEUED -> WANTED): in the
batch of its cancellation, so that no job behind it takes the slot in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import trio
from trio.lowlevel import Abort, enable_ki_protection

from .._actors.job import AnyJob
from .._actors.state import FORGONE, HELD, LENT, QUEUED, RUNNING, WANTED
from .._config.exact import Amount
from .._limits.rate import costs_of
from .._waiting import deadlock
from .._waiting.current import jobs_here

if TYPE_CHECKING:
    from .._actors.lane import LaneActor
    from .._actors.session import SessionActor
    from .loop import Scheduler

RaiseCancel = Callable[[], None]


@enable_ki_protection
def lend(scheduler: Scheduler, job: AnyJob, reason: str | None) -> None:
    """Another task of ``job`` lends its slot, for ``reason``.

    Raises:
      RuntimeError: if the current task is not inside ``job``; then nothing has changed.
    """
    _check_inside(scheduler, job)
    with scheduler.batch():
        job._lenders = (*job._lenders, reason)
        if job._slot is HELD:
            job._lane.give_slot_back(job, LENT)
            job._restart_idle_clock()
            scheduler.announcer.tell(scheduler.hooks.job_lent, job)
        elif job._slot is WANTED:  # its former lender need not wait for a slot any more
            job._lane.lend_again(job)
            scheduler.after_act(_wake, job)


@enable_ki_protection
async def take_back(scheduler: Scheduler, job: AnyJob, reason: str | None) -> None:
    """A task of ``job`` lends its slot no more; the last one waits for a new one. Shielded."""
    left = [*job._lenders]
    left.remove(reason)
    job._lenders = (*left,)
    if job._lenders or job._slot is HELD or job._state is not RUNNING:
        await trio.lowlevel.cancel_shielded_checkpoint()
        return
    with scheduler.batch():
        if scheduler.broken is not None:
            job._lane.forgo_slot(job)
        elif job._slot is not QUEUED:  # else it gets a slot when the lane starts it
            # A job that went on without its slot before does so again if none can come.
            gone = job._slot is FORGONE or job.cancel_called or scheduler.closing.shut
            scheduler.want_slot(job, cancelled=gone)
    if job._waits:
        scheduler.waits.break_deadlocks(deadlock.end_of(job))

    def abort(raise_cancel: RaiseCancel) -> Abort:
        with scheduler.act_in_abort():
            was_cancelled(scheduler, job)
        return Abort.FAILED

    if job._slot in (WANTED, QUEUED):
        await _slot(job, abort)
    else:
        await trio.lowlevel.cancel_shielded_checkpoint()


@enable_ki_protection
async def readmit(
    scheduler: Scheduler, job: AnyJob, cost: Amount | Mapping[str, Amount] | None
) -> None:
    """Give the slot back, and return when the lane would start ``job`` again.

    Raises:
      RuntimeError: as `lend`, or if the job has lent its slot.
    """
    _check_inside(scheduler, job)
    if job._lenders or job._slot is not HELD:
        raise RuntimeError(f"{job!r} has lent its slot, so it cannot be readmitted now")
    lane: LaneActor = job._lane
    session: SessionActor | None = job._session_lane
    if cost is None:
        costs = job._options.cost  # its units were checked; a unit that is gone costs nothing
    else:
        costs = costs_of(cost)
        lane.check_cost(costs, session)
    await trio.lowlevel.checkpoint_if_cancelled()
    with scheduler.batch():
        lane.give_slot_back(job, QUEUED)
        job._restart_idle_clock()
        job._costs = costs
        scheduler.queue_again(job)
        scheduler.announcer.tell(scheduler.hooks.job_readmitted, job)
    if not _is_queued(job):
        await trio.lowlevel.cancel_shielded_checkpoint()
        return
    scheduler.waits.break_deadlocks(deadlock.end_of(job))
    task = trio.lowlevel.current_task()
    raise_cancel: RaiseCancel | None = None

    def abort(raise_cancel_: RaiseCancel) -> Abort:
        nonlocal raise_cancel
        with scheduler.act_in_abort():
            if not _is_queued(job):
                return Abort.FAILED  # it has been started again, and is about to be woken
            if session is not None:
                session.readmitted(job)
            if job._lenders:  # another task of the job takes the slot back
                assert job._slot_waiters is not None
                job._slot_waiters.remove(task)
                lane.cease_queueing(job)
                return Abort.SUCCEEDED
            raise_cancel = raise_cancel_
            lane.want_slot(job, cancelled=True)
        return Abort.FAILED

    scheduler.running.seeking[task] = None
    try:
        await _slot(job, abort)
    finally:
        del scheduler.running.seeking[task]
    if raise_cancel is not None:
        raise_cancel()


def slot_came(scheduler: Scheduler, job: AnyJob) -> None:
    """``job``, which runs, holds a slot again."""
    job._restart_idle_clock()
    scheduler.after_act(_wake, job)
    scheduler.announcer.tell(scheduler.hooks.job_regained, job)
    if job._lenders:  # it was readmitted, and others of its tasks lend its slot
        job._lane.give_slot_back(job, LENT)
        job._restart_idle_clock()
        scheduler.announcer.tell(scheduler.hooks.job_lent, job)


def forgo(scheduler: Scheduler, job: AnyJob) -> None:
    """Let ``job``, which is cancelled, clean up without a slot: else it would never end."""
    job._lane.forgo_slot(job)
    scheduler.after_act(_wake, job)


def was_cancelled(scheduler: Scheduler, job: AnyJob) -> None:
    """Let ``job``, which was cancelled, go on without its slot if none can come."""
    if job._lane.slot_requests.get(job) is False:
        with scheduler.batch():
            job._lane.cancel_slot_request(job)


def stop(scheduler: Scheduler, job: AnyJob) -> None:
    """``job`` has ended, or was given up, while it was without a slot."""
    if job._slot is QUEUED and job._session_lane is not None:
        job._session_lane.readmitted(job)
    job._lane.drop(job)
    scheduler.after_act(_wake, job)


def _check_inside(scheduler: Scheduler, job: AnyJob) -> None:
    """Refuse a task that is not inside ``job``: the body would go on without its slot."""
    scheduler.check_thread()
    if job._state is RUNNING and job not in jobs_here(scheduler.running):
        raise RuntimeError(f"only a task inside {job!r} can give its slot away")


def _is_queued(job: AnyJob) -> bool:
    return job._slot is QUEUED


async def _slot(job: AnyJob, abort: Callable[[RaiseCancel], Abort]) -> None:
    """Wait for the slot that ``job`` does not have now."""
    job._slot_waiters = [*(job._slot_waiters or ()), trio.lowlevel.current_task()]
    await trio.lowlevel.wait_task_rescheduled(abort)


def _wake(job: AnyJob) -> None:
    tasks, job._slot_waiters = job._slot_waiters, None
    for task in tasks or ():
        trio.lowlevel.reschedule(task)
