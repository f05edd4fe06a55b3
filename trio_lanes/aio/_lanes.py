"""`open_lanes` for asyncio, and the `Lanes`, views and jobs that it gives.

They are the classes of the core, with the same signatures: their synchronous verbs are called in
the loop's thread, which is Trio's thread, too. Their async verbs are coroutines of asyncio's: in a
task of Trio's they are those of the core.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import MappingProxyType, TracebackType
from typing import Any, ClassVar, Final, TypeVar, TypeVarTuple, Unpack, final

import trio

from .. import _lanes as core
from .. import _views as views
from .._actors import job as jobs
from .._actors.job import AnyJob
from .._actors.options import JobOptions, LaneConfig, LaneGroup
from .._actors.wait import Wait
from .._config.names import DEFAULT_LANES
from .._flow.loop import Scheduler
from .._flow.parking import body_finished
from .._instrument import LaneInstrument
from .._nursery import LaneNursery
from .._submission import Submitter
from .._waiting.current import job_here
from ._bodies import AsyncioBodies
from ._bridge import Hosted, call, come_again
from ._guest import GuestRun

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Ts = TypeVarTuple("Ts")

C = TypeVar("C", bound=type[Any])


def verbs(*names: str) -> Callable[[C], C]:
    """Make the async verbs ``names`` of a class, which are those of Trio's, verbs of both."""

    def decorate(cls: C) -> C:
        for name in names:
            setattr(cls, name, _verb(getattr(cls, name)))
        return cls

    return decorate


def _verb(trio_verb: Any) -> Any:
    @wraps(trio_verb)
    async def verb(self: Any, *args: Any, **options: Any) -> Any:
        if trio.lowlevel.in_trio_task():
            return await trio_verb(self, *args, **options)
        _scheduler_of(self).check_thread()
        return await call(trio_verb, self, *args, **options)

    return verb


def _scheduler_of(owner: Any) -> Scheduler:
    scheduler: Any = owner._keeper if isinstance(owner, jobs.Job) else owner._scheduler
    assert isinstance(scheduler, Scheduler)
    return scheduler


@final
class _EndOfJob:
    """A waiter of a job: an asyncio task that is inside no job."""

    __slots__ = ("future", "until_started")

    wait: ClassVar[Wait | None] = None

    def __init__(self, future: asyncio.Future[None], until_started: bool) -> None:
        self.future = future
        self.until_started = until_started

    def job_ended(self, target: AnyJob) -> None:
        if not self.future.done():
            self.future.set_result(None)


async def _wait_for(job: AnyJob, *, until_started: bool = False) -> None:
    """Wait until ``job`` has settled, or has started. Outside of jobs."""
    waiter = _EndOfJob(asyncio.get_running_loop().create_future(), until_started)
    _scheduler_of(job).add_waiter(job, waiter)
    try:
        await waiter.future
    except BaseException:
        if job._waiters:
            job._waiters.pop(waiter, None)
        raise


@verbs("wait_started", "readmit", "_take_back")
@final
class Job(jobs.Job[T_co]):
    """The handle of a job whose body runs in asyncio: `trio_lanes.Job`, awaited in asyncio."""

    __slots__ = ()

    async def wait_done(self) -> None:
        if trio.lowlevel.in_trio_task():
            await jobs.Job.wait_done(self)
            return
        scheduler = _scheduler_of(self)
        scheduler.check_thread()
        if self.done:
            await asyncio.sleep(0)
        elif job_here(scheduler.running) is None:
            await _wait_for(self)
        else:
            await call(jobs.Job.wait_done, self)


class _AsyncioSubmitter(Submitter):
    _job_type: ClassVar[type[AnyJob]] = Job

    async def run(
        self,
        fn: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        **options: Unpack[JobOptions],
    ) -> T:
        scheduler = self._scheduler
        if trio.lowlevel.in_trio_task():
            return await Submitter.run(self, fn, *args, **options)
        if job_here(scheduler.running) is not None or options.get("yield_slot"):
            scheduler.check_thread()
            return await call(Submitter.run, self, fn, *args, **options)
        job: jobs.Job[T] = self._make(fn, args, options, runs=True)
        if not self._enters_at_once(job):
            await call(self._enter, job, runs=True)
        cancelled: asyncio.CancelledError | None = None
        while not job.done:
            try:
                await _wait_for(job)
            except asyncio.CancelledError as error:
                cancelled = error
                scheduler.cancel(job, "its caller was cancelled")
        if cancelled is not None:
            if not body_finished(job):
                raise cancelled
            task = asyncio.current_task()
            assert task is not None
            come_again(task)
        try:
            return job._result()
        finally:
            del job, cancelled  # this frame is in the traceback of the error

    async def submit(
        self,
        fn: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        **options: Unpack[JobOptions],
    ) -> jobs.Job[T]:
        if trio.lowlevel.in_trio_task():
            return await Submitter.submit(self, fn, *args, **options)
        self._scheduler.check_thread()
        return await call(Submitter.submit, self, fn, *args, **options)


_WAITS_FOR_LANES: Final = ("wait_active", "wait_idle", "wait_empty", "wait_room")


@verbs(*_WAITS_FOR_LANES)
@final
class Lane(_AsyncioSubmitter, views.Lane):
    """A global lane: `trio_lanes.Lane`, for asyncio."""


@verbs(*_WAITS_FOR_LANES)
@final
class SessionLane(_AsyncioSubmitter, views.SessionLane):
    """The lane of a session: `trio_lanes.SessionLane`, for asyncio."""


@verbs(*_WAITS_FOR_LANES, "wait_closing", "drain")
@final
class Lanes(_AsyncioSubmitter, core.Lanes):
    """All lanes of one `open_lanes`: `trio_lanes.Lanes`, for asyncio.

    Attributes:
      trio: the `trio_lanes.Lanes` underneath, for instruments, the monitor and recorders, and for
        bodies that are async functions of Trio's.
    """

    _lane_type = Lane
    _session_type = SessionLane
    trio: core.Lanes

    @classmethod
    def _over(cls, lanes: core.Lanes) -> Lanes:
        door = cls.__new__(cls)
        door._scheduler = lanes._scheduler
        door._bound = {}
        door.trio = lanes
        return door

    def open_nursery(self) -> AbstractAsyncContextManager[LaneNursery]:
        return Hosted(core.Lanes.open_nursery(self))


def open_lanes(
    lanes: Mapping[str, int | float | LaneConfig] = DEFAULT_LANES,
    *,
    sessions: LaneConfig = LaneConfig(concurrency=1),
    groups: Mapping[str, LaneGroup] = MappingProxyType({}),
    instruments: Iterable[LaneInstrument] = (),
) -> AbstractAsyncContextManager[Lanes]:
    """Open lanes in an asyncio application: `trio_lanes.open_lanes`, for asyncio."""
    return _OpenedLanes(
        core.open_lanes(lanes, sessions=sessions, groups=groups, instruments=instruments)
    )


@final
class _OpenedLanes(Hosted[Lanes]):
    _guest: GuestRun

    async def __aenter__(self) -> Lanes:
        self._guest = await GuestRun.enter()
        try:
            return await super().__aenter__()
        except BaseException:
            await self._leave_guest()
            raise

    def _made(self, value: core.Lanes) -> Lanes:
        scheduler = value._scheduler
        bodies = AsyncioBodies(scheduler, asyncio.get_running_loop())
        trio_bodies = scheduler.grant
        scheduler.grant = lambda job: (bodies.start if type(job) is Job else trio_bodies)(job)
        scheduler.spawn(bodies.keep)
        return Lanes._over(value)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        try:
            return await super().__aexit__(kind, error, traceback)
        finally:
            await self._leave_guest()

    async def _leave_guest(self) -> None:
        if self._guest.leave():
            await asyncio.wait([self._guest.ended])
