"""The handle of one submitted job.

A job keeps what happened to it; it changes nothing itself. Its state is changed by the table in
``_state``, its places in line by the lanes, its outcome by ``_settle``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine, Hashable, Iterator, Mapping
from contextvars import Context
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, final

import attrs
import trio
from trio.lowlevel import Abort, Task, enable_ki_protection

from ._check import whole
from ._config import SESSION_IS_OWNER
from ._state import RUNNING, SUCCEEDED, WAITING, JobState

if TYPE_CHECKING:
    from ._config import RareOptions
    from ._errors import JobCancelledError
    from ._lane import LaneActor
    from ._session import SessionActor
    from ._settle import Unseen
    from ._timers import Timer

T_co = TypeVar("T_co", covariant=True)

RaiseCancel = Callable[[], Any]


class Keeper(Protocol):
    """Whoever keeps a job: what a handle may ask of the lanes that it belongs to."""

    def cancel(self, job: AnyJob, reason: str | None) -> bool: ...
    def set_priority(self, job: AnyJob, priority: int) -> None: ...
    def waiting_job(self) -> AnyJob | None: ...
    def awaited(self) -> None: ...


@final
@attrs.define(eq=False, repr=False, weakref_slot=True)
class Job(Generic[T_co]):
    """One submitted call: look at it, wait for it, cancel it. Only lanes make jobs.

    Attributes:
      id: its number in the order of submission, unique in its lanes.
      name: for people; the function's name unless one was given.
      session: the key of the session that it goes through, or None.
      submitted_at, started_at, finished_at: times of `trio.current_time`, None until then.
    """

    _keeper: Keeper
    name: str
    session: str | None
    _fn: Callable[..., Coroutine[Any, Any, T_co]] | None  # None when it has settled
    _args: tuple[Any, ...]
    _context: Context | None  # None when it has settled
    _lane: LaneActor
    _session_lane: SessionActor | None  # None when it has settled
    _priority: int
    _options: RareOptions
    _parent: weakref.ref[AnyJob] | None
    _unhandled: bool  # whether its failure leaves the lanes, as in a nursery
    _costs: Mapping[str, float]  # what its start is charged, by unit

    id: int = attrs.field(default=0, init=False)
    submitted_at: float = attrs.field(default=0.0, init=False)
    started_at: float | None = attrs.field(default=None, init=False)
    finished_at: float | None = attrs.field(default=None, init=False)
    _state: JobState = attrs.field(default=WAITING, init=False)
    _place: int = attrs.field(default=0, init=False)  # its rank in its session
    _arrival: int = attrs.field(default=0, init=False)  # in its global lane; 0: it is not there
    _waiting_since: float = attrs.field(default=0.0, init=False)
    _has_slot: bool = attrs.field(default=False, init=False)  # of its lane, and group
    _lenders: int = attrs.field(default=0, init=False)  # tasks of it that lend its slot
    _readmitting: bool = attrs.field(default=False, init=False)  # in line again, while it runs
    _slot_waiter: Task | None = attrs.field(default=None, init=False)  # wants the slot back
    _charged: bool = attrs.field(default=False, init=False)  # whether `charge` was called
    _progress_at: float = attrs.field(default=0.0, init=False)
    _waits: dict[Task, Wait] | None = attrs.field(default=None, init=False)
    _timers: list[Timer] | None = attrs.field(default=None, init=False)  # of its wait
    _task: Task | None = attrs.field(default=None, init=False)  # that runs its body
    _scope: trio.CancelScope | None = attrs.field(default=None, init=False)  # of its body
    _interruption: JobCancelledError | None = attrs.field(default=None, init=False)
    _waiters: dict[Task, Waiter] | None = attrs.field(default=None, init=False)
    _value: Any = attrs.field(default=None, init=False)
    _error: BaseException | None = attrs.field(default=None, init=False)
    _traceback: TracebackType | None = attrs.field(default=None, init=False)
    _unseen: Unseen | None = attrs.field(default=None, init=False)

    def __repr__(self) -> str:
        session = f", session {self.session!r}" if self.session is not None else ""
        return (
            f"<trio_lanes.Job {self.id} {self.name!r} at {id(self):#x}, "
            f"{self._state.value} in {self.lane!r}{session}>"
        )

    @property
    def lane(self) -> str:
        """The name of the global lane that runs it."""
        return self._lane.name

    @property
    def owner(self) -> Hashable:
        """Whom it counts for in a fair lane: as given with ``owner=``, else its session."""
        owner = self._options.owner
        return self.session if owner is SESSION_IS_OWNER else owner

    @property
    def _actors(self) -> tuple[LaneActor, SessionActor | None]:
        return self._lane, self._session_lane

    @property
    def meta(self) -> Any:
        """Whatever ``meta=`` was given; None if nothing was."""
        return self._options.meta

    @property
    def parent(self) -> AnyJob | None:
        """The job that submitted it; None if no job did, or if that one is no more.

        A child does not keep its parent alive, so a job that submits its successor for ever
        is no chain that grows.
        """
        return None if self._parent is None else self._parent()

    @property
    def state(self) -> JobState:
        """Where it is in its life."""
        return self._state

    @property
    def done(self) -> bool:
        """Whether it has settled: its body has ended, or it never will be called."""
        return self._state is not WAITING and self._state is not RUNNING

    @property
    def exception(self) -> BaseException | None:
        """What `wait` would raise; None if it succeeded, or has not settled.

        Reading it counts as looking at a failure.
        """
        self._seen()
        return self._error

    @property
    def priority(self) -> int:
        """Higher is served first. It can be set while the job waits.

        A new value puts it behind those that have that priority already; the same value keeps
        its place.

        Raises:
          TypeError, ValueError: if set to what is no whole number.
          RuntimeError: if set when the job no longer waits.
        """
        return self._priority

    @priority.setter
    @enable_ki_protection
    def priority(self, value: int) -> None:
        value = whole("priority", value)
        if self._state is not WAITING:
            raise RuntimeError(f"the priority of {self!r} can be set only while it waits")
        if value != self._priority:
            self._keeper.set_priority(self, value)

    @property
    def cancel_called(self) -> bool:
        """Whether it was asked to stop: cancelled, cleared or reset, or its deadline is over."""
        if self._interruption is not None or self._state is JobState.CANCELLED:
            return True
        return self._scope is not None and self._scope.cancel_called

    @enable_ki_protection
    def cancel(self, reason: str | None = None) -> bool:
        """Cancel it; True if it had not ended.

        A waiting job settles at once and is never called. The body of a running one is
        cancelled, as by a `trio.CancelScope` around it, and the job settles when the body has
        ended: as SUCCEEDED or FAILED if it returned or raised all the same. Not a checkpoint.
        """
        return self._keeper.cancel(self, reason)

    async def wait(self) -> T_co:
        """Wait until it has settled, and return what its body returned. A checkpoint.

        Any number of tasks may wait, any number of times. Cancelling a waiter does not cancel
        the job.

        Raises:
          Exception: that very exception with which the body failed.
          JobTimeoutError, QueueTimeoutError: if it ran or waited for too long.
          JobCancelledError: if it was cancelled; `LaneClearedError` and `LaneResetError` say how.
          LanesClosedError: if the lanes ended before it started.
        """
        await self.wait_done()
        try:
            return self._result()
        finally:
            del self  # this frame is in the traceback of what was raised

    @enable_ki_protection
    async def wait_started(self) -> None:
        """Wait until it has started. A checkpoint; cancelling the wait leaves nothing behind.

        Raises:
          JobCancelledError, QueueTimeoutError, LanesClosedError: if it never will, as in `wait`.
        """
        if self._state is WAITING:
            await self._park(Waiter(self._keeper.waiting_job(), until_started=True))
        else:
            await trio.lowlevel.checkpoint()
        if self.started_at is None:
            self._result()

    @enable_ki_protection
    async def wait_done(self) -> None:
        """Wait until it has settled, however. A checkpoint; cancelling it leaves nothing behind."""
        if self.done:
            await trio.lowlevel.checkpoint()
        else:
            await self._park(Waiter(self._keeper.waiting_job()))

    async def _park(self, waiter: Waiter) -> None:
        task = trio.lowlevel.current_task()
        waiters = self._waiters = self._waiters or {}
        waiters[task] = waiter
        if waiter.job is not None:
            self._keeper.awaited()

        def abort(raise_cancel: RaiseCancel) -> Abort:
            del waiters[task]
            return Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    @enable_ki_protection
    async def _wait_as_caller(self) -> None:
        """The second half of ``run``: whoever cancels this wait cancels the job.

        The abort function keeps the cancellation and lets the wait go on, so that it is raised,
        if at all, in this task and after the job has ended: catching `Cancelled` around a wait
        would lose a value that arrives in the tick of the cancellation.
        """
        if self.done:  # it was not to wait, or ended before this task, which waited for room
            if self._body_had_its_say():
                await trio.lowlevel.cancel_shielded_checkpoint()
            else:
                await trio.lowlevel.checkpoint()
            return
        task = trio.lowlevel.current_task()
        waiters = self._waiters = self._waiters or {}
        waiters[task] = waiter = Waiter(self._keeper.waiting_job())
        if waiter.job is not None:
            self._keeper.awaited()
        raise_cancel: RaiseCancel | None = None

        def abort(raise_cancel_: RaiseCancel) -> Abort:
            nonlocal raise_cancel
            del waiters[task]  # a job that settles in here must not wake this task
            self._keeper.cancel(self, "its caller was cancelled")
            if self.done:
                return Abort.SUCCEEDED
            waiters[task] = waiter
            raise_cancel = raise_cancel_
            return Abort.FAILED

        await trio.lowlevel.wait_task_rescheduled(abort)
        if raise_cancel is not None and not self._body_had_its_say():
            raise_cancel()

    def _body_had_its_say(self) -> bool:
        """Whether its body returned or raised, so that its caller is told even if cancelled."""
        # Only a body leaves a traceback: every other error was made by these lanes.
        return self._state is SUCCEEDED or self._traceback is not None

    def _wake(self, *, started: bool = False) -> None:
        """Wake whoever waits for its end, or, if ``started``, for its start."""
        if self._waiters:
            woken = [
                task
                for task, waiter in self._waiters.items()
                if waiter.until_started or not started
            ]
            for task in woken:
                del self._waiters[task]
                trio.lowlevel.reschedule(task)

    def _result(self) -> T_co:
        """What ``wait`` gives, now that it has settled."""
        if self._state is SUCCEEDED:
            return self._value  # type: ignore[no-any-return]  # what the body returned
        self._seen()
        error = self._error
        assert error is not None
        try:
            # Raised anew for each waiter, it would grow by the frames of all of them.
            raise error.with_traceback(self._traceback)
        finally:
            del error, self

    def _seen(self) -> None:
        if self._unseen is not None:
            self._unseen.seen()
            self._unseen = None


AnyJob: TypeAlias = Job[Any]


@final
@attrs.frozen(eq=False)
class Waiter:
    """Who waits for a job, and for what."""

    job: AnyJob | None
    """The job that the waiting task belongs to."""
    until_started: bool = False
