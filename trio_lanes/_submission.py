"""The verbs that submit a function, and their checks."""

from __future__ import annotations

import logging
import weakref
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from typing import Any, ClassVar, Final, TypeVar, TypeVarTuple, Unpack

import trio
from trio.lowlevel import enable_ki_protection

from ._actors.job import AnyJob, Blocker, Job, make_job
from ._actors.lane import LaneActor
from ._actors.options import NO_EXTRAS, JobOptions, MapOptions, rare_options
from ._actors.state import WAITING
from ._config.check import boolean, optional_sync, refuse_like_trio, whole
from ._config.errors import LaneFullError, UnknownLaneError
from ._config.names import name_of, resolve_global_lane, session_key
from ._flow.loop import Scheduler
from ._flow.parking import run_for_caller, wait_for_room
from ._limits.rate import ONE_REQUEST, REQUESTS, costs_of
from ._map import MapResults, Window, opened
from ._waiting.current import job_here

logger: Final = logging.getLogger("trio_lanes")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Item = TypeVar("Item")


class Submitter:
    """The verbs that run a function, for all lanes or bound to one.

    All take an async function, its positional arguments, and `JobOptions`. The function is first
    called when the job starts, in a copy of the submitter's context, below the lanes' nursery: a
    cancel scope around the submission has no effect on it.

    All raise, at the call and with nothing changed:
      TypeError: Trio's own error, for an object that is visibly no async function; or for an
        option that does not exist or is of the wrong type.
      ValueError: for an option with a bad value.
      UnknownLaneError: for a lane that does not exist.
      LanesClosedError: if the lanes take no new work; a running job may submit until they are shut.
    """

    _scheduler: Scheduler
    _bound: dict[str, Any]  # the options that this view fills in
    _job_type: ClassVar[type[AnyJob]] = Job
    _refuse = staticmethod(refuse_like_trio)  # raises, for what is no function
    _results_type: ClassVar[type[MapResults[Any]]] = MapResults
    # What `run` and `submit` await, besides `_enter`: a door to another event loop has its own
    _checkpoint_if_cancelled = staticmethod(trio.lowlevel.checkpoint_if_cancelled)
    _run_for_caller = staticmethod(run_for_caller)

    def __init__(self) -> None:
        raise TypeError(f"only open_lanes makes a {type(self).__name__}")

    async def run(
        self,
        fn: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        **options: Unpack[JobOptions],
    ) -> T:
        """Submit, waiting for room where the lane is bounded, and wait for the result.

        Returns the value of the function, or raises as `Job.wait` does. A checkpoint. Cancelling
        it withdraws a waiting job, and cancels a running job. Then it ends only when the job has
        ended: with the value if the body returned, with the exception if the body raised, else
        with `trio.Cancelled`. A job that stands for submissions of others as well goes on for them.

        Raises:
          LaneDeadlockError: inside a job, if this would never end. A waiting job is withdrawn; a
            running job is cancelled, and has ended unless it waits for the caller even then.
          RuntimeError: for ``yield_slot`` outside of a job.
        """
        caller = _lender(self._scheduler) if options.get("yield_slot") else None
        job: Job[T] = self._make(fn, args, options, runs=True)
        on_submit = job._options.on_submit
        await self._checkpoint_if_cancelled()
        entered = self._enters_at_once(job)
        if caller is None:
            job = entered or await self._enter(job, runs=True)
            if on_submit is not None:
                _hand_over(job, on_submit)
            await self._run_for_caller(self._scheduler, job)
        else:
            async with caller.yield_slot():
                job = entered or await self._enter(job, runs=True)
                self._scheduler.waits.check_accepted(job)
                if on_submit is not None:
                    _hand_over(job, on_submit)
                await self._run_for_caller(self._scheduler, job)
        try:
            return job._unwrap()
        finally:
            del job, entered  # this frame is in the traceback of the error

    async def submit(
        self,
        fn: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        **options: Unpack[JobOptions],
    ) -> Job[T]:
        """Submit, waiting for room in order of arrival, and return the handle.

        A checkpoint. It has submitted nothing if it raises, also if it raises `trio.Cancelled`.

        Raises:
          LaneDeadlockError: inside a job, if room would never come.
        """
        job: Job[T] = self._make(fn, args, options)
        await self._checkpoint_if_cancelled()
        return await self._enter(job, runs=False)

    @enable_ki_protection
    def submit_nowait(
        self,
        fn: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        **options: Unpack[JobOptions],
    ) -> Job[T]:
        """Submit and return the handle. The job takes its place in the queue at the call.

        Not a checkpoint.

        Raises:
          LaneFullError: if its session or its global lane is full, or other jobs wait for room
            there.
        """
        job: Job[T] = self._make(fn, args, options)
        scheduler = self._scheduler
        if job._options.coalesce is not None and (joined := scheduler.coalesce(job)) is not None:
            return joined
        if job._lane.bounded or scheduler.registry.bounded_sessions:
            self._check_room(job)
        scheduler.submit(job)
        return job

    @enable_ki_protection
    def start_soon(
        self,
        fn: Callable[[*Ts], Awaitable[object]],
        /,
        *args: *Ts,
        **options: Unpack[JobOptions],
    ) -> None:
        """Submit, as by `trio.Nursery.start_soon`: a failure leaves `open_lanes`.

        Not a checkpoint.

        Raises:
          LaneFullError: as `submit_nowait`.
        """
        job: Job[object] = self._make(fn, args, options)
        job._let_failure_leave()
        if job._options.coalesce is not None and self._scheduler.coalesce(job) is not None:
            return
        self._check_room(job)
        self._scheduler.submit(job)

    def would_wait(self, **options: Unpack[JobOptions]) -> tuple[Blocker, ...]:
        """Return why a job with these options would wait if it were submitted now.

        The tuple is empty if the job would start at once. With ``coalesce``, if it would join a job
        of its key, the answer is why that job waits to start. Nothing is submitted or changed;
        bounds on waiting jobs are ignored. Linear in the number of jobs before it. Not a
        checkpoint.

        Raises:
          TypeError, ValueError, UnknownLaneError, LanesClosedError: as `submit_nowait`.
        """
        job: AnyJob = self._make(_nothing, (), options)
        if job._options.coalesce is not None:
            joined = self._scheduler.job_of_key(job)
            if joined is not None:
                return joined.blocked_by() if joined._state is WAITING else ()
        return self._scheduler.newcomers_blockers(job)

    def map(
        self,
        fn: Callable[[Item], Awaitable[T]],
        items: Iterable[Item] | AsyncIterable[Item],
        *,
        session: Callable[[Item], str] | None = None,
        ordered: bool = True,
        max_outstanding: int | None = None,
        **options: Unpack[MapOptions],
    ) -> AbstractAsyncContextManager[MapResults[T]]:
        """Submit ``fn(item)`` for each of ``items``, and take the results as an async iterator.

        ::

            async with lanes.map(fetch, urls, session=host_of) as results:
                async for page in results:
                    ...

        Items are read and submitted as results are taken: at most ``max_outstanding`` items are
        read ahead of the results that were taken. An async iterable is read meanwhile, in a task of
        the block. If a lane has no room, the item waits for room in order of arrival. All jobs run
        in copies of the context of this call.

        Leaving the block cancels the jobs that have not ended, waits until running jobs have ended,
        and closes the async iterator of ``items``. What its cancelled reading or its closing raises
        leaves the block. Entering is not a checkpoint, leaving is.

        Inside a job, taking a result raises a `LaneDeadlockError` if that wait would never end.
        ``yield_slot`` lends that job's slot whenever it waits here, also in leaving.

        Args:
          items: an iterable or an async iterable; it may be endless.
          session: returns the session of an item; without it, jobs have no session.
          ordered: whether results come in the order of the items, or as the jobs end.
          max_outstanding: if None, twice the lane's concurrency, from 1 to 1,000.

        Raises:
          RuntimeError: for ``yield_slot`` outside of a job.
        """
        if options.get("coalesce") is not None:
            raise ValueError("coalesce is not for map(), which has a result for each item")
        optional_sync("session", session)
        boolean("ordered", ordered)
        if max_outstanding is not None and whole("max_outstanding", max_outstanding) < 1:
            raise ValueError(f"max_outstanding must be at least 1, got {max_outstanding!r}")
        self._scheduler.check_thread()
        lender = _lender(self._scheduler) if options.get("yield_slot") else None
        checked: dict[str, Any] = {**options}
        if session is not None:
            checked["session"] = None
            if "cost" in options:  # an item's session may know more units
                checked["cost"] = costs_of(options["cost"]).get(REQUESTS, 1)
        lane = self._make(fn, (), checked, runs=True).lane
        context = copy_context()

        def make(item: Item, key: str | None) -> Job[T]:
            of_item: dict[str, Any] = {**options}
            if session is not None:
                of_item["session"] = key
            return context.run(self._make, fn, (item,), of_item, runs=True)

        try:
            iterator = None if isinstance(items, AsyncIterable) else iter(items)
        except TypeError as error:
            raise TypeError(
                f"items must be an iterable or an async iterable, not {items!r}"
            ) from error
        window = Window(
            self._scheduler,
            make,
            iterator,
            lane=lane,
            session=session,
            ordered=ordered,
            max_outstanding=max_outstanding,
            lender=lender,
        )
        results = self._results_type._create(window)
        return opened(results, aiter(items) if isinstance(items, AsyncIterable) else None)

    def _make(
        self,
        fn: Any,  # an async function that returns a T
        args: tuple[Any, ...],
        given: Any,  # JobOptions, which are used up
        runs: bool = False,
    ) -> Job[T]:
        """Check everything, and make a job that is not submitted yet."""
        if not callable(fn):
            self._refuse(fn)
        if self._bound:
            given = _as_one(**self._bound, **given)
        lane = given.pop("lane", "main")
        session = given.pop("session", None)
        priority = given.pop("priority", 0)
        scheduler = self._scheduler
        if session is not None and (type(session) is not str or session not in scheduler.sessions):
            session = session_key(session)
        if type(priority) is not int:
            whole("priority", priority)
        parent = job_here(scheduler.running) if scheduler.running else None
        actor = (type(lane) is str and scheduler.lanes.get(lane)) or _find(scheduler, lane)
        if not scheduler.closing.is_open:
            scheduler.check_open(None if fn is _nothing else actor)
        if actor.defaults:
            given = {**actor.defaults, **given}
        options, name = NO_EXTRAS, None
        if given:
            options = rare_options(given)
            name = options.name
            if options.yield_slot and not runs:
                raise ValueError(
                    "yield_slot is for run(), which waits; it lends the slot meanwhile"
                )
            if options.on_submit is not None and not runs:
                raise ValueError("on_submit is for run(), whose caller has no handle")
            if options.cost is not ONE_REQUEST:
                of_session = None if session is None else scheduler.registry.session_lane(session)
                actor.check_cost(options.cost, of_session)
        if not name:
            name = getattr(fn, "__qualname__", None)
        if type(name) is not str:  # else `name_of` would be one call more for each job
            name = name_of(fn)
        return make_job(
            self._job_type,
            scheduler,
            name,
            session,
            fn,
            args,
            copy_context(),
            actor,
            priority,
            options,
            None if parent is None else weakref.ref(parent),
            scheduler.workers.unused_scopes,
        )

    def _check_room(self, job: AnyJob) -> None:
        full = self._scheduler.full(job)
        if full is not None:
            self._scheduler.announcer.tell_of_lane(self._scheduler.hooks.job_rejected, full, "full")
            raise LaneFullError(full.name, full.config.max_waiting)

    @enable_ki_protection
    def _enters_at_once(self, job: AnyJob) -> AnyJob | None:
        """Have ``job`` accepted, and return it, or the job of its key; None if there is no room."""
        if job._options.coalesce is not None:
            joined = self._scheduler.coalesce(job)
            if joined is not None:
                return joined
        if self._scheduler.full(job) is not None:
            return None
        self._scheduler.submit(job)
        return job

    @enable_ki_protection
    async def _enter(self, job: AnyJob, *, runs: bool) -> AnyJob:
        accepted = self._enters_at_once(job)
        if accepted is None:
            return await wait_for_room(self._scheduler, job, runs=runs)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return accepted


def _hand_over(job: AnyJob, on_submit: Callable[[AnyJob], None]) -> None:
    """Give the caller of ``run`` the handle of its job."""
    try:
        on_submit(job)
    except Exception:  # the job is accepted, and goes on
        logger.exception("on_submit of %r raised", job)


async def _nothing() -> None:
    """The body of a job that is never submitted."""
    raise AssertionError  # pragma: no cover - it is never called


def _as_one(**options: Any) -> dict[str, Any]:
    """Join options from several places; an option that is named twice is a `TypeError`."""
    return options


_as_one.__qualname__ = JobOptions.__name__  # which its `TypeError` names
_as_one.__module__ = "trio_lanes"  # where users find `JobOptions`


def _find(scheduler: Scheduler, name: str | None) -> LaneActor:
    """Return the global lane that ``name`` means."""
    resolved = resolve_global_lane(name)
    lane = scheduler.registry.find_or_make_lane(resolved)
    if lane is None:
        raise UnknownLaneError(resolved, scheduler.registry.plan.lanes)
    return lane


def _lender(scheduler: Scheduler) -> AnyJob:
    """Return the job that lends its slot while it waits."""
    job = job_here(scheduler.running)
    if job is None:
        raise RuntimeError("yield_slot lends the slot of a job, but this is not inside a job")
    return job
