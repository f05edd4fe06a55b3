"""`open_nursery`: a Trio nursery whose children are jobs in lanes.

Theory of operation. A `LaneNursery` is a client of the public verbs. It holds a Trio nursery, and
submits each child by `submit_nowait`, so that the child has its place in its queue when the call
returns. For each child a task of the Trio nursery waits for the end of the job, and fails if the
job has failed. Everything else then follows from Trio's nursery: leaving waits for these tasks,
the first failure cancels the other tasks, and exceptions leave in one exception group.

Invariants:

* ``_children`` holds exactly the jobs whose waiting task has not ended, in the order of submission.
* A waiting task ends only after its job has ended. So the Trio nursery, which waits for all of its
  tasks, outlives each child. The one exception is a deadlock that the cancellation of a child does
  not undo.
* A waiting task that learns of a cancellation, or of a failure, cancels all children at once, and
  not only its own child: the waiting children are withdrawn before a running child can give its
  slot to a waiting child.

Rejected alternative: a Trio nursery whose children call `Lanes.run`. Trio starts tasks in random
order, so the children lost the order of the calls.

A waiting task notices a failure in the next pass of Trio's scheduler. The nursery itself hears of
it when the job settles (`Job.on_settled`), before the lane gives the slot of the failed job away:
so no waiting child starts after a failure.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack, final

import trio
from trio.lowlevel import enable_ki_protection

from ._actors.job import AnyJob, Job
from ._actors.options import JobOptions
from ._actors.state import CANCELLED, WAITING
from ._config.errors import (
    JobCancelledError,
    LaneDeadlockError,
    LaneResetError,
    QueueTimeoutError,
)
from ._config.protected import protected_context
from ._flow.settling import LANES_CANCELLED
from ._submission import Submitter

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_CLEARED: Final = "its nursery was cleared"
_STOPPED: Final = "its nursery was cancelled"


@final
class LaneNursery:
    """A nursery whose children are jobs: ``async with lanes.open_nursery() as jobs``.

    Only `Lanes.open_nursery` makes one, and describes its end and the failures of its children.
    """

    _submitter: Submitter
    _nursery: trio.Nursery
    # Around the block. It also gives its task a cancel status of its own, as in `open_lanes`: a
    # callback may start a child while Trio delivers a cancellation to this task.
    _block: trio.CancelScope
    _children: dict[AnyJob, None]
    _body_has_ended: bool
    _stopping: bool

    def __init__(self) -> None:
        raise TypeError("only Lanes.open_nursery makes a LaneNursery")

    @classmethod
    def _create(cls, submitter: Submitter, nursery: trio.Nursery) -> LaneNursery:
        jobs = cls.__new__(cls)
        jobs._submitter = submitter
        jobs._nursery = nursery
        jobs._block = trio.CancelScope()
        jobs._children = {}
        jobs._body_has_ended = False
        jobs._stopping = False
        return jobs

    def __repr__(self) -> str:
        waiting = sum(job.state is WAITING for job in self._children)
        active = sum(not job.done for job in self._children) - waiting
        return f"<trio_lanes.LaneNursery at {id(self):#x}, {active} active, {waiting} waiting>"

    @property
    def cancel_scope(self) -> trio.CancelScope:
        """The scope around the block and all children, as that of a `trio.Nursery`.

        Its cancellation, or its deadline, withdraws waiting children and cancels running children.
        With ``shield`` a cancellation from outside of the nursery reaches no child.
        """
        return self._nursery.cancel_scope

    @enable_ki_protection
    def start_soon(
        self,
        fn: Callable[[*Ts], Awaitable[object]],
        /,
        *args: *Ts,
        **options: Unpack[JobOptions],
    ) -> None:
        """Submit a child. It takes its place in its queue at the call.

        Any task may call it until the nursery has closed, also the body of a child. If the nursery
        was cancelled, or a child has failed, the new child is withdrawn in the call and never
        starts, as a task that starts in a cancelled nursery of Trio is cancelled. Not a checkpoint.

        Raises:
          LaneFullError: if a lane on its way is full, or other jobs wait for room in it.
          RuntimeError: if the block was left and no child is there any more.
          TypeError, ValueError, UnknownLaneError, LanesClosedError: as `Lanes.submit_nowait`.
        """
        self._start(fn, args, options)

    @enable_ki_protection
    def submit_nowait(
        self,
        fn: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        **options: Unpack[JobOptions],
    ) -> Job[T]:
        """As `start_soon`, and return the handle.

        If the child fails, the nursery fails, whether or not a task waits for the handle. Raises
        what `start_soon` raises. Not a checkpoint.
        """
        job: Job[T] = self._start(fn, args, options)
        return job

    def _start(self, fn: Any, args: tuple[Any, ...], options: Any) -> AnyJob:
        if options.get("coalesce") is not None:
            raise ValueError("coalesce is for lanes: a child belongs to its nursery alone")
        if self._body_has_ended and not self._children:
            raise RuntimeError("Nursery is closed to new arrivals")
        if self._stopping or self._nursery.cancel_scope.cancel_called:
            return self._withdrawn(fn, args, options)
        job: AnyJob = self._submitter.submit_nowait(fn, *args, **options)
        self._children[job] = None
        job.on_settled(self._child_settled)
        self._nursery.start_soon(self._wait_for, job, name=job.name)
        return job

    def _withdrawn(self, fn: Any, args: tuple[Any, ...], options: Any) -> AnyJob:
        """Submit a child and withdraw it, in one batch: so no lane starts it."""
        scheduler = self._submitter._scheduler
        with scheduler.batch():
            job: AnyJob = self._submitter._make(fn, args, options)
            scheduler.submit(job)
            job.cancel(_STOPPED)
        return job

    @enable_ki_protection
    def clear(self) -> int:
        """Withdraw the children that have not started. Returns how many.

        They settle with `JobCancelledError`, which is no failure of the nursery. Running children,
        jobs of the same lanes that are no children, and the nursery itself are not touched. Not a
        checkpoint.
        """
        return sum(job.cancel(_CLEARED) for job in self._last_first() if job.state is WAITING)

    def _child_settled(self, job: AnyJob) -> None:
        """Cancel all children if the end of ``job`` is a failure, before its slot is taken."""
        if not self._stopping and _failure(job) is not None:
            self._stop()

    def _stop(self) -> None:
        """Cancel all children."""
        if not self._stopping:  # each waiting task calls this
            self._stopping = True
            # Before waiters are told: the block is cancelled, as in Trio, and is not told what
            # follows from the failure. It would fail by that, too.
            self._submitter._scheduler.after_act(self._block.cancel)
            for job in self._last_first():
                job.cancel(_STOPPED)

    def _last_first(self) -> list[AnyJob]:
        """The children, in reverse order: a head that goes may let its successor start."""
        return sorted(self._children, key=lambda job: (job.priority, -job.id))

    @enable_ki_protection
    async def _wait_for(self, job: AnyJob) -> None:
        """Wait until ``job`` has ended, and raise if that is a failure of the nursery."""
        try:
            try:
                await job.wait_done()
            except (trio.Cancelled, LaneDeadlockError) as error:
                self._stop()
                with trio.CancelScope(shield=True):
                    await job.wait_done()
                # A body that has returned, or raised, in spite of its cancellation, has the word.
                # And no cancellation ends a child by a queue timeout or a reset.
                has_failed = job.state is not CANCELLED or isinstance(
                    job.exception, QueueTimeoutError | LaneResetError
                )
                if not has_failed or isinstance(error, LaneDeadlockError):
                    raise
        finally:
            del self._children[job]
        failure = _failure(job)
        if failure is not None:
            self._stop()
            try:
                raise failure
            finally:
                del failure, job, self  # this frame is in its traceback


def _failure(job: AnyJob) -> BaseException | None:
    """The error with which the end of ``job`` fails its nursery; None if it does not."""
    error = job.exception
    if job.state is not CANCELLED or not isinstance(error, JobCancelledError):
        return error
    if isinstance(error, LaneResetError) or error.reason is LANES_CANCELLED:
        return error
    return None  # it was cleared or cancelled by name


@protected_context
async def opened(submitter: Submitter) -> AsyncIterator[LaneNursery]:
    """The block of a `LaneNursery`."""
    async with trio.open_nursery(strict_exception_groups=True) as nursery:
        jobs = LaneNursery._create(submitter, nursery)
        try:
            with jobs._block:
                yield jobs
        except BaseException:
            jobs._stop()
            raise
        finally:
            jobs._body_has_ended = True
