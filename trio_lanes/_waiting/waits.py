"""Waiting for a job: who waits for whom, and how a waiting task is woken.

Each wait is known at both ends: to the job that is waited for, which wakes the task, and to the job
that the task belongs to, if any, so that a wait which can never end is found when it begins. Who
waits for many jobs, or is no task, has each of them tell it by a `Waiter` of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import attrs
import outcome
import trio
from trio.lowlevel import Abort, Task, enable_ki_protection

from .._config.errors import LaneDeadlockError
from .._actors.state import SUCCEEDED, WAITING

if TYPE_CHECKING:
    from .._actors.job import AnyJob
    from .room import Entrant

RaiseCancel = Callable[[], Any]

_FOR_EVER: Final = "its caller would have waited for ever"


class Waiter(Protocol):
    """Who is told of a job what has come: its end or, if that is enough, its start."""

    @property
    def until_started(self) -> bool:
        """Whether its start is enough."""

    def tell(self, target: AnyJob) -> None:
        """It has come to ``target``, inside a transition. Never raises; told once."""


@final
@attrs.frozen(eq=False)
class Wait:
    """One task that waits."""

    task: Task
    job: AnyJob | None
    """The job that the task belongs to."""
    target: AnyJob | None = None
    """The job that it waits for, or"""
    any_of: Collection[AnyJob] = ()
    """the jobs any of which it waits for, as they are now, which tell somebody else, or"""
    entrant: Entrant | None = None
    """the submission that waits for room."""
    runs: bool = False
    """Whether it will then wait for the end of what it submits."""
    until_started: bool = False
    """Whether it waits for the start of its target only."""
    failed: Callable[[], None] = lambda: None
    """Called when it ends in an error instead."""

    def begin(self) -> None:
        """Know of it.

        Raises:
          LaneDeadlockError: if it would never end; then nothing has changed.
        """
        if self.target is not None:
            self.target._waiters = self.target._waiters or {}
            self.target._waiters[self.task] = self
        if self.job is None:
            return
        self.job._waits = self.job._waits or {}
        self.job._waits[self.task] = self
        self.job._keeper.waits[self] = None
        try:
            self.job._keeper.check(self)
        except BaseException:
            self.end()
            raise
        self.job._keeper.awaited()

    def end(self) -> None:
        """Forget it."""
        if self.target is not None:
            assert self.target._waiters is not None
            del self.target._waiters[self.task]
        if self.job is not None:
            assert self.job._waits is not None
            del self.job._waits[self.task]
            del self.job._keeper.waits[self]

    def fail(self, error: LaneDeadlockError) -> None:
        """Have it end in ``error``: what it waits for would never come."""
        if self.entrant is not None:
            self.entrant.job._keeper.refuse(self.entrant, error)
            return
        self.end()
        self.failed()
        trio.lowlevel.reschedule(self.task, outcome.Error(error))

    def tell(self, target: AnyJob) -> None:
        """Wake the task: what it waits for has come."""
        self.end()
        trio.lowlevel.reschedule(self.task)


async def park(target: AnyJob, *, until_started: bool = False) -> None:
    """Wait for the end of ``target``, which has not settled, or for its start."""
    job = target._keeper.waiting_job()
    wait = Wait(trio.lowlevel.current_task(), job, target, until_started=until_started)
    wait.begin()

    def abort(raise_cancel: RaiseCancel) -> Abort:
        wait.end()
        return Abort.SUCCEEDED

    await trio.lowlevel.wait_task_rescheduled(abort)


@enable_ki_protection
async def park_as_caller(target: AnyJob) -> None:
    """The second half of ``run``: whoever cancels this wait cancels ``target``.

    The abort function keeps the cancellation and lets the wait go on, so that it is raised, if at
    all, in this task and after the job has ended: catching `Cancelled` around a wait would lose a
    value that arrives in the tick of the cancellation.
    """
    if target.done:  # it was not to wait, or ended before this task, which waited for room
        if _body_had_its_say(target):
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            await trio.lowlevel.checkpoint()
        return
    keeper = target._keeper
    wait = Wait(trio.lowlevel.current_task(), keeper.waiting_job(), target)
    raise_cancel: RaiseCancel | None = None

    def abort(raise_cancel_: RaiseCancel) -> Abort:
        nonlocal raise_cancel
        has_ended = target.done  # cancelled by a hook, or by another who is told: we are next
        if has_ended:
            raise_cancel = raise_cancel_
            return Abort.FAILED
        waiters = target._waiters
        assert waiters is not None
        del waiters[wait.task]  # a job that settles in here must not wake this task
        keeper.cancel(target, "its caller was cancelled")
        waiters[wait.task] = wait
        if target.done:
            wait.end()
            return Abort.SUCCEEDED
        raise_cancel = raise_cancel_
        return Abort.FAILED

    try:
        wait.begin()
        await trio.lowlevel.wait_task_rescheduled(abort)
    except Exception:  # a deadlock
        keeper.cancel(target, _FOR_EVER)
        await _end_of_cancelled(target)
        raise
    if raise_cancel is not None and not _body_had_its_say(target):
        raise_cancel()


async def _end_of_cancelled(target: AnyJob) -> None:
    """Wait, shielded, for the end of ``target``, unless that waits for this job even now."""
    with trio.CancelScope(shield=True), suppress(LaneDeadlockError):
        if not target.done:
            await park(target)


def _body_had_its_say(job: AnyJob) -> bool:
    """Whether its body returned or raised, so that its caller is told even if cancelled."""
    # Only a body leaves a traceback: every other error was made by these lanes.
    return job._state is SUCCEEDED or job._traceback is not None


def wake(target: AnyJob) -> None:
    """Tell whoever waits for what has come: the start of ``target``, or its end."""
    assert target._state is not WAITING
    waiters = target._waiters or {}
    for key, waiter in list(waiters.items()):
        # One that is told may cancel another, which then waits no more.
        if (waiter.until_started or target.done) and key in waiters:
            waiter.tell(target)
