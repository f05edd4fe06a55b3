"""How a task waits for a job or for room, and is woken or refused.

Each wait is recorded at both ends: at the job that the task waits for, which wakes the task, and at
the job inside which the task waits, if any, so that a wait that can never end is found when it
begins.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import outcome
import trio
from trio.lowlevel import Abort, enable_ki_protection

from .._actors.job import AnyJob
from .._actors.state import SUCCEEDED
from .._actors.wait import Wait
from .._config.errors import LaneDeadlockError
from .._waiting.current import job_here

if TYPE_CHECKING:
    from .loop import Scheduler

RaiseCancel = Callable[[], Any]

_FOR_EVER: Final = "its caller would have waited for ever"


async def park(scheduler: Scheduler, target: AnyJob, *, until_started: bool) -> None:
    """Wait for the end of ``target``, which has not settled, or for its start."""
    # without a variable for the job: this may go on after its end, and would keep it alive
    task = trio.lowlevel.current_task()
    wait = Wait(task, job_here(scheduler.running), target, until_started=until_started)
    scheduler.waits.begin(wait)

    def abort(raise_cancel: RaiseCancel) -> Abort:
        scheduler.waits.forget(wait)
        return Abort.SUCCEEDED

    await trio.lowlevel.wait_task_rescheduled(abort)


@enable_ki_protection
async def run_for_caller(scheduler: Scheduler, target: AnyJob) -> None:
    """Wait for ``target`` as ``run`` does: the cancellation of this wait cancels ``target``.

    That is, unless it stands for a submission of others, too: then only the wait is cancelled.

    The abort function keeps the cancellation and lets the wait go on, so that it is raised, if at
    all, in this task and after the job has ended: catching `Cancelled` around a wait would lose a
    value that arrives in the tick of the cancellation.
    """
    if target.done:  # ``queue_timeout=0``, or it ended before this task, which waited for room
        if body_finished(target):
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            await trio.lowlevel.checkpoint()
        return
    wait = Wait(trio.lowlevel.current_task(), job_here(scheduler.running), target)
    raise_cancel: RaiseCancel | None = None

    def abort(raise_cancel_: RaiseCancel) -> Abort:
        nonlocal raise_cancel
        has_ended = target.done  # then it is about to wake this task
        if not has_ended and target._options.caller_left():
            scheduler.waits.forget(wait)
            return Abort.SUCCEEDED
        if not has_ended:
            waiters = target._waiters
            assert waiters is not None
            del waiters[wait.task]  # a job that settles in here must not wake this task
            with scheduler.act_in_abort():
                scheduler.cancel(target, "its caller was cancelled")
            waiters[wait.task] = wait
            if target.done:
                scheduler.waits.forget(wait)
                return Abort.SUCCEEDED
        raise_cancel = raise_cancel_
        return Abort.FAILED

    try:
        scheduler.waits.begin(wait)
        await trio.lowlevel.wait_task_rescheduled(abort)
    except Exception:  # a deadlock
        if target._options.caller_left():
            raise
        scheduler.cancel(target, _FOR_EVER)
        await _end_of_cancelled(scheduler, target)
        raise
    finally:
        if scheduler.unserved:
            scheduler.catch_up()
    if raise_cancel is not None and not body_finished(target):
        raise_cancel()


async def _end_of_cancelled(scheduler: Scheduler, target: AnyJob) -> None:
    """Wait, shielded, for the end of ``target``, unless it waits for this job even now."""
    with trio.CancelScope(shield=True), suppress(LaneDeadlockError):
        if not target.done:
            await park(scheduler, target, until_started=False)


def body_finished(job: AnyJob) -> bool:
    """Whether its body returned or raised: then its caller gets that, also if it was cancelled."""
    # Only a body leaves a traceback: every other error was made by these lanes.
    return job._state is SUCCEEDED or job._traceback is not None


@enable_ki_protection
async def wait_for_room(scheduler: Scheduler, job: AnyJob, *, runs: bool) -> AnyJob:
    """Wait for room for ``job``, which is then accepted. If cancelled, it has not been accepted.

    Returns ``job``, or the job of the same key that was accepted meanwhile.

    Args:
      runs: whether this task will then wait for the end of the job.

    Raises:
      LaneDeadlockError: if the wait would never end.
      LanesClosedError: if the lanes close meanwhile, unless it is submitted inside of them.
    """
    task = trio.lowlevel.current_task()

    def on_decision(what: outcome.Maybe[AnyJob]) -> None:
        scheduler.waits.forget(wait)
        trio.lowlevel.reschedule(task, what)

    request = scheduler.request_room(job, on_decision)
    wait = Wait(task, job_here(scheduler.running), request=request, runs=runs)
    try:
        scheduler.waits.begin(wait)
    except BaseException:  # the wait would never end, so nothing of it stays
        scheduler.drop_request(request)
        raise

    def abort(raise_cancel: RaiseCancel) -> Abort:
        with scheduler.act_in_abort():
            scheduler.waits.forget(wait)
            scheduler.drop_request(request)
        return Abort.SUCCEEDED

    try:
        accepted: AnyJob = await trio.lowlevel.wait_task_rescheduled(abort)
    finally:
        if scheduler.unserved:
            scheduler.catch_up()
    return accepted
