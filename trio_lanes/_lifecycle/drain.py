"""`Lanes.drain`: let jobs end within a grace, cancel the rest, give up bodies that do not stop."""

from __future__ import annotations

from typing import Literal, final

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from .._actors.job import AnyJob
from .._actors.state import CANCELLED, RUNNING
from .._config.check import seconds
from .._flow.loop import Scheduler
from .._waiting.current import jobs_here
from .control import abandon_all, jobs_in, wait_until


@final
@attrs.frozen
class DrainReport:
    """How the jobs ended that waited or ran when a drain began, or were submitted meanwhile."""

    finished: int
    """Jobs that ended by themselves. What other code cancels or clears is in none of the counts."""
    cancelled: int
    """Jobs that the drain cancelled, before or after they had started."""
    abandoned: int
    """Jobs whose bodies outlived their cancellation, and were given up."""


@enable_ki_protection
async def drain(
    scheduler: Scheduler,
    *,
    reason: str,
    grace: float,
    cancel_grace: float,
    waiting: Literal["finish", "cancel"],
) -> DrainReport:
    """Close the lanes and wait until no job waits or runs. See `Lanes.drain`."""
    seconds("grace", grace)
    seconds("cancel_grace", cancel_grace)
    if waiting not in ("finish", "cancel"):
        raise ValueError(f"waiting must be 'finish' or 'cancel', not {waiting!r}")
    scheduler.check_thread()
    before = scheduler.ends.by_themselves
    cancelled, abandoned = scheduler.close(reason), 0
    if waiting == "cancel":
        cancelled += _withdraw_waiting(scheduler)
    with trio.move_on_after(grace) as in_time:
        await wait_until(scheduler, None, idle=True)
    if in_time.cancelled_caught:
        cancelled += _withdraw_waiting(scheduler)
        scheduler.shut_down(reason)  # a job that cleans up submits nothing more
        running = _running(scheduler)
        for job in running:
            job.cancel(reason)
        left: dict[AnyJob, None] = {}  # also jobs that do not wait for this job any more
        with trio.move_on_after(cancel_grace) as in_time:
            await wait_until(scheduler, None, idle=True)
        if in_time.cancelled_caught:
            left = dict.fromkeys(_running(scheduler))
            abandoned = abandon_all(scheduler, left)
        cancelled += sum(job.state is CANCELLED for job in running if job not in left)
    return DrainReport(scheduler.ends.by_themselves - before, cancelled, abandoned)


def _withdraw_waiting(scheduler: Scheduler) -> int:
    return scheduler.withdraw_all(
        [job for lane in scheduler.lanes.values() for job in lane.waiting_jobs()],
        lambda job: scheduler.closing.error(),
    )


def _running(scheduler: Scheduler) -> list[AnyJob]:
    left_out = scheduler.watches.left_out(jobs_here(scheduler.running))
    running = (job for job in jobs_in(scheduler) if job.state is RUNNING)
    return [job for job in running if not left_out.has(job)]
