"""The bodies of jobs as tasks of an asyncio loop: in the place of the workers.

Theory of operation
-------------------
A job that is granted its slot gets an asyncio task at once, in its own context, and no task of
Trio's. The task's done callback reports how the body ended, so the job has its slot until the task
has ended, however long that takes after its cancellation. In the place of a cancel scope the job
has its `AsyncioBody`: the scheduler cancels it, and sets its deadline, as those of a scope.

The lanes' nursery knows nothing of these tasks. One task of the nursery stands for all of them
(`AsyncioBodies._keep`): it lasts until the lanes are shut and no body is left, and its cancellation
is theirs.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from types import CoroutineType, FrameType
from typing import Any, Final, NoReturn, TypeVar, cast, final

import trio

from .._actors.job import AnyJob
from .._actors.state import CANCELLED, RUNNING
from .._config.errors import JobCancelledError
from .._config.names import name_of
from .._flow.loop import Scheduler
from .._flow.settling import LANES_CANCELLED, Verdict
from .._flow.workers import shortened, wrapped
from .._waiting.current import enter_job
from ._bridge import Gate, in_asyncio, without
from ._guest import in_own_turn, new_task
from ._kin import kin_here

logger: Final = logging.getLogger("trio_lanes")

T = TypeVar("T")

_NOT_RETURNED: Final = object()


@final
class AsyncioBodies:
    """The bodies that run as tasks of one loop, for one `open_lanes`."""

    def __init__(
        self, scheduler: Scheduler, loop: asyncio.AbstractEventLoop, kind: type[AnyJob]
    ) -> None:
        """Run the bodies of the jobs of that ``kind``; those of others stay with the workers."""
        self.scheduler: Final = scheduler
        self.loop: Final = loop
        self.running: Final[dict[AsyncioBody, None]] = {}
        self._kind: Final = kind
        self.kin: Final = kin_here()
        self._end: Final = Gate()  # open when the lanes are shut, and no body runs
        self._granted_to_workers: Final = scheduler.run_body
        scheduler.run_body = self._granted
        scheduler.closing.over = self._open_at_end
        scheduler.spawn(self._keep)

    def _granted(self, job: AnyJob) -> None:
        """Run the body of ``job``, which has its slot."""
        if type(job) is not self._kind:
            self._granted_to_workers(job)
            return
        try:
            AsyncioBody(self, job)
        except BaseException as error:  # of a task factory
            self.scheduler.after_act(self._has_no_task, job, error)

    def _has_no_task(self, job: AnyJob, error: BaseException) -> None:
        """The body of ``job`` ends before it has begun, by ``error``."""
        were_shut = self.scheduler.closing.shut
        if job._state is RUNNING:  # else it was reset
            leaves = self.scheduler.raised(job, shortened(error, __file__))
            if leaves is not None:
                self._let_leave(job, leaves, were_shut=were_shut)

    async def _keep(self) -> None:
        """Stand for the bodies in the lanes' nursery."""
        try:
            await self._end.wait(self._cancel)
        except trio.Cancelled:
            self.scheduler.stop(LANES_CANCELLED)
            self._cancel()  # those that have begun since
            if self.running:
                with trio.CancelScope(shield=True):
                    await self._end.wait()
            raise

    def _cancel(self) -> None:
        for body in [*self.running]:
            body.cancel(LANES_CANCELLED, with_lanes=True)

    def _open_at_end(self) -> None:
        if not self.running and self.scheduler.closing.shut:
            self._end.open()

    def ended(self, body: AsyncioBody) -> None:
        """The task of ``body`` has ended."""
        task, job, scheduler = body.task, body.job, self.scheduler
        were_shut = scheduler.closing.shut
        leaves: BaseException | None = None
        del self.running[body], scheduler.running[job]
        self.kin.body_ended(task, job)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            error = without(asyncio.CancelledError, shortened(error, __file__))
        if not body.has_begun and job._state is not RUNNING:
            pass  # it was reset before
        elif body.value is not _NOT_RETURNED:  # also if it cancelled its task itself
            scheduler.returned(job, body.value)
        elif error is not None:
            leaves = scheduler.raised(job, error)
        elif not body.cancel_called:
            job._let_failure_stay()
            scheduler.raised(job, JobCancelledError("its task was cancelled"))
        elif body.with_lanes:
            cancelled = JobCancelledError(LANES_CANCELLED)
            scheduler.settle_after_error(job, Verdict(CANCELLED, cancelled), cancelled)
        else:
            leaves = scheduler.interrupted(job)
        if leaves is not None:
            self._let_leave(job, leaves, were_shut=were_shut)
        self._open_at_end()

    def _let_leave(self, job: AnyJob, error: BaseException, *, were_shut: bool) -> None:
        """Have ``error``, which has shut the lanes unless they were, leave their nursery."""
        if not were_shut:  # a web server may serve on, though the block of the lanes is left
            self.scheduler.closing.is_logged = True
            logger.error(
                "lanes are closed for good since job %d raised %r; "
                "each call is now a LanesClosedError",
                job.id,
                error,
            )
        self.scheduler.spawn(partial(_leave, error))


@final
class AsyncioBody:
    """The body of one job: what runs it, and what ends it."""

    def __init__(self, bodies: AsyncioBodies, job: AnyJob) -> None:
        self._bodies: Final = bodies
        self.job: Final = job
        self.value: Any = _NOT_RETURNED
        self.has_begun = False
        self.cancel_called = False
        self.with_lanes = False  # whether it was cancelled with the lanes
        self._deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None
        context = job._context
        assert context is not None
        context.run(enter_job, job)
        # first: if it cannot be made, nothing has changed
        self.task: Final = new_task(bodies.loop, self._run(), context, self._done, name=job.name)
        bodies.running[self] = None
        bodies.scheduler.running[job] = job
        bodies.kin.bodies[self.task] = job
        job._scope = self
        if job._options.limits_run:
            self.deadline = job._deadline
            bodies.scheduler.overdue.expect(job)

    async def _run(self) -> None:
        await in_own_turn(self._bodies.loop)
        job = self.job
        self.has_begun, job._task = True, self
        try:
            if self._bodies.scheduler.workers.wraps:
                self.value = await wrapped(job, awaited)
            else:
                self.value = await awaited(job._fn, job._args)
        finally:
            del self, job  # the task keeps this frame, in the traceback of an error

    def _done(self, task: asyncio.Task[Any]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._bodies.ended(self)

    @property
    def deadline(self) -> float:
        """When the body is cancelled, on the loop's clock."""
        return self._deadline  # pragma: no cover - the core sets it, and reads that of the job

    @deadline.setter
    def deadline(self, when: float) -> None:
        self._deadline = when
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when < math.inf:
            self._timer = self._bodies.loop.call_at(when, self.cancel)

    def cancel(self, reason: str | None = None, *, with_lanes: bool = False) -> None:
        """Cancel the task, once."""
        if not self.cancel_called:
            self.cancel_called = True
            self.with_lanes = with_lanes
            self.task.cancel(reason)

    def iter_await_frames(self) -> Iterator[tuple[FrameType, int]]:
        """As `trio.lowlevel.Task.iter_await_frames`, for the asyncio task."""
        coro: Any = self.task.get_coro()
        while coro is not None:
            frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
            if frame is not None and frame.f_code.co_filename != __file__:
                yield frame, frame.f_lineno
            coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)


async def awaited(fn: Any, args: tuple[Any, ...]) -> Any:
    """The user's function, or a ``wrap``.

    Raises:
      TypeError: if it is none of asyncio's.
    """
    awaitable = fn(*args)
    if type(awaitable) is not CoroutineType and not isinstance(awaitable, Awaitable):
        raise TypeError(
            f"{fn!r} is not async: it returned {awaitable!r}; write `async def`, or run it in a"
            f" thread by `trio_lanes.aio.to_thread`; {_TRIO}"
        )
    try:
        return await awaitable
    except RuntimeError as error:
        if str(error).startswith(_MARKS_OF_TRIO):
            raise TypeError(f"{fn!r} is no async function of asyncio's; {_TRIO}") from error
        raise


def to_trio(fn: Callable[..., Awaitable[T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    """Return an async function of Trio's that awaits ``fn`` in a task of asyncio's."""

    async def crossing(*args: Any) -> T:
        return cast("T", await in_asyncio(awaited, fn, args))

    crossing.__qualname__ = name_of(fn)
    return crossing


_TRIO: Final = "submit async functions of Trio's through `lanes.trio`"

_MARKS_OF_TRIO: Final = ("must be called from async context", "Task got bad yield")
"""How the errors begin that Trio raises outside of its tasks, and asyncio for what Trio yields."""


async def _leave(error: BaseException) -> NoReturn:
    """Have ``error`` leave the lanes' nursery."""
    raise error
