"""The handle of a submitted job: the record of the job, and the methods for users.

The lanes change the record; each of its private fields is written here and by at most one other
module, which the comment above the field names. What a handle asks of its lanes is in `Keeper`, and
what it knows of them in `LaneOfJob`: lanes hold jobs, and no job needs to know what a lane is.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterator, Mapping
from contextvars import Context
from types import CodeType, FrameType, TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    NoReturn,
    Protocol,
    TypeAlias,
    TypeVar,
    final,
)

import attrs
import trio
from outcome import Error, Value
from trio.lowlevel import Task, enable_ki_protection

from .._config.check import finite_seconds, sync, whole
from .._config.errors import JobCancelledError
from .._config.exact import Amount, Exact
from .._config.protected import protected_context
from .._config.reasons import REASONS, Cause
from .options import NO_EXTRAS, SESSION_IS_OWNER, ExtraOptions
from .state import (
    CANCELLED,
    HELD,
    LENT,
    NONE,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    WAITING,
    WANTED,
    JobState,
    Slot,
)
from .wait_log import waits

if TYPE_CHECKING:
    from .._limits.rate import Rates
    from .._queue.timers import Timer
    from .wait import KeptWaits, Wait, Waiter
    from .wait_log import Log

logger: Final = logging.getLogger("trio_lanes")

T_co = TypeVar("T_co", covariant=True)

OWN_CODE: Final[set[CodeType]] = set()
"""Code of this library that stands between a job's task and its body."""

_NEVER_WAITED: Final = -math.inf

_SLOTS: Final[Mapping[Slot, Literal["held", "lent", "wanted"]]] = {
    HELD: "held",
    LENT: "lent",
    WANTED: "wanted",
    QUEUED: "wanted",
}

BlockerKind = Literal[
    "delay",
    "session",
    "order",
    "concurrency",
    "pause",
    "rate",
    "group",
    "reservation",
    "job",
    "room",
    "lent",
]


@final
@attrs.frozen
class Blocker:
    """A reason why a job waits."""

    kind: BlockerKind
    """``delay``: it is not due. ``session``: its session runs as many jobs as it may. ``order``:
    other jobs are before it. ``concurrency``: the lane has no free slot. ``pause``, ``rate``: of
    the lane. ``group``: the group has no token. ``reservation``: the tokens that the group has left
    are reserved for other members. ``job``: it runs, and waits for these jobs. ``room``: it runs,
    and waits for room to submit. ``lent``: it runs, and has lent its slot to wait for
    ``reason``."""
    lane: str
    """The name of a global lane, of a session lane, or of a group."""
    jobs: tuple[AnyJob, ...] = ()
    """The jobs that hold the slots or tokens that it needs, or that are before it."""
    until: float | None = None
    """When the reason ends, on Trio's clock, if that is known."""
    reason: str | None = None
    """What a job that has lent its slot waits for, in the words given to `Job.yield_slot`; why a
    job that wants its slot back can never get it, if it cannot by the present limits."""

    def __str__(self) -> str:
        """The reason in words, as a sentence of which the job is the subject."""
        if self.kind == "lent":
            return f"it has lent its slot, and waits for {self.reason}"
        words = REASONS[self.kind].format(lane=self.lane)
        return words if self.reason is None else f"{words}: {self.reason}"


class Keeper(Protocol):
    """The requests of a handle to the lanes that it belongs to."""

    @property
    def parent_task(self) -> Task: ...
    def check_thread(self) -> None: ...
    def cancel(self, job: AnyJob, reason: str | None) -> bool: ...
    def set_priority(self, job: AnyJob, priority: int) -> None: ...
    def put_off(self, job: AnyJob, delay: float) -> None: ...
    def charge(self, job: AnyJob, units: Mapping[str, Amount]) -> None: ...
    def overloaded(self, job: AnyJob) -> None: ...
    def lend(self, job: AnyJob, reason: str | None) -> None: ...
    async def take_back(self, job: AnyJob, reason: str | None) -> None: ...
    async def readmit(self, job: AnyJob, cost: Amount | Mapping[str, Amount] | None) -> None: ...
    async def park(self, target: AnyJob, *, until_started: bool) -> None: ...
    def blockers(self, job: AnyJob) -> tuple[Blocker, ...]: ...
    def root_causes(self, job: AnyJob) -> tuple[Cause, ...]: ...
    @property
    def current_time(self) -> Callable[[], float]: ...
    @property
    def waits(self) -> KeptWaits: ...


class LaneOfJob(Protocol):
    """The global lane of a job, as far as the job and its session know it."""

    @property
    def name(self) -> str: ...
    @property
    def label(self) -> str: ...
    def remove(self, job: AnyJob) -> int: ...
    def move(self, job: AnyJob, arrival: int) -> None: ...
    def withhold(self, job: AnyJob) -> None: ...


class Metered(Protocol):
    """What a start was charged to, and counts a later correction: a group."""

    rates: Rates

    def correct(self, more: Mapping[str, Exact], now: float, at: float) -> None: ...


class BodyTask(Protocol):
    """What runs the body of a job: a task of Trio's, or of the loop of which Trio is the guest."""

    def iter_await_frames(self) -> Iterator[tuple[FrameType, int]]: ...


class BodyScope(Protocol):
    """What ends the body of a job: a `trio.CancelScope`, unless the body runs outside of Trio."""

    deadline: float

    @property
    def cancel_called(self) -> bool: ...
    def cancel(self, reason: str | None = None) -> None: ...


@final
class UnretrievedError:
    """A failure that is logged when the last reference to its job goes, unless it is retrieved.

    Only a failed job has such an object, so jobs that do not fail pay nothing for it.
    """

    __slots__ = ("__weakref__", "_error", "_job")

    def __init__(self, job: str, error: BaseException) -> None:
        self._job = job
        self._error: BaseException | None = error

    def retrieved(self) -> None:
        """Report nothing: the failure was retrieved."""
        self._error = None

    @enable_ki_protection  # or a Ctrl-C in here would be lost: Python drops errors of `__del__`
    def report(self) -> None:
        """Log it, once."""
        error, self._error = self._error, None
        if error is not None:
            logger.error("%s failed; its exception was never retrieved", self._job, exc_info=error)

    __del__ = report


@final
@attrs.frozen
class Charge:
    """What the start of a job was charged, by unit, and when."""

    costs: Mapping[str, Amount]
    at: float
    group: Metered | None = None  # that was charged: the lane may be in another group by now


CORRECTED: Final = Charge({}, -math.inf)
"""In place of a charge that `Job.charge` has corrected."""


@final
class Callback:
    """A `Waiter` that calls a function when the job has settled."""

    __slots__ = ("_call",)

    until_started: Final = False
    wait: Final = None

    def __init__(self, call: Callable[[AnyJob], object]) -> None:
        self._call = call

    def job_ended(self, target: AnyJob) -> None:
        try:
            self._call(target)
        except Exception:
            logger.exception("a callback of %r raised", target)


@attrs.define(eq=False, repr=False, init=False, weakref_slot=True, getstate_setstate=False)
class Job(Generic[T_co]):
    """The handle of a submitted call: inspect it, wait for it, cancel it. Only lanes make jobs.

    Attributes:
      id: its number in the order of submission, unique in its lanes.
      name: for people; the function's name unless one was given.
      session: the key of the session that it goes through, or None.
      submitted_at, started_at, finished_at: times of `trio.current_time`, None until then.
    """

    # Written here alone: by `make_job` and by methods of the job
    _keeper: Keeper
    name: str
    session: str | None
    _args: tuple[Any, ...]  # () when it has settled
    _fn: Callable[..., Coroutine[Any, Any, T_co]] | None  # None when it has settled
    _options: ExtraOptions
    _parent: weakref.ref[AnyJob] | None
    _unhandled: bool  # whether its failure leaves the lanes, as in a nursery
    _ended_with: Any  # the value of its body, or the error for its waiters; set when it settles
    _traceback: TracebackType | None  # of that error; set when it settles, unless it succeeds
    # Written by the loop as well
    id: int
    submitted_at: float
    started_at: float | None
    finished_at: float | None
    _context: Context | None  # None when it has settled
    # The next two are Any, as lanes import jobs: those who use more of a lane than a job does name
    # its type where they read it, as in ``lane: LaneActor = job._lane``
    _lane: Any  # a `LaneActor`
    _session_lane: Any  # a `SessionActor` or None; None when it has settled
    _waiting_since: float
    _priority: int
    _timers: list[Timer] | None  # of its wait
    _progress_at: float
    _interruption: JobCancelledError | None  # why it is cancelled while it runs
    _charge: Charge | None  # of its last start; None if no rate limit was charged
    # Written by `state.advance`
    _state: JobState
    # Written by its session
    _place: int  # its rank in its session
    # Written by its global lane
    _arrival: int  # in its global lane; 0: it is not there
    _slot: Slot
    # Written by lending
    _costs: Mapping[str, Amount]  # what its start is to be charged, by unit
    _lenders: tuple[str | None, ...]  # why its tasks lend its slot, one for each task
    _slot_waiters: list[Task] | None  # that want it back
    # Written by the waits of tasks
    _waits: dict[Task, Wait] | None  # of its tasks
    _waiters: dict[object, Waiter] | None  # {task or waiter: the waiter}
    # Written by the accounts of waits
    _log: Log | None  # with wait_accounting, if it has waited
    # Written by the workers
    _task: BodyTask | None  # that runs its body
    _scope: BodyScope | None  # of its body; None when it has settled
    # Written by settling
    _unretrieved: UnretrievedError | None  # set when it settles, unless it succeeds

    def __init__(self) -> None:
        raise TypeError("only lanes make a Job")

    def __reduce__(self) -> NoReturn:  # a copy would have the place of the job in its lanes
        raise TypeError(f"{self!r} cannot be copied or pickled")

    def __repr__(self) -> str:
        session = f", session {self.session!r}" if self.session is not None else ""
        return (
            f"<trio_lanes.Job {self.id} {self.name!r} at {id(self):#x}, "
            f"{self._state.value} in {self.lane!r}{session}>"
        )

    @property
    def lane(self) -> str:
        """The name of the global lane that runs it."""
        lane: LaneOfJob = self._lane
        return lane.name

    @property
    def lane_label(self) -> str:
        """The name of its global lane, or of the template of that lane.

        Use it for the label of a metric: it has only as many values as lanes are configured.
        """
        lane: LaneOfJob = self._lane
        return lane.label

    @property
    def waiting_since(self) -> float | None:
        """When its wait began, on `trio.current_time`; None while its ``delay`` is not over.

        A job that is readmitted, or wants the slot back that it has lent, begins to wait anew.
        """
        return None if self._waiting_since == _NEVER_WAITED else self._waiting_since

    @property
    def progress_at(self) -> float | None:
        """When it has told of `progress` last, or has got its slot, on `trio.current_time`.

        None if it has not started. While it has no slot, since it lends it, when it has started:
        then its idle time does not count.
        """
        if self.started_at is None or self._progress_at == math.inf:
            return self.started_at
        return self._progress_at

    @property
    def waits(self) -> Mapping[str, float]:
        """The seconds that it has waited to start so far, by cause: ``"session"``, ``"slots"``,
        ``"group"``, ``"rate"``, ``"pause"``, ``"delay"`` and ``"order"`` (others are before it).

        Each moment has one cause, the first of `blocked_by`, so they sum to the time from its
        submission to its start. ``"room"``, for which it waited before it was submitted, is not in
        that sum. Causes for which it did not wait are not there. Empty without
        ``open_lanes(wait_accounting=True)``.
        """
        if self._log is None:
            return {}
        ended = self.finished_at if self.started_at is None else self.started_at
        now = self._keeper.current_time() if ended is None else ended
        return waits(self._log, now, now - self.submitted_at if self.id else 0.0)

    @property
    def owner(self) -> Hashable:
        """The owner that it counts for in a fair lane: given by ``owner=``, else its session."""
        owner = self._options.owner
        return self.session if owner is SESSION_IS_OWNER else owner

    @property
    def meta(self) -> Any:
        """The object that was given as ``meta=``; None without it."""
        return self._options.meta

    @property
    def cost(self) -> Mapping[str, Amount]:
        """What its start is charged by the rate limits of its lanes, by unit.

        It is what was given as ``cost=``, or to its last `readmit`; one request unless given.
        """
        return self._costs

    @property
    def delay(self) -> float:
        """Seconds after its submission at which it takes its place in its queue; 0 unless given."""
        return self._options.delay

    @property
    def submissions(self) -> int:
        """How many submissions it stands for: 1, and each that has joined it by ``coalesce=``.

        With ``keep="latest"``, its `name`, `meta` and other options are those of the newest.
        """
        return self._options.submissions

    @property
    def parent(self) -> AnyJob | None:
        """The job that submitted it; None if no job did, or if that job is not in memory any more.

        A child does not keep its parent alive, so a chain of jobs in which each submits the next
        does not grow in memory.
        """
        return None if self._parent is None else self._parent()

    @property
    def state(self) -> JobState:
        """Its state: waiting, running, or how it has ended."""
        return self._state

    @property
    def slot(self) -> Literal["held", "lent", "wanted"] | None:
        """Its slot in its global lane: held, lent, or wanted back after it was lent or readmitted.

        None if the job does not run, or ends without a slot because it was cancelled and none can
        come.
        """
        return _SLOTS.get(self._slot)

    @property
    def done(self) -> bool:
        """Whether it has settled: its body has ended, or will never be called."""
        return self._state is not WAITING and self._state is not RUNNING

    @property
    def outcome(self) -> Value[T_co] | Error | None:
        """How it has settled, as an `outcome.Value` or `outcome.Error`; None until then.

        For observers: reading it does not count as retrieving a failure.
        """
        if not self.done:
            return None
        return Value(self._ended_with) if self._state is SUCCEEDED else Error(self._ended_with)

    @property
    def exception(self) -> BaseException | None:
        """The exception that `wait` would raise; None if it succeeded, or has not settled.

        Reading it counts as retrieving a failure, which is then not logged.
        """
        if self._state is SUCCEEDED or not self.done:
            return None
        return self._retrieve()

    @property
    def priority(self) -> int:
        """Higher is served first. It can be set while the job waits.

        A new value puts it behind the jobs that have that priority already; the same value keeps
        its place.

        Raises:
          TypeError, ValueError: if set to a value that is no whole number.
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

    @enable_ki_protection
    def put_off(self, delay: float) -> bool:
        """Let it take its place in its queue ``delay`` seconds from now, if it waits.

        Until then it is as a job with a ``delay``, but it keeps its room in full lanes. A later
        call sets another time; with a delay of 0 it takes its place now, at the tail. Not a
        checkpoint.

        Returns:
          Whether it waited. If not, nothing has changed.

        Raises:
          TypeError, ValueError: for a delay that is no number of seconds from 0 on.
        """
        self._keeper.check_thread()
        delay = finite_seconds("delay", delay)
        if self._state is not WAITING:
            return False
        if self._options is NO_EXTRAS:
            self._options = ExtraOptions()
        self._keeper.put_off(self, delay)
        return True

    @property
    def cancel_called(self) -> bool:
        """Whether it was asked to stop: cancelled, cleared or reset, or its deadline is over."""
        if self._interruption is not None or self._state is CANCELLED:
            return True
        return self._scope is not None and self._scope.cancel_called

    @enable_ki_protection
    def on_settled(self, callback: Callable[[Job[T_co]], object]) -> None:
        """Call ``callback(job)`` once when it has settled; now, if it has settled already.

        It is called in the lanes' own thread, when the state of the lanes is complete, and may
        submit, cancel or clear. In a hook or another callback, "now" is soon after that has
        returned. An exception in it is logged and changes nothing. It does not count as retrieving
        a failure. Not a checkpoint.

        Raises:
          TypeError: if ``callback`` is no synchronous function.
          RuntimeError: in another thread.
        """
        sync("callback", callback)
        self._keeper.waits.add_waiter(self, Callback(callback))

    @enable_ki_protection
    def cancel(self, reason: str | None = None) -> bool:
        """Ask it to stop; True if it had not ended. True does not say that it ends as cancelled.

        A waiting job settles at once and is never called. A job that has its slot is running, even
        if its body is yet to begin: the body begins, and is cancelled as by a `trio.CancelScope`
        around it. The job settles when the body has ended: as SUCCEEDED or FAILED if the body
        returned or raised nevertheless. `wait_done`, then `state` say how. Not a checkpoint.
        """
        return self._keeper.cancel(self, reason)

    if not TYPE_CHECKING:  # where a checker says it before

        def __await__(self) -> NoReturn:
            raise TypeError("a Job is not awaited itself: write 'await job.wait()'")

    async def wait(self) -> T_co:
        """Wait until it has settled, and return the value of its body. A checkpoint.

        Any number of tasks may wait, any number of times. Cancelling a wait leaves nothing behind,
        and does not cancel the job.

        Raises:
          Exception: the very exception with which the body failed; a group without cancellations.
          JobTimeoutError, QueueTimeoutError: if it ran or waited for too long.
          JobCancelledError: if it was cancelled; `LaneClearedError` and `LaneResetError` say how.
          LanesClosedError: if the lanes ended before it started.
          LaneDeadlockError: inside a job, if the wait would never end.
        """
        await self.wait_done()
        try:
            return self._unwrap()
        finally:
            del self  # this frame is in the traceback of the error

    @enable_ki_protection
    async def wait_started(self) -> None:
        """Wait until it has started. A checkpoint; cancelling the wait leaves nothing behind.

        Raises:
          JobCancelledError, QueueTimeoutError, LanesClosedError: if it never starts, as in `wait`.
          LaneDeadlockError: as `wait`.
        """
        self._keeper.check_thread()
        if self._state is WAITING:
            await self._keeper.park(self, until_started=True)
        else:
            await trio.lowlevel.checkpoint()
        if self.started_at is None:
            self._unwrap()

    @enable_ki_protection
    async def wait_done(self) -> None:
        """Wait until it has settled. A checkpoint; cancelling the wait leaves nothing behind.

        Raises:
          LaneDeadlockError: as `wait`.
        """
        self._keeper.check_thread()
        if self.done:
            await trio.lowlevel.checkpoint()
        else:
            await self._keeper.park(self, until_started=False)

    def blocked_by(self) -> tuple[Blocker, ...]:
        """Return why it waits now: to start, or, while it runs, for other jobs and for its slot.

        Empty if it does not wait. Not a checkpoint.
        """
        return self._keeper.blockers(self)

    def root_causes(self) -> tuple[Cause, ...]:
        """Return the roots of its wait: the reasons of `blocked_by`, each followed to its end.

        ``str(cause)`` is a line for people, ``cause.advice`` what would help there. All of them
        hold it; where one of several jobs is enough, as for a slot, the first that can go on was
        followed. At most eight, of 200 jobs that are looked at and 500 places in a line;
        where that was not enough, the line says so. Empty if it does not wait. Not a checkpoint.
        """
        return self._keeper.root_causes(self)

    def iter_await_frames(self) -> Iterator[tuple[FrameType, int]]:
        """Iterate over the frames of its body and their lines, outermost first, as Trio's tasks do.

        Empty before the body has started and after it has ended.
        """
        if self._task is not None:
            for frame, line in self._task.iter_await_frames():
                if frame.f_code not in OWN_CODE:
                    yield frame, line

    # ---- inside it

    @enable_ki_protection
    def progress(self) -> None:
        """Report progress: its ``idle_timeout`` counts from now, and nobody takes it for hung.

        When it does not run, it does nothing. Not a checkpoint.

        Raises:
          RuntimeError: from another thread.
        """
        if self._state is RUNNING:
            self._restart_idle_clock()

    @enable_ki_protection
    def overloaded(self) -> None:
        """Say that what its lane works for is overloaded: an `Adaptive` concurrency falls.

        Use it where the body handles a refusal itself: before `readmit`, after a slow answer. The
        limit falls once for all jobs that had their slots by then. In another lane, and when it
        does not run, it does nothing. Not a checkpoint.
        """
        if self._state is RUNNING:
            self._keeper.overloaded(self)

    @enable_ki_protection
    def charge(self, **units: Amount) -> None:
        """Correct the charge of its start: ``units`` are the amounts that it really used.

        Once for each start, before the job ends or after. A debt makes later jobs wait. Units that
        are not named stay as they were charged; a call without units changes nothing, and is not
        that one correction. Not a checkpoint.

        Raises:
          RuntimeError: if it has not started, or if this start was corrected before.
          TypeError, ValueError: for a unit that none of its rate limits knows, or a bad number.
        """
        self._keeper.charge(self, units)

    @protected_context
    async def yield_slot(self, *, reason: str | None = None) -> AsyncIterator[None]:
        """Lend its slot in the lane, and in the lane's group, for as long as the block.

        Use it inside the job, around a wait that is long, or that needs such a slot to end. The job
        keeps the slot of its session. Several tasks of the job may lend at once: it lends from the
        first to the last. At the end it takes a slot back, before all waiting jobs and in spite of
        pauses and reservations, but within the limit. This wait is shielded from cancellation, as
        in `trio.Condition.wait`. A cancelled job leaves the block without a slot only if no slot
        can come, since limits were lowered. Its ``timeout`` counts on, its ``idle_timeout`` stops.
        Entering is not a checkpoint; leaving lets other tasks run, but cannot be cancelled.

        Args:
          reason: what the job waits for, in words for people; `blocked_by` shows it.

        Raises:
          TypeError: if ``reason`` is neither a string nor None.
          RuntimeError: if it does not run, or if this task is not inside it.
        """
        if reason is not None and not isinstance(reason, str):
            raise TypeError(f"reason must be a string or None, not {reason!r}")
        if self.started_at is None:
            raise RuntimeError(f"{self!r} has no slot to lend")
        self._keeper.lend(self, reason)
        try:
            yield
        finally:
            await self._take_back(reason)

    async def _take_back(self, reason: str | None) -> None:
        await self._keeper.take_back(self, reason)

    async def readmit(self, *, cost: Amount | Mapping[str, Amount] | None = None) -> None:
        """Give its slot back, and return when its lane would start it again, first of its priority.

        Use it for a 429 with Retry-After: call ``lanes.pause_for(...)``, then this. The job waits
        as before its start: for a slot, and for the pauses and rate limits of its lane and its
        session. Its start is charged again, with ``cost`` if that is given. A checkpoint. If the
        wait is cancelled, the job waits, shielded, for a slot to clean up with.

        Raises:
          RuntimeError: if it does not run, lends its slot, or if this task is not inside it.
          TypeError, ValueError: for a bad cost.
        """
        if self._state is not RUNNING:
            raise RuntimeError(f"{self!r} does not run")
        await self._keeper.readmit(self, cost)

    def _restart_idle_clock(self) -> None:
        if self.cancel_called:
            return  # if it is too late, what ends it is decided
        self._keeper.check_thread()
        self._progress_at = trio.current_time() if self._slot is HELD else math.inf
        if self._options.idle_timeout < math.inf and self._scope is not None and self._task:
            self._scope.deadline = self._deadline  # without a task its scope is not entered

    @property
    def _deadline(self) -> float:
        """When its body is to end, by the earlier of its limits."""
        assert self.started_at is not None
        options = self._options
        return min(self.started_at + options.timeout, self._progress_at + options.idle_timeout)

    def _unwrap(self) -> T_co:
        """Return or raise as ``wait`` does. The job has settled."""
        if self._state is SUCCEEDED:
            return self._ended_with  # type: ignore[no-any-return]  # what the body returned
        error = self._retrieve()
        try:
            # Raised again for each waiter, its traceback would grow by the frames of all waiters.
            raise BaseException.with_traceback(error, self._traceback)
        finally:
            del error, self

    def _retrieve(self) -> BaseException:
        """Return the error with which it has settled; this counts as retrieving it."""
        if self._unretrieved is not None:
            self._unretrieved.retrieved()
            self._unretrieved = None
        error: BaseException = self._ended_with
        return error

    def _let_failure_leave(self) -> None:
        """Have its failure leave the lanes, as from a nursery; then it counts as retrieved."""
        self._unhandled = True

    def _let_failure_stay(self) -> None:
        """Undo `_let_failure_leave`."""
        self._unhandled = False

    def _take_over(self, newest: AnyJob, keep: Literal["latest", "first"]) -> None:
        """Stand for the submission of ``newest``, too.

        With "latest", be what that was to be, but for its lanes, its priority and its delay.
        """
        if keep == "first":
            self._options.stand_for(newest._options)
            return
        newest._options.stand_for(self._options)
        newest._options.delay = self._options.delay
        self.name, self._fn, self._args = newest.name, newest._fn, newest._args
        self._context, self._parent = newest._context, newest._parent
        self._options, self._costs = newest._options, newest._costs
        self._scope = newest._scope

    def _keep_timer(self, timer: Timer) -> None:
        """Have ``timer`` cancelled when this job waits no more."""
        self._timers = [*(self._timers or ()), timer]

    def _settled(self, now: float, value: Any, error: BaseException | None) -> None:
        """Keep how it ended, and drop the references that were needed only until then."""
        self.finished_at = now
        self._ended_with = value
        self._fn = None
        self._args = ()
        self._task = None
        self._scope = None
        if error is not None:
            self._ended_with = error
            self._traceback = error.__traceback__
            self._unretrieved = None


AnyJob: TypeAlias = Job[Any]


def make_job(
    kind: type[AnyJob],
    keeper: Keeper,
    name: str,
    session: str | None,
    fn: Callable[..., Coroutine[Any, Any, Any]],
    args: tuple[Any, ...],
    context: Context,
    lane: LaneOfJob,
    priority: int,
    options: ExtraOptions,
    parent: weakref.ref[AnyJob] | None,
    unused_scopes: list[trio.CancelScope],
) -> AnyJob:
    """Make a job, which is not submitted yet, with a cancel scope: an unused one, or a new one."""
    # By hand: an `__init__` of attrs looks up each default by name, and costs twice as much. Fields
    # that are first read after the submission, or after the start, are set there.
    job: AnyJob = kind.__new__(kind)
    job._keeper = keeper
    job.name = name
    job.session = session
    job._fn = fn
    job._args = args
    job._context = context
    job._lane = lane
    job._session_lane = None
    job._priority = priority
    job._options = options
    job._parent = parent
    job._unhandled = False
    job._costs = options.cost
    job.id = 0
    job.started_at = None
    job.finished_at = None
    job._state = WAITING
    job._place = 0
    job._arrival = 0
    job._waiting_since = _NEVER_WAITED
    job._slot = NONE
    job._lenders = ()
    job._slot_waiters = None
    job._charge = None
    job._waits = None
    job._timers = None
    job._task = None
    if options.limits_run:
        job._scope = _new_scope(options)
    else:
        job._scope = unused_scopes.pop() if unused_scopes else trio.CancelScope()
    job._interruption = None
    job._waiters = None
    job._log = None
    return job


def _new_scope(options: ExtraOptions) -> trio.CancelScope:
    return trio.CancelScope(relative_deadline=min(options.timeout, options.idle_timeout))
