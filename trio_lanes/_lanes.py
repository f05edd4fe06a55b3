"""Where it all meets: `open_lanes`, and the `Lanes` that it gives."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack
from types import MappingProxyType
from typing import Final, Literal, final

import trio
from trio.lowlevel import enable_ki_protection

from ._actors.job import AnyJob
from ._actors.options import LaneConfig, LaneGroup, session_config
from ._actors.plan import Plan
from ._config.check import finite_seconds
from ._config.errors import UnknownLaneError
from ._config.names import resolve_global_lane, session_key
from ._config.protected import protected_context
from ._flow.loop import Scheduler
from ._instrument import LaneInstrument
from ._lifecycle import control as _control
from ._lifecycle.configure import apply, configure
from ._lifecycle.drain import DrainReport, drain
from ._nursery import LaneNursery, opened
from ._observe.hooks import Hooks
from ._observe.statistics import LanesStatistics, lanes_statistics
from ._portal import LanesPortal
from ._submission import Submitter
from ._views import Lane, SessionLane, view_of

logger: Final = logging.getLogger("trio_lanes")

DEFAULT_LANES: Final[Mapping[str, int]] = {"main": 4, "cron": 1, "subagent": 8}


def open_lanes(
    lanes: Mapping[str, int | float | LaneConfig] = DEFAULT_LANES,
    *,
    sessions: LaneConfig = LaneConfig(concurrency=1),
    groups: Mapping[str, LaneGroup] = MappingProxyType({}),
    instruments: Iterable[LaneInstrument] = (),
) -> AbstractAsyncContextManager[Lanes]:
    """Open lanes that live in a nursery of their own, for as long as the block.

    ::

        async with open_lanes({"main": 4, "cron": 1}) as lanes:
            print(await lanes.run(reply, "alice", "hello", session="alice"))

    Entering is not a checkpoint. Leaving is: the lanes are closed, and all work is waited for,
    including jobs in a lane that is paused. Leaving with an exception, or being cancelled,
    cancels everything: what has not started settles with `LanesClosedError`. The failure of a
    job with a handle belongs to the handle; that of ``start_soon``, and a `BaseException` that
    is no `Exception`, cancel everything and leave in an `ExceptionGroup`, as from a nursery.

    Args:
      lanes: the global lanes. A number is a `LaneConfig` with that concurrency. A name that ends
        with ``*`` is a template: a lane whose name matches it comes to life and goes as session
        lanes do. ``"session:vip"`` is what that one session is like, ``"session:probe-*"`` all
        whose keys match; a number is its only difference from the others.
      sessions: what every other session lane is like.
      groups: global lanes that share a budget and rate limits, by the groups' names.
      instruments: hooks; see `LaneInstrument`.

    Raises:
      TypeError, ValueError: for a bad configuration, at the call.
      RuntimeError: in leaving, if something was raised in the middle of a step, such as a
        `RecursionError` in a submission; whoever was in it got that very exception before.
    """
    plan = Plan(others=session_config(sessions)).changed(lanes, groups, opening=True)
    return _opened(plan, Hooks(instruments, LaneInstrument))


@protected_context
async def _opened(plan: Plan, hooks: Hooks) -> AsyncIterator[Lanes]:
    with ExitStack() as when_all_has_ended:
        async with trio.open_nursery() as nursery:
            scheduler = Scheduler(nursery, hooks)
            when_all_has_ended.callback(_report_unretrieved, scheduler)
            lanes = Lanes._create(scheduler)
            with scheduler.batch():
                apply(scheduler, plan)
            _say_how_wide(plan)
            try:
                yield lanes
                lanes.close("the block was left")
                await _let_work_end(scheduler)
            finally:
                scheduler.stop("the block was left")
        if scheduler.broken is not None:
            raise RuntimeError("these lanes broke down") from scheduler.broken


def _say_how_wide(plan: Plan) -> None:
    """Log how many jobs each lane runs at once: a `LaneConfig` that does not say it runs one."""
    widths = [
        f"{name} {config.concurrency if config.limiter is None else config.limiter.total_tokens}"
        for name, config in plan.lanes.items()
    ]
    widths.append(f"each session {plan.others.concurrency}")
    logger.info(
        "lanes opened, with the number of jobs that each runs at once: %s", ", ".join(widths)
    )


def _report_unretrieved(scheduler: Scheduler) -> None:
    """Log the failures that nobody has looked at, whose jobs somebody still holds."""
    for error in list(scheduler.unretrieved):
        error.report()


async def _let_work_end(scheduler: Scheduler) -> None:
    """Wait until nothing waits or runs, and say so once if a pause is in the way of that."""
    if not _warn_of_pauses(scheduler):
        # What still waits when nothing runs any more will not start by itself.
        await _control.wait_until(scheduler, None, fewer_than=math.inf, idle=True)
        _warn_of_pauses(scheduler)
    await _control.wait_until(scheduler, None, idle=True)


def _warn_of_pauses(scheduler: Scheduler) -> bool:
    """Name the paused lanes in which jobs wait; whether there are any."""
    paused = [actor for actor in scheduler.registry.actors if actor.paused and actor.waiting]
    for actor in paused:
        logger.warning(
            "lane %r is paused with %d waiting: the block stays open until it is resumed",
            actor.name,
            actor.waiting,
        )
    return bool(paused)


@final
class Lanes(Submitter):
    """All lanes of one `open_lanes`. Nothing but that makes one.

    They and their jobs belong to the thread in which they were opened: in another one, whatever
    would change something, or wait, is a `RuntimeError`, and nothing has changed. There, use
    `portal`.

    Wherever a ``name`` is taken it is that of a global lane, or of a session lane if it begins
    with ``session:``. A global lane that does not exist is an `UnknownLaneError`.
    """

    @classmethod
    def _create(cls, scheduler: Scheduler) -> Lanes:
        lanes = cls.__new__(cls)
        lanes._scheduler = scheduler
        lanes._bound = {}
        scheduler.view = lambda actor: view_of(scheduler, actor)
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

    # ---- looking

    def lane(self, name: str) -> Lane:
        """The global lane of that name: neither a session's, see `session`, nor a template."""
        resolved = resolve_global_lane(name)
        if self._scheduler.registry.find_lane(resolved) is None:
            raise UnknownLaneError(resolved, self._scheduler.registry.plan.lanes)
        return Lane._create(self._scheduler, resolved)

    def session(self, key: str) -> SessionLane:
        """The lane of that session, which need not be alive.

        Raises:
          ValueError: if the key is blank.
        """
        return SessionLane._create(self._scheduler, session_key(key))

    def jobs(self) -> list[AnyJob]:
        """The jobs that wait or run, in the order of submission."""
        return _control.all_jobs(self._scheduler)

    def sessions(self) -> list[str]:
        """The keys of the sessions whose lanes are alive."""
        return list(self._scheduler.sessions)

    def statistics(self) -> LanesStatistics:
        """How things stand; looks at no job."""
        scheduler = self._scheduler
        return lanes_statistics(
            scheduler.lanes, sessions=len(scheduler.sessions), abandoned=scheduler.abandoned
        )

    def portal(self) -> LanesPortal:
        """A door for other threads: submit from them, cancel, and get results.

        To be called in the lanes' own thread. Not a checkpoint.

        Raises:
          RuntimeError: in another thread.
        """
        return LanesPortal._create(self._scheduler, self._make)

    def open_nursery(self) -> AbstractAsyncContextManager[LaneNursery]:
        """Open a nursery whose children are jobs of these lanes.

        ::

            async with lanes.open_nursery() as jobs:
                for url in urls:
                    jobs.start_soon(fetch, url, session=host_of(url))

        Leaving waits for all children. The failure of a child, an exception in the block, and the
        cancellation of ``jobs.cancel_scope`` or of the task around it withdraw the children that
        wait, cancel those that run, and wait until these have ended. What leaves is an
        `ExceptionGroup`, as from a nursery of Trio. Entering is not a checkpoint. Leaving lets
        other tasks run and, as in Trio, is itself not cancelled when no child is left.

        What the end of a child is to the nursery:

        * A value, also one that was returned in spite of a cancellation, is no failure.
        * What the body raised, `JobTimeoutError`, `QueueTimeoutError`, `LaneResetError` and
          `LanesClosedError` are failures; so is `JobCancelledError` where the body raised a
          `BaseException` that is no `Exception`, which itself leaves `open_lanes`, or where the
          lanes were cancelled and not the child.
        * A child that was cancelled by `LaneNursery.clear`, `Job.cancel`, `clear` or `drain` while
          the nursery was not, is no failure.

        Inside a job the nursery waits for its children from the call that submits them: a
        `LaneDeadlockError`, as a failure of the nursery, if that would never end. To lend the
        job's slot meanwhile, open the nursery inside `Job.yield_slot`.
        """
        return opened(self)

    # ---- acting

    @enable_ki_protection
    def configure(
        self,
        lanes: Mapping[str, int | float | LaneConfig | None] | None = None,
        groups: Mapping[str, LaneGroup] | None = None,
        *,
        sessions: LaneConfig | None = None,
    ) -> None:
        """Change lanes while they work; all of it, or nothing if anything of it is bad.

        A number changes only that lane's concurrency, a `LaneConfig` replaces its configuration,
        a new name is a new lane, None removes one, and what is not named stays as it is; groups, if
        given, replace all groups; ``sessions``, if given, is what every session is like from now on
        that has no configuration of its own. Then everything that can start starts. Running jobs are not
        touched, and what rate limits remember stays; but one that is given another algorithm
        begins anew. Not a checkpoint.

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
        """Cancel what has not started; running jobs are not touched. Returns how many.

        With the name of a global lane: all jobs that are bound for it, in either layer. With that
        of a session: its jobs. Without a name: everything. They settle with `LaneClearedError`.
        Not a checkpoint.

        Args:
          owner: if given, only jobs of that owner; a job's owner is its session unless said.
          reason: told to whoever waits for those jobs.
        """
        return _control.clear(self._scheduler, _control.named(self._scheduler, name), owner, reason)

    @enable_ki_protection
    def reset(self, name: str | None = None) -> int:
        """Give up the jobs that run, though their bodies may go on. Returns how many.

        The last resort for bodies that do not end. They are cancelled, and at once their slots
        are free and their handles settle with `LaneResetError`; what a body does later changes
        nothing. Waiting jobs are kept, and start. So a given up body may overlap its successor:
        try ``cancel`` and `wait_active` first. The bodies stay children of the lanes' nursery,
        and leaving the block waits for them. Not a checkpoint.
        """
        return _control.reset(self._scheduler, _control.named(self._scheduler, name))

    @enable_ki_protection
    def pause(self, name: str | None = None) -> None:
        """Start no more jobs in that lane, or in any global lane, until `resume`.

        Running jobs are not touched. The name of a template means all of its lanes, including those
        that come to life later; so does a call without a name for every template. Not a checkpoint.
        """
        _control.pause(self._scheduler, _control.alive(self._scheduler, name))

    @enable_ki_protection
    def pause_for(self, name: str | None, seconds: float) -> None:
        """Start no more jobs in that lane, or in any global lane, for so many seconds from now.

        For a Retry-After. It only ever extends such a pause; `resume` ends it too. Lanes of a
        template that come to life later are paused as by `pause`. Not a checkpoint.

        Raises:
          TypeError, ValueError: if ``seconds`` is no finite number from 0 up.
        """
        _control.pause_for(self._scheduler, name, seconds)

    @enable_ki_protection
    def resume(self, name: str | None = None) -> None:
        """Undo `pause` and `pause_for`. What can start starts. Not a checkpoint.

        With the name of a template, or without a name, lanes that come to life later are not paused
        either, even if they are configured so. A lane that was resumed by its own name while its
        template is paused stays alive, and not paused, until the template is resumed or its timed
        pause ends.
        """
        _control.resume(self._scheduler, _control.alive(self._scheduler, name))

    # ---- waiting; inside a job, all of these leave out jobs that cannot go on before it has ended

    async def wait_active(self, name: str | None = None, *, timeout: float = math.inf) -> bool:
        """Wait for the end of the jobs that run now; True when they ended, False at the timeout.

        Later jobs are not waited for; inside a job, neither are those that `wait_idle` leaves out.
        A checkpoint.
        """
        actors = _control.named(self._scheduler, name)
        return await _control.wait_active(self._scheduler, actors, timeout)

    async def wait_idle(self, name: str | None = None) -> None:
        """Wait until nothing waits there and nothing runs. A checkpoint.

        Inside a job this leaves out the job itself and each job that cannot start or end before
        that one has ended: it waits for that job, or needs the place in the session or the slot
        that it holds. The job that is left out goes on once the caller's job has ended.
        """
        await _control.wait_until(self._scheduler, name, idle=True)

    async def wait_empty(self, name: str | None = None) -> None:
        """Wait until nothing waits there; inside a job, as `wait_idle`. A checkpoint."""
        await _control.wait_until(self._scheduler, name)

    async def wait_room(self, n: int, name: str | None = None) -> None:
        """Wait until fewer than ``n`` jobs wait there; inside a job, as `wait_idle`. A checkpoint.

        Raises:
          TypeError, ValueError: if ``n`` is no whole number from 1 up.
        """
        await _control.wait_until(self._scheduler, name, fewer_than=_control.check_room(n))

    wait_waiting_below = wait_room

    # ---- ending

    @enable_ki_protection
    def close(self, reason: str = "closing", retry_after: float | None = None) -> None:
        """Refuse new work from outside with `LanesClosedError`; a running job may still submit.

        Closing again changes nothing. Not a checkpoint.

        Args:
          reason: told to whoever is refused.
          retry_after: seconds after which it is worth trying again, or None.

        Raises:
          TypeError, ValueError: if ``retry_after`` is no finite number of seconds from 0 up.
        """
        if retry_after is not None:
            finite_seconds("retry_after", retry_after)
        self._scheduler.close(reason, retry_after)

    @enable_ki_protection
    def check_open(self) -> None:
        """Raise what a submission from here would raise now if the lanes are closed.

        For whoever takes work that is submitted later, and has to refuse it already. Not a
        checkpoint.

        Raises:
          LanesClosedError: if the lanes take no new work; a running job may submit until they are
            shut.
        """
        if not self._scheduler.closing.is_open:
            self._scheduler.check_open()

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
        """Close, and wait until nothing waits or runs. A checkpoint.

        What is left after ``grace`` seconds is cancelled, and nothing starts any more; bodies that
        outlive that by ``cancel_grace`` seconds are given up as by `reset`. Cancelling the drain
        leaves the lanes closed and the work running. Inside a job this leaves out the same jobs as
        `wait_idle`, so a job may drain its own lanes; what waits behind it runs after it.

        Args:
          waiting: whether jobs that wait now are waited for, or cancelled at once.
        """
        return await drain(
            self._scheduler,
            reason="draining",
            grace=grace,
            cancel_grace=cancel_grace,
            waiting=waiting,
        )
