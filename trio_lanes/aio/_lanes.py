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
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, TypeVar, final

import outcome
import trio

from .. import _lanes as core
from .. import _map as core_map
from .. import _views as views
from .._actors import job as jobs
from .._actors.job import AnyJob, Callback
from .._actors.options import LaneConfig, LaneGroup
from .._config.names import DEFAULT_LANES
from .._flow.loop import Scheduler
from .._flow.parking import body_finished, run_for_caller
from .._instrument import LaneInstrument
from .._submission import Submitter
from .._waiting.current import job_here, jobs_by_task
from ._bodies import AsyncioBodies
from ._bridge import FromAsyncio, Hosted, HostedInside, call, on_both_sides, verbs
from ._guest import ShieldedFuture, this_task

T_co = TypeVar("T_co", covariant=True)


# ---- what the verbs that submit and wait await: if the caller is inside a job, in a task of
# ---- Trio's, so that it is a wait of that job and a deadlock is an error; else by callbacks


async def _checkpoint_if_cancelled() -> None:
    if getattr(this_task(), "_must_cancel", False):  # it is cancelled at its next wait
        await asyncio.sleep(0)


async def _enter(lanes: Submitter, job: AnyJob, *, runs: bool) -> AnyJob:
    scheduler = lanes._scheduler

    def give_up() -> None:
        with scheduler.act_in_abort():  # see `Gate`
            scheduler.drop_request(request)
        decided.set_result(None)

    accepted = lanes._enters_at_once(job)
    if accepted is not None:
        turn: ShieldedFuture[bool] = ShieldedFuture()
        turn.get_loop().call_soon(turn.set_result, True)
        await turn.result_shielded()
        return accepted
    if job_here(scheduler.running) is not None:
        return await call(Submitter._enter, lanes, job, runs=runs)
    decided: ShieldedFuture[outcome.Maybe[AnyJob]] = ShieldedFuture(give_up)
    request = scheduler.request_room(job, decided.set_result)
    what = await decided.result_shielded()
    assert what is not None
    return what.unwrap()


async def _run_for_caller(scheduler: Scheduler, job: AnyJob) -> None:
    if job_here(scheduler.running) is not None:
        await call(run_for_caller, scheduler, job)
        return

    def job_ended(job: AnyJob) -> None:
        if not ended.done():
            ended.set_result(True if body_finished(job) else None)

    def cancelled() -> None:
        if not job.done and job._options.caller_left():
            ended.set_result(None)
        else:
            with scheduler.act_in_abort():  # see `Gate`
                scheduler.cancel(job, "its caller was cancelled")

    ended: ShieldedFuture[bool] = ShieldedFuture(cancelled)
    if job.done:
        ended.get_loop().call_soon(job_ended, job)
    else:
        scheduler.waits.add_waiter(job, Callback(job_ended))
    await ended.result_shielded()


async def _wait_done(job: AnyJob) -> None:
    job._keeper.check_thread()
    if job.done:
        await asyncio.sleep(0)
        return
    if job_here(jobs_by_task()) is not None:
        await call(jobs.Job.wait_done, job)
        return
    ended = asyncio.get_running_loop().create_future()
    waiter = Callback(lambda job: None if ended.done() else ended.set_result(None))
    job._keeper.waits.add_waiter(job, waiter)
    try:
        await ended
    except BaseException:
        if job._waiters:
            job._waiters.pop(waiter, None)
        raise


@verbs("wait_started", "readmit", "_take_back")
@final
class Job(jobs.Job[T_co]):
    """The handle of a job whose body runs in asyncio: `trio_lanes.Job`, awaited in asyncio."""

    __slots__ = ()
    if not TYPE_CHECKING:  # it has the type that it has there
        wait_done = on_both_sides(jobs.Job.wait_done, _wait_done)


@verbs("_take")
@final
class MapResults(core_map.MapResults[T_co]):
    """The results of a `map`: `trio_lanes.MapResults`, taken in asyncio."""


def _map(lanes: Submitter, fn: Any, items: Any, **options: Any) -> Any:
    if trio.lowlevel.in_trio_task():
        return Submitter.map(lanes, fn, items, **options)
    if isinstance(items, AsyncIterable):
        items = FromAsyncio(items)
    return HostedInside(Submitter.map(lanes, fn, items, **options))


def _open_nursery(lanes: core.Lanes) -> Any:
    nursery = core.Lanes.open_nursery(lanes)
    return nursery if trio.lowlevel.in_trio_task() else HostedInside(nursery)


class _AsyncioSubmitter(Submitter):
    _job_type: ClassVar[type[AnyJob]] = Job
    _results_type: ClassVar[type[core_map.MapResults[Any]]] = MapResults
    _checkpoint_if_cancelled = staticmethod(
        on_both_sides(trio.lowlevel.checkpoint_if_cancelled, _checkpoint_if_cancelled)
    )
    _run_for_caller = staticmethod(on_both_sides(run_for_caller, _run_for_caller))
    _enter = on_both_sides(Submitter._enter, _enter)

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
    opened = core.open_lanes(
        lanes,
        sessions=sessions,
        groups=groups,
        instruments=instruments,
        wait_accounting=wait_accounting,
    )
    return Hosted(opened, _door_to)


def _door_to(lanes: core.Lanes) -> Lanes:
    AsyncioBodies(lanes._scheduler, asyncio.get_running_loop(), Job)
    return Lanes._over(lanes)
