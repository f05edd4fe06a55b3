"""`open_lanes`, and the `Lanes` that it gives."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack
from types import MappingProxyType
from typing import ClassVar, Final, Literal

import trio
from trio.lowlevel import enable_ki_protection

from ._actors.job import AnyJob
from ._actors.options import LaneConfig, LaneGroup, session_config
from ._actors.plan import Plan
from ._config.check import boolean, finite_seconds, positive_count
from ._config.errors import UnknownLaneError
from ._config.names import DEFAULT_LANES, resolve_global_lane, session_key
from ._config.problems import Problems
from ._config.protected import needs_trio, protected_context
from ._flow.loop import Scheduler
from ._instrument import LaneInstrument
from ._lifecycle import control as _control
from ._lifecycle.configure import apply, configure
from ._lifecycle.drain import DrainReport, drain
from ._nursery import LaneNursery, opened
from ._observe.health import health
from ._observe.hooks import Hooks
from ._observe.statistics import LanesStatistics, lanes_statistics
from ._portal import LanesPortal
from ._submission import Submitter
from ._views import Lane, SessionLane, view_of

logger: Final = logging.getLogger("trio_lanes")


def open_lanes(
    lanes: Mapping[str, int | float | LaneConfig] = DEFAULT_LANES,
    *,
    sessions: LaneConfig = LaneConfig(concurrency=1),
    groups: Mapping[str, LaneGroup] = MappingProxyType({}),
    instruments: Iterable[LaneInstrument] = (),
    wait_accounting: bool = False,
) -> AbstractAsyncContextManager[Lanes]:
    """Open lanes that live in a nursery of their own, for as long as the block.

    ::

        async with open_lanes({"main": 4, "cron": 1}) as lanes:
            print(await lanes.run(reply, "alice", "hello", session="alice"))

    Entering is not a checkpoint. Leaving is: it closes the lanes and waits for all jobs, including
    jobs in a lane that is paused, or whose concurrency is 0. Leaving with an exception, or being
    cancelled, cancels everything: jobs that have not started settle with `LanesClosedError`. The
    failure of a job with a handle belongs to the handle; the failure of a ``start_soon``, and a
    `BaseException` that is no `Exception`, cancel everything. Each exception that leaves the block
    does so in an `ExceptionGroup`, as from a nursery: also an exception of ``await lanes.run(...)``
    in the block.

    Args:
      lanes: the global lanes; by default those of an agent gateway: ``"main"`` for turns of people,
        ``"cron"`` for what a clock starts, ``"subagent"`` for what turns start and wait for. A
        number is a `LaneConfig` with that concurrency; a `LaneConfig` without ``concurrency`` runs
        one job at a time. A name that ends with ``*`` is a template: a lane whose name matches it
        comes to life and goes as session lanes do. ``"session:vip"`` configures that session,
        ``"session:probe-*"`` each session whose key matches; for a session, a number changes only
        the concurrency.
      sessions: the configuration of all other session lanes.
      groups: global lanes that share a budget and rate limits, by the groups' names.
      instruments: hooks; see `LaneInstrument`.
      wait_accounting: whether jobs know where their waits went: `Job.waits`.

    Raises:
      TypeError, ValueError: for a bad configuration, at the call.
      RuntimeError: on entering, outside of Trio's tasks; in leaving, if an act of the lanes was
        broken off by an exception, such as a `RecursionError` in a submission; the caller of that
        act got that exception before.
    """
    plan = Plan(others=session_config(sessions)).changed(lanes, groups, opening=True)
    boolean("wait_accounting", wait_accounting)
    return _opened(plan, Hooks(instruments, LaneInstrument), wait_accounting)


@protected_context
async def _opened(plan: Plan, hooks: Hooks, wait_accounting: bool) -> AsyncIterator[Lanes]:
    needs_trio("trio_lanes.open_lanes")
    with ExitStack() as when_all_has_ended:
        async with trio.open_nursery() as nursery:
            scheduler = Scheduler(nursery, hooks, wait_accounting=wait_accounting)
            when_all_has_ended.callback(_all_has_ended, scheduler)
            lanes = Lanes._create(scheduler)
            with scheduler.batch():
                apply(scheduler, plan)
            for instrument in [*hooks.instruments]:
                hooks.tell_opened(instrument, lanes)
            _log_concurrency(plan)
            try:
                # The task of the block has a cancel status of its own. Trio delivers a cancellation
                # by a walk over the set of tasks of each status. A wait of this task may end a job
                # there, and so have a task started in the nursery: which must be in another set.
                with trio.CancelScope():
                    yield lanes
                    lanes.close("the block was left")
                    await _wait_until_idle(scheduler)
            except BaseException:
                scheduler.crash("the block was left")
                raise
            scheduler.stop("the block was left")
        if scheduler.broken is not None:
            raise RuntimeError("the lanes have ended: an act was broken off") from scheduler.broken


def _log_concurrency(plan: Plan) -> None:
    """Log how many jobs each lane runs at once: a `LaneConfig` without ``concurrency`` runs one."""
    widths = [
        f"{name} {config.concurrency if config.limiter is None else config.limiter.total_tokens}"
        for name, config in plan.lanes.items()
    ]
    widths.append(f"each session {plan.others.concurrency}")
    if plan.lanes and all(width.endswith(" inf") for width in widths[:-1]):
        return
    logger.info(
        "lanes opened, with the number of jobs that each runs at once: %s", ", ".join(widths)
    )


def _all_has_ended(scheduler: Scheduler) -> None:
    """Log the failures that were not retrieved, of jobs that are still referenced."""
    scheduler.closing.ended = True
    for error in list(scheduler.ends.unretrieved):
        error.report()


async def _wait_until_idle(scheduler: Scheduler) -> None:
    """Wait until no job waits or runs, and log once if a pause or a limit of 0 prevents that."""
    if not _warn_of_stopped_lanes(scheduler):
        # A job that still waits when no job runs any more will not start by itself.
        await _control.wait_until(scheduler, None, fewer_than=math.inf, idle=True)
        _warn_of_stopped_lanes(scheduler)
    await _control.wait_until(scheduler, None, idle=True)


def _warn_of_stopped_lanes(scheduler: Scheduler) -> bool:
    """Log the lanes in which jobs wait and none can start; return whether there are any."""
    found = False
    for actor in scheduler.registry.actors:
        limit = actor.concurrency if actor.limiter is None else actor.limiter.total_tokens
        if actor.waiting and (actor.paused or not limit):
            found = True
            logger.warning(
                "lane %r %s with %d waiting: the block stays open until it is %s",
                actor.name,
                "is paused" if actor.paused else "has a concurrency of 0",
                actor.waiting,
                "resumed" if actor.paused else "raised",
            )
    return found


class Lanes(Submitter):
    """All lanes of one `open_lanes`, which alone makes this object.

    Lanes and their jobs belong to the thread in which they were opened. In another thread, a call
    that would change them, or wait, raises a `RuntimeError`, and nothing has changed. Use `portal`
    there.

    A ``name`` names a global lane or a template, or a session lane if it begins with ``session:``.
    A method raises an `UnknownLaneError` if a global lane of that name does not exist. Async
    methods are checkpoints, and cancelling a method ``wait_...`` leaves nothing behind.

    When the block of `open_lanes` was left and all has ended, what changes lanes (`pause`,
    `pause_for`, `resume`, `configure`, `Lane.concurrency`, `add_instrument`) raises a
    `LanesClosedError`; `clear` and `reset` return 0.
    """

    _lane_type: ClassVar[type[Lane]] = Lane
    _session_type: ClassVar[type[SessionLane]] = SessionLane

    @classmethod
    def _create(cls, scheduler: Scheduler) -> Lanes:
        lanes = cls.__new__(cls)
        lanes._scheduler = scheduler
        lanes._bound = {}
        scheduler.announcer.view = lambda actor: view_of(scheduler, actor)
        return lanes

    def __repr__(self) -> str:
        scheduler = self._scheduler
        statistics = self.statistics()
        closed = "" if scheduler.closing.is_open else ", closed"
        return (
            f"<trio_lanes.Lanes at {id(self):#x}, {len(scheduler.lanes)} lanes, "
            f"{len(scheduler.sessions)} sessions, {statistics.active} active, "
            f"{statistics.waiting} waiting{closed}>"
        )

    # ---- inspecting

    def lane(self, name: str) -> Lane:
        """Return the global lane of that name. For a session lane, use `session`."""
        resolved = resolve_global_lane(name)
        if self._scheduler.registry.find_or_make_lane(resolved) is None:
            raise UnknownLaneError(resolved, self._scheduler.registry.plan.lanes)
        return self._lane_type._create(self._scheduler, resolved)

    def session(self, key: str) -> SessionLane:
        """Return the lane of that session, which need not be alive.

        Raises:
          ValueError: if the key is blank.
        """
        return self._session_type._create(self._scheduler, session_key(key))

    def lanes(self) -> list[Lane]:
        """Return the global lanes that are alive, also lanes of templates.

        This may be called in any thread, as may `Lane.label`, `Lane.waiting` and `Lane.active`.
        """
        scheduler = self._scheduler
        return [self._lane_type._create(scheduler, a.name, a) for a in [*scheduler.lanes.values()]]

    def jobs(self) -> list[AnyJob]:
        """Return the jobs that wait or run, in the order of submission."""
        return _control.jobs_in(self._scheduler)

    def sessions(self) -> list[str]:
        """Return the keys of the sessions whose lanes are alive."""
        return list(self._scheduler.sessions)

    @property
    def groups(self) -> Mapping[str, LaneGroup]:
        """The configuration of the groups, by name, as it is now."""
        return MappingProxyType({**self._scheduler.registry.plan.groups})

    def statistics(self) -> LanesStatistics:
        """Return the numbers of jobs, sessions and lanes now, without a scan of the jobs."""
        scheduler = self._scheduler
        return lanes_statistics(
            scheduler.lanes,
            scheduler.registry.groups,
            scheduler.current_time(),
            sessions=len(scheduler.sessions),
            abandoned=scheduler.ends.given_up,
        )

    def health(self) -> Problems:
        """Return what is wrong now, each with what to do; empty: these lanes are healthy.

        A wait is wrong if it cannot end by itself. It takes as long as `statistics`, and for each
        lane in which a job has waited for more than ten seconds as `Job.root_causes` of two jobs:
        for the 100 of them that have waited longest. `Problems.unseen` counts the others. Not a
        checkpoint.
        """
        return health(self._scheduler.lanes.values(), self._scheduler.current_time())

    def portal(self) -> LanesPortal:
        """Return a portal, by which other threads submit jobs, cancel them and get results.

        Any thread may call this. Not a checkpoint.

        Raises:
          RuntimeError: in a forked child process.
        """
        self._scheduler.check_process()
        return LanesPortal._create(self)

    def open_nursery(self) -> AbstractAsyncContextManager[LaneNursery]:
        """Open a nursery whose children are jobs of these lanes.

        ::

            async with lanes.open_nursery() as jobs:
                for url in urls:
                    jobs.start_soon(fetch, url, session=host_of(url))

        Leaving waits for all children. The failure of a child, an exception in the block, and the
        cancellation of ``jobs.cancel_scope`` or of the task around it withdraw the waiting
        children, cancel the running children, and wait until these have ended. An exception leaves
        the block in an `ExceptionGroup`, as in Trio. Entering is not a checkpoint. Leaving lets
        other tasks run and, as in Trio, is itself not cancelled when no child is left.

        Some ends of a child are failures of the nursery:

        * A value, also a value that was returned in spite of a cancellation, is no failure.
        * An exception of the body, `JobTimeoutError`, `QueueTimeoutError`, `LaneResetError` and
          `LanesClosedError` are failures. `JobCancelledError` is a failure if the lanes and not the
          child were cancelled, or if the body raised a `BaseException` that is no `Exception`,
          which itself leaves `open_lanes`.
        * A child that was cancelled by `LaneNursery.clear`, `Job.cancel`, `clear` or `drain` while
          the nursery was not, is no failure.

        Inside a job the nursery waits for its children from the call that submits them. If that
        wait would never end, the nursery fails with a `LaneDeadlockError`. To lend the job's slot
        meanwhile, open the nursery inside `Job.yield_slot`.

        Raises:
          LanesClosedError: if the lanes take no new work, as `submit_nowait`.
        """
        self.check_open()
        return opened(self)

    # ---- instruments

    @enable_ki_protection
    def add_instrument(self, instrument: LaneInstrument) -> None:
        """Call the hooks of ``instrument`` from now on, as if it had been given to `open_lanes`.

        Its `LaneInstrument.job_waiting_long` hears of jobs that are submitted from then on, and
        `job_overdue` at once of the jobs that are overdue. An instrument that is there already is
        not added again. Not a checkpoint.

        Raises:
          TypeError: if a hook of it is no synchronous function; then nothing has changed.
        """
        self._scheduler.check_thread()
        self._scheduler.closing.check_not_ended()
        if self._scheduler.hooks.add(instrument):
            self._scheduler.announcer.hooks_changed()
            self._scheduler.hooks.tell_opened(instrument, self)
            self._scheduler.overdue.tell_late(instrument, self._scheduler.lanes.values())

    @enable_ki_protection
    def remove_instrument(self, instrument: LaneInstrument) -> None:
        """Stop calling the hooks of ``instrument``. Not a checkpoint.

        Raises:
          KeyError: if it is not there: never added, removed, or a hook of it has raised.
        """
        self._scheduler.check_thread()
        if not self._scheduler.hooks.remove(instrument):
            raise KeyError(instrument)
        self._scheduler.announcer.hooks_changed()

    # ---- acting

    @enable_ki_protection
    def configure(
        self,
        lanes: Mapping[str, int | float | LaneConfig | None] | None = None,
        groups: Mapping[str, LaneGroup] | None = None,
        *,
        sessions: LaneConfig | None = None,
    ) -> None:
        """Change lanes while they work: the whole change, or nothing if a part is bad.

        A changed ``paused`` begins or ends the pause of the configuration; pauses by `pause` and
        `pause_for` stay until `resume`.

        A number changes only that lane's concurrency, a `LaneConfig` replaces its configuration, a
        new name adds a lane, None removes a lane, and lanes that are not named stay as they are.
        ``groups``, if given, replaces all groups; ``sessions``, if given, is from now on the
        configuration of every session without a configuration of its own. Then waiting jobs start
        if they can. Running jobs are not touched, and rate limits keep their history, but a limit
        with another algorithm begins empty. Not a checkpoint.

        Raises:
          TypeError, ValueError: for a bad configuration, or the removal of a lane in use.
        """
        configure(self._scheduler, {} if lanes is None else lanes, groups, sessions)

    @enable_ki_protection
    def clear(
        self,
        name: str | None = None,
        *,
        owner: object = _control.ANY_OWNER,
        reason: str | None = None,
    ) -> int:
        """Cancel the jobs that have not started; running jobs are not touched. Returns how many.

        With the name of a global lane: all jobs that are bound for it, in either layer. With the
        name of a session: its jobs. Without a name: all jobs. Their cancel scopes are cancelled,
        and they settle with `LaneClearedError`. Not a checkpoint.

        Args:
          owner: if given, only jobs of that owner; the owner of a job is its session by default.
          reason: the reason in the error that the waiters of these jobs get.
        """
        return _control.clear(self._scheduler, name, owner, reason)

    @enable_ki_protection
    def reset(self, name: str | None = None) -> int:
        """Give up the jobs that run, though their bodies may go on. Returns how many.

        This is the last resort for bodies that do not end. They are cancelled, and at once their
        slots are free and their handles settle with `LaneResetError`; the later end of such a body
        changes nothing. Waiting jobs are kept, and start. So a body that was given up may overlap
        its successor: try ``cancel`` and `wait_active` first. The bodies stay children of the
        lanes' nursery, and leaving the block waits for them. Not a checkpoint.
        """
        return _control.reset(self._scheduler, name)

    @enable_ki_protection
    def pause(self, name: str | None = None) -> None:
        """Start no more jobs in that lane, or in any global lane, until `resume`.

        Running jobs are not touched. The name of a template means all of its lanes, also lanes that
        come to life later. Without a name, this holds for every template. Not a checkpoint.
        """
        _control.pause(self._scheduler, name)

    @enable_ki_protection
    def pause_for(self, name: str | None, seconds: float) -> None:
        """Start no more jobs in that lane, or in any global lane, for ``seconds`` from now.

        Use it for a Retry-After. It never shortens such a pause; `resume` ends it. Later lanes of a
        template are paused, as by `pause`. Not a checkpoint.

        Raises:
          TypeError, ValueError: if ``seconds`` is no finite number from 0 up.
        """
        _control.pause_for(self._scheduler, name, seconds)

    @enable_ki_protection
    def resume(self, name: str | None = None) -> None:
        """Undo `pause` and `pause_for`, so that waiting jobs may start. Not a checkpoint.

        With the name of a template, or without a name, lanes that come to life later are not paused
        either, even if they are configured so. A lane that was resumed by its own name while its
        template is paused stays alive, and not paused, until the template is resumed or its timed
        pause ends.
        """
        _control.resume(self._scheduler, name)

    # ---- waiting; inside a job, these leave out the jobs that cannot go on before it has ended

    async def wait_active(self, name: str | None = None, *, timeout: float = math.inf) -> bool:
        """Wait for the end of the jobs that run now; True when they ended, False at the timeout.

        It ignores later jobs and, inside a job, jobs that `wait_idle` leaves out. A checkpoint.

        Raises:
          TypeError, ValueError: if ``timeout`` is no number of seconds from 0 up.
          LaneDeadlockError: as `wait_idle`, however short the timeout is.
        """
        return await _control.wait_active(self._scheduler, name, timeout)

    async def wait_idle(self, name: str | None = None) -> None:
        """Wait until no job waits or runs there. A checkpoint.

        Inside a job this leaves out the caller's job and each job that cannot start or end before
        the caller's job has ended: because it waits for that job, or needs the place in the session
        or the slot that the caller's job holds. A job that was left out goes on after that.

        Raises:
          LaneDeadlockError: inside a job, if this wait and waits for lanes inside other jobs hold
            up each other. The latest of these ends so, and the others go on.
        """
        await _control.wait_until(self._scheduler, name, idle=True)

    async def wait_empty(self, name: str | None = None) -> None:
        """Wait until no job waits there; inside a job, as `wait_idle`. A checkpoint."""
        await _control.wait_until(self._scheduler, name)

    async def wait_room(self, n: int, name: str | None = None) -> None:
        """Wait until fewer than ``n`` jobs wait there; inside a job, as `wait_idle`. A checkpoint.

        Raises:
          TypeError, ValueError: if ``n`` is no whole number from 1 up.
        """
        await _control.wait_until(self._scheduler, name, fewer_than=positive_count("n", n))

    # ---- ending

    @enable_ki_protection
    def close(self, reason: str = "closing", retry_after: float | None = None) -> None:
        """Refuse new work from outside with `LanesClosedError`; a running job may still submit.

        Jobs that are held, by a ``delay`` of 10**9 seconds or more, settle with that error. Closing
        again changes nothing. Not a checkpoint.

        Args:
          reason: the reason in the error that refused callers get.
          retry_after: seconds after which it is worth trying again, or None.

        Raises:
          TypeError, ValueError: if ``retry_after`` is no finite number of seconds from 0 up.
        """
        if retry_after is not None:
            finite_seconds("retry_after", retry_after)
        self._scheduler.close(reason, retry_after)

    @enable_ki_protection
    def check_open(self) -> None:
        """Raise `LanesClosedError` if a submission by this task would be refused now.

        For code that accepts work now and submits it later. Not a checkpoint.

        Raises:
          LanesClosedError: if the lanes take no new work; a running job may submit until they are
            shut.
        """
        if not self._scheduler.closing.is_open:
            self._scheduler.check_open()

    def check_thread(self) -> None:
        """Refuse a call from another thread. For code that keeps state beside the lanes.

        Not a checkpoint.

        Raises:
          RuntimeError: in another thread than that of the lanes; it names the portal.
        """
        self._scheduler.check_thread()

    async def wait_closing(self) -> None:
        """Wait until the lanes close: for a server's shutdown trigger. A checkpoint."""
        self._scheduler.check_thread()
        await self._scheduler.closing.begun.wait()

    async def drain(
        self,
        *,
        grace: float = math.inf,
        cancel_grace: float = math.inf,
        waiting: Literal["finish", "cancel"] = "finish",
    ) -> DrainReport:
        """Close, and wait until no job waits or runs. A checkpoint.

        Jobs that are left after ``grace`` seconds are cancelled, and no job starts any more; bodies
        that outlive that by ``cancel_grace`` seconds are given up as by `reset`. Cancelling the
        drain leaves the lanes closed and the jobs running. Inside a job this leaves out the same
        jobs as `wait_idle`, so a job may drain its own lanes; jobs that wait behind it run after
        it.

        Args:
          waiting: whether jobs that wait now may still run, or are cancelled at once.

        Raises:
          TypeError, ValueError: for a bad argument; then the lanes are not closed.
          LaneDeadlockError: as `wait_idle`, whatever the graces are; then the lanes are closed.
        """
        return await drain(
            self._scheduler,
            reason="draining",
            grace=grace,
            cancel_grace=cancel_grace,
            waiting=waiting,
        )
