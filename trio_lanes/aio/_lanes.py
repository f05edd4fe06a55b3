"""`open_lanes` for asyncio, and the `Lanes`, views and jobs that it gives.

They are the classes of the core, with the same signatures. Their synchronous verbs are called in
the loop's thread, which is Trio's thread, too. Their async verbs are coroutines of asyncio's; in a
task of Trio's they are those of the core. So one object serves both sides, hooks included.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import MappingProxyType
from typing import Any, ClassVar, Final, NoReturn, TypeVar, final

import outcome
import trio

from .. import _lanes as core
from .. import _map as core_map
from .. import _views as views
from .._actors import job as jobs
from .._actors.job import AnyJob
from .._actors.options import LaneConfig, LaneGroup
from .._actors.wait import RoomRequest
from .._config.names import DEFAULT_LANES
from .._flow.loop import Scheduler
from .._flow.parking import body_finished, run_for_caller
from .._flow.settling import LANES_CANCELLED
from .._instrument import LaneInstrument
from .._submission import Submitter
from .._waiting.current import job_here, jobs_by_task
from ._bodies import AsyncioBodies
from ._bridge import FromAsyncio, Hosted, HostedRun, call, verbs
from ._guest import come_again, this_task, wait_for

T_co = TypeVar("T_co", covariant=True)


@final
class _EndOfJob:
    """A waiter of a job: an asyncio task that is inside no job."""

    __slots__ = ("future",)

    until_started: Final = False
    wait: Final = None

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future: Final = future

    def job_ended(self, target: AnyJob) -> None:
        if not self.future.done():
            self.future.set_result(None)


# ---- verbs that need no task of Trio's, unless the caller is inside a job: then they are waits of
# ---- that job, and a deadlock is an error


async def _wait_done(job: AnyJob) -> None:
    if job.done:
        await asyncio.sleep(0)
        return
    if job_here(jobs_by_task()) is not None:
        await call(jobs.Job.wait_done, job)
        return
    waiter = _EndOfJob(asyncio.get_running_loop().create_future())
    job._keeper.add_waiter(job, waiter)
    try:
        await waiter.future
    except BaseException:
        if job._waiters:
            job._waiters.pop(waiter, None)
        raise


async def _room(lanes: Submitter, job: AnyJob, *, runs: bool) -> asyncio.CancelledError | None:
    """Wait for room for ``job``; return a cancellation that came when it was accepted already."""
    # Python 3.11 does not trace what a task does after its cancellation: hence the pragmas
    scheduler = lanes._scheduler
    if job_here(scheduler.running) is not None:
        await call(lanes._enter, job, runs=runs)
        return None
    decided: asyncio.Future[outcome.Maybe[None]] = asyncio.get_running_loop().create_future()
    request = scheduler.request_room(job, decided.set_result)
    cancelled = await wait_for(decided, lambda: _give_up(scheduler, request, decided))
    if decided.cancelled():  # pragma: no cover - see above
        assert cancelled is not None
        raise cancelled
    decided.result().unwrap()
    return cancelled


def _give_up(scheduler: Scheduler, request: RoomRequest, decided: asyncio.Future[Any]) -> None:
    if not decided.done():
        scheduler.give_up_room(request)
        decided.cancel()


async def _run(lanes: Submitter, fn: Any, /, *args: Any, **options: Any) -> Any:
    scheduler = lanes._scheduler
    if getattr(this_task(), "_must_cancel", False):  # it is cancelled at its next wait
        await asyncio.sleep(0)
    if options.get("yield_slot"):
        return await call(Submitter.run, lanes, fn, *args, **options)
    job: AnyJob = lanes._make(fn, args, options, runs=True)
    cancelled = None if lanes._enters_at_once(job) else await _room(lanes, job, runs=True)
    if cancelled is not None:  # pragma: no cover - see `_room`
        scheduler.cancel(job, "its caller was cancelled")
    if job_here(scheduler.running) is not None:
        await call(run_for_caller, scheduler, job)
        return job._result()
    while True:
        try:
            await _wait_done(job)
            break
        except asyncio.CancelledError as error:
            cancelled = error
            if not scheduler.cancel(job, "its caller was cancelled"):
                break  # it has ended
    if cancelled is not None:
        if not body_finished(job):
            raise cancelled
        come_again(this_task())
    try:
        return job._result()
    finally:
        del job, cancelled  # this frame is in the traceback of the error


async def _submit(lanes: Submitter, fn: Any, /, *args: Any, **options: Any) -> Any:
    job: AnyJob = lanes._make(fn, args, options)
    await asyncio.sleep(0)  # before the submission: a cancellation here leaves nothing behind
    if not lanes._enters_at_once(job) and await _room(lanes, job, runs=False) is not None:
        come_again(this_task())  # pragma: no cover - see `_room`
    return job


@verbs("wait_started", "readmit", "_take_back", wait_done=_wait_done)
@final
class Job(jobs.Job[T_co]):
    """The handle of a job whose body runs in asyncio: `trio_lanes.Job`, awaited in asyncio."""

    __slots__ = ()

    def _check_thread(self) -> None:
        self._keeper.check_thread()


@verbs("__anext__")
@final
class MapResults(core_map.MapResults[T_co]):
    """The results of a `map`: `trio_lanes.MapResults`, taken in asyncio."""

    def _check_thread(self) -> None:
        self._window._scheduler.check_thread()


@final
class _Mapped(Hosted[MapResults[Any]]):
    def made(self, value: core_map.MapResults[Any]) -> MapResults[Any]:
        return MapResults._create(value._window)


def _map(lanes: Submitter, fn: Any, items: Any, **options: Any) -> Any:
    if trio.lowlevel.in_trio_task():
        return Submitter.map(lanes, fn, items, **options)
    if isinstance(items, AsyncIterable):
        items = FromAsyncio(items)
    return _Mapped(Submitter.map(lanes, fn, items, **options))


def _open_nursery(lanes: core.Lanes) -> Any:
    nursery = core.Lanes.open_nursery(lanes)
    return nursery if trio.lowlevel.in_trio_task() else Hosted(nursery)


@verbs(run=_run, submit=_submit)
class _AsyncioSubmitter(Submitter):
    _job_type: ClassVar[type[AnyJob]] = Job

    def _check_thread(self) -> None:
        self._scheduler.check_thread()

    @staticmethod
    def _refuse(fn: object, returned: object = None) -> NoReturn:
        if isinstance(fn, Coroutine):
            fn.close()  # else a warning says that it was never awaited
            raise TypeError(f"pass the async function and its arguments, not a coroutine: {fn!r}")
        raise TypeError(f"{fn!r} is not callable: an async function is needed")


setattr(_AsyncioSubmitter, "map", wraps(Submitter.map)(_map))  # noqa: B010 - of the same signature

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
      trio: the `trio_lanes.Lanes` underneath, for instruments, the monitor and recorders. Functions
        that are submitted through it are Trio's, and run in tasks of Trio's.
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


setattr(Lanes, "open_nursery", wraps(core.Lanes.open_nursery)(_open_nursery))  # noqa: B010


def open_lanes(
    lanes: Mapping[str, int | float | LaneConfig] = DEFAULT_LANES,
    *,
    sessions: LaneConfig = LaneConfig(concurrency=1),
    groups: Mapping[str, LaneGroup] = MappingProxyType({}),
    instruments: Iterable[LaneInstrument] = (),
    wait_accounting: bool = False,
) -> AbstractAsyncContextManager[Lanes]:
    """Open lanes in an asyncio application: `trio_lanes.open_lanes`, for asyncio."""
    return _OpenedLanes(
        core.open_lanes(
            lanes,
            sessions=sessions,
            groups=groups,
            instruments=instruments,
            wait_accounting=wait_accounting,
        )
    )


@final
class _OpenedLanes(HostedRun[Lanes]):
    _scheduler: Scheduler | None = None

    def cancel(self) -> None:
        if self._scheduler is not None:  # pragma: no branch - see `_room`
            self._scheduler.stop(LANES_CANCELLED)
        super().cancel()

    def made(self, value: core.Lanes) -> Lanes:
        self._scheduler = value._scheduler
        AsyncioBodies(value._scheduler, asyncio.get_running_loop(), Job)
        return Lanes._over(value)
