"""The bodies of jobs as tasks of an asyncio loop: in the place of the workers.

Theory of operation
-------------------
A job that is granted its slot gets an asyncio task at once, in its own context, and no task of
Trio's. The task's done callback reports how the body ended, so the job has its slot until the task
has ended, however long that takes after its cancellation. In the place of a cancel scope the job
has its `AsyncioBody`: the scheduler cancels it, and sets its deadline, as those of a scope.

The lanes' nursery knows nothing of these tasks. One task of the nursery stands for all of them
(`AsyncioBodies.keep`): it lasts until the lanes are shut and no body is left, and its cancellation
is theirs.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any, Final, NoReturn, final

import trio

from .._actors.job import AnyJob
from .._actors.state import CANCELLED
from .._config.errors import JobCancelledError
from .._flow.loop import Scheduler
from .._flow.settling import LANES_CANCELLED, Verdict
from .._flow.workers import shortened, wrapped
from .._waiting.current import enter_job


@final
class AsyncioBodies:
    """The bodies that run as tasks of one loop, for one `open_lanes`."""

    def __init__(self, scheduler: Scheduler, loop: asyncio.AbstractEventLoop) -> None:
        self.scheduler: Final = scheduler
        self.loop: Final = loop
        self.running: Final[dict[AsyncioBody, None]] = {}
        self._end: Final = trio.Event()  # the lanes are shut, and no body runs

    def start(self, job: AnyJob) -> None:
        """Run the body of ``job``, which has its slot."""
        scheduler = self.scheduler
        if self.loop.get_task_factory() is None:
            AsyncioBody(self, job)
        else:  # which is code of the application, so it is called between acts
            scheduler.after_act(AsyncioBody, self, job)

    async def keep(self) -> None:
        """Stand for the bodies in the lanes' nursery."""
        try:
            await self.scheduler.closing.over.wait()
            if self.running:
                await self._end.wait()
        except trio.Cancelled:
            for body in [*self.running]:
                body.cancel(LANES_CANCELLED, with_lanes=True)
            if self.running:
                with trio.CancelScope(shield=True):
                    await self._end.wait()
            raise

    def ended(self, body: AsyncioBody) -> None:
        """The task of ``body`` has ended."""
        task, job, scheduler = body.task, body.job, self.scheduler
        del self.running[body], scheduler.running[job]
        leaves: BaseException | None = None
        if task.cancelled():
            if not body.cancel_called:
                job._let_failure_stay()
                error = JobCancelledError("its task was cancelled")
                scheduler.raised(job, error)
            elif body.with_lanes:
                error = JobCancelledError(LANES_CANCELLED)
                scheduler.judge(job, Verdict(CANCELLED, error), error)
            else:
                leaves = scheduler.interrupted(job)
        elif (failure := task.exception()) is not None:
            leaves = scheduler.raised(job, shortened(failure, __file__))
        else:
            scheduler.returned(job, task.result())
        if leaves is not None:
            scheduler.spawn(partial(_leave, leaves))
        if not self.running and scheduler.closing.shut:
            self._end.set()


@final
class AsyncioBody:
    """The body of one job: what runs it, and what ends it."""

    __slots__ = ("_bodies", "_deadline", "_timer", "cancel_called", "job", "task", "with_lanes")

    def __init__(self, bodies: AsyncioBodies, job: AnyJob) -> None:
        scheduler, context = bodies.scheduler, job._context
        assert context is not None
        self._bodies: Final = bodies
        self.job: Final = job
        self.cancel_called = False
        self.with_lanes = False  # whether it was cancelled with the lanes
        self._deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None
        bodies.running[self] = None
        scheduler.running[job] = job
        context.run(enter_job, job)
        coroutine = wrapped(job, _body) if scheduler.workers.wraps else _body(job._fn, job._args)
        self.task: Final = bodies.loop.create_task(coroutine, name=job.name, context=context)
        self.task.add_done_callback(self._done)
        job._task = job._scope = self
        if job._options.limits_run:
            self.deadline = job._deadline
            scheduler.overdue.expect(job)

    def _done(self, task: asyncio.Task[Any]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._bodies.ended(self)

    @property
    def deadline(self) -> float:
        """When the body is cancelled, on the loop's clock."""
        return self._deadline

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
            if frame is not None and frame.f_code is not _body.__code__:
                yield frame, frame.f_lineno
            coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)


async def _body(fn: Any, args: tuple[Any, ...]) -> Any:
    """The user's function, or a ``wrap``."""
    awaitable = fn(*args)
    return await awaitable


async def _leave(error: BaseException) -> NoReturn:
    """Have ``error`` leave the lanes' nursery."""
    raise error
