"""The portal: how other threads submit, cancel and get results, without ever entering Trio.

A thread sends its requests to the lanes' own thread, in order, and gets the results by futures. In
the lanes' thread all exceptions are caught: an exception in a function that
`TrioToken.run_sync_soon` calls would end the whole run. A function that was sent before the run has
ended is always called, so that a submission is either accepted or refused, and its future settles.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, Unpack, final

import outcome
import trio

from ._actors.job import AnyJob, UnretrievedError
from ._actors.options import JobOptions, rare_options
from ._actors.state import SUCCEEDED, WAITING
from ._actors.wait import RoomRequest
from ._config.check import whole
from ._config.errors import LanesClosedError, QueueTimeoutError, UnknownLaneError
from ._config.names import resolve_global_lane, session_key
from ._flow.loop import Scheduler
from ._queue.timers import Timer

if TYPE_CHECKING:
    from ._submission import Submitter

logger: Final = logging.getLogger("trio_lanes")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_CANCELLED_OUTCOME: Final = outcome.Value(None)  # the outcome of a future that was cancelled


@final
class LanesPortal:
    """Lanes for other threads: made by `Lanes.portal`, and called, in any thread.

    ::

        portal = lanes.portal()

        @app.post("/chat/<user>")  # of a server that has a thread for each request
        def chat(user):
            return portal.run(reply, user, request.text, session=user, queue_timeout=10)

    Submissions of one thread keep their order. ``queue_timeout`` counts from the call, with the
    wait for room. A job runs in a copy of the context of the thread that submitted it. It is
    submitted from outside: it has no parent, even if the thread was started by a job. In such a
    thread, `trio.from_thread.run` with `Lanes.run` is the better choice, since cancelling the job
    reaches it there, and a deadlock is found, unless the thread was started with
    ``abandon_on_cancel``.

    All methods raise, at the call and with nothing changed:

    * `LanesClosedError` once the lanes are closed, or the whole run has ended. If the lanes are
      closed before a submission arrives, its future raises it.
    * `TypeError`, Trio's own error, for an object that is visibly no async function; or for an
      option that does not exist or is of the wrong type.
    * `ValueError` for an option with a bad value, and for ``yield_slot``.
    * `UnknownLaneError` for a lane that does not exist.
    * `RuntimeError` in a forked child process, where no task runs the jobs.
    """

    _scheduler: Scheduler
    _submitter: Submitter
    _token: trio.lowlevel.TrioToken
    _submissions: dict[Future[Any], _ArrivedCall]  # the submissions that have not settled

    def __init__(self) -> None:
        raise TypeError("only Lanes.portal makes a LanesPortal")

    @classmethod
    def _create(cls, submitter: Submitter) -> LanesPortal:
        portal = cls.__new__(cls)
        portal._scheduler = submitter._scheduler
        portal._submitter = submitter
        portal._token = submitter._scheduler.token
        portal._submissions = {}
        return portal

    def __repr__(self) -> str:
        closed = "" if self._scheduler.closing.is_open else ", closed"
        return f"<trio_lanes.LanesPortal at {id(self):#x}{closed}>"

    def submit(
        self,
        fn: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        **options: Unpack[JobOptions],
    ) -> Future[T]:
        """Submit, and return at once a future that settles as the job does.

        If a lane has no room, the job waits for room; ``queue_timeout`` and ``cancel()`` limit
        that wait. Cancelling the future withdraws a job that has not started, and cancels
        the body of a running job; it is refused only when the job has settled. ``result`` then
        raises `concurrent.futures.CancelledError` at once, while `concurrent.futures.wait` waits
        until the body has ended.

        The failure of the job belongs to the future: if it is never retrieved, it is logged when
        the last reference to the future goes. Callbacks of the future are called in the lanes' own
        thread and must not block. In asyncio, `asyncio.wrap_future` makes it awaitable.

        The future raises as `Job.wait` does. Any thread may call this, also the lanes' own thread.
        """
        future: _JobFuture[T] = _JobFuture(self._cancel_soon)
        self._send(future, fn, args, options)
        return future

    def submit_nowait(
        self,
        fn: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        **options: Unpack[JobOptions],
    ) -> Future[T]:
        """Submit, and return the future of `submit` when the lanes have accepted the job.

        The thread blocks until the lanes' own thread has answered. If that is interrupted, as by
        Ctrl-C, the job is withdrawn or cancelled.

        Raises:
          LaneFullError: if its session or its global lane is full, or other jobs wait for room
            there. Whatever else refuses the job is raised here, too.
          RuntimeError: in the lanes' own thread, which would wait for itself.
        """
        self._check_other_thread("submit_nowait")
        future: _JobFuture[T] = _JobFuture(self._cancel_soon)
        accepted: Future[None] = Future()
        try:
            self._send(future, fn, args, options, accepted)
            accepted.result()
            return future
        except BaseException:
            future.cancel()
            raise
        finally:
            del accepted  # this frame is in the traceback of the error

    def run(
        self,
        fn: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        **options: Unpack[JobOptions],
    ) -> T:
        """Submit, waiting for room where the lane is bounded, and wait for the result.

        Returns the value of the function, or raises as `Job.wait` does. If the wait is interrupted,
        as by Ctrl-C, the job is withdrawn or cancelled.

        Raises:
          RuntimeError: in the lanes' own thread, which would wait for itself.
        """
        self._check_other_thread("run")
        future: _JobFuture[T] = _JobFuture(self._cancel_soon)
        try:  # from before it is sent: Ctrl-C may come at any point
            self._send(future, fn, args, options)
            return future.result()
        except BaseException:
            future.cancel()  # refused if it was the job that raised
            raise
        finally:
            del future  # this frame is in the traceback of the error

    # ---- in the calling thread

    def _check_other_thread(self, verb: str) -> None:
        self._scheduler.check_process()
        if self._scheduler.closing.is_open and threading.get_ident() == self._scheduler.thread:
            raise RuntimeError(f"{verb}() would block the lanes' own thread; use Lanes.{verb}()")

    def _send(
        self,
        future: _JobFuture[Any],
        fn: Callable[..., Awaitable[Any]],
        args: tuple[Any, ...],
        options: JobOptions,
        accepted: Future[None] | None = None,
    ) -> None:
        self._check(fn, options)
        submission = _ArrivedCall(self, future, accepted, self._scheduler.current_time())
        try:
            self._token.run_sync_soon(self._enter, submission, copy_context(), fn, args, options)
        except trio.RunFinishedError:
            raise self._closed() from None

    def _check(self, fn: object, options: JobOptions) -> None:
        """Make all checks that need no call in the lanes' own thread."""
        self._scheduler.check_process()
        if not callable(fn):
            self._submitter._refuse(fn)
        if not self._scheduler.closing.is_open:
            try:
                self._token.run_sync_soon(self._count_refusal, idempotent=True)
            except trio.RunFinishedError:
                pass
            raise self._closed()
        _check_options(self._scheduler, **options)

    def _closed(self) -> LanesClosedError:
        closing = self._scheduler.closing
        return LanesClosedError("the run has ended") if closing.is_open else closing.error()

    def _cancel_soon(self, future: Future[Any]) -> None:
        try:
            self._token.run_sync_soon(self._cancel, future)
        except trio.RunFinishedError:
            pass  # then it has settled

    # ---- in the lanes' own thread: nothing may be raised

    def _count_refusal(self) -> None:
        try:
            self._scheduler.check_open()
        except BaseException:
            pass

    def _enter(
        self,
        submission: _ArrivedCall,
        context: Context,
        fn: Callable[..., Awaitable[Any]],
        args: tuple[Any, ...],
        options: JobOptions,
    ) -> None:
        self._submissions[submission.future] = submission
        if submission.future.cancelled():
            submission.end(_CANCELLED_OUTCOME)
            return
        try:
            submission.enter(context.run(self._submitter._make, fn, args, options))
        except BaseException as error:
            accepted, submission.accepted = submission.accepted, None  # the traceback leads to it
            if accepted is None:
                submission.end(outcome.Error(error))
            else:
                submission.end(_CANCELLED_OUTCOME)
                accepted.set_exception(error)
                del accepted

    def _cancel(self, future: Future[Any]) -> None:
        submission = self._submissions.get(future)
        if submission is not None:
            try:
                submission.cancel()
            except BaseException as error:
                submission.end(outcome.Error(error))


def _check_options(
    scheduler: Scheduler,
    *,
    lane: str = "main",
    session: str | None = None,
    priority: int = 0,
    **rare: Any,
) -> None:
    if session is not None:
        session_key(session)
    whole("priority", priority)
    if rare_options(rare).yield_slot:
        raise ValueError("yield_slot lends the slot of a job, but a thread is not inside a job")
    name, plan = resolve_global_lane(lane), scheduler.registry.plan  # plans are never changed
    if plan.label_of(name) is None:
        raise UnknownLaneError(name, plan.lanes)


@final
class _JobFuture(Future[T]):
    """A future whose cancellation reaches its job, and whose failure is logged if not retrieved."""

    def __init__(self, cancel_soon: Callable[[Future[Any]], None]) -> None:
        super().__init__()
        self._cancel_soon: Final = cancel_soon
        self._error: BaseException | None = None
        self._unretrieved: UnretrievedError | None = None

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if cancelled:
            self._cancel_soon(self)
        return cancelled

    def result(self, timeout: float | None = None) -> T:
        try:
            return super().result(timeout)
        except BaseException as error:
            if error is self._error:  # else the wait was interrupted or timed out
                self._retrieve()
            raise
        finally:
            del self  # this frame is in the traceback of the error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        error = super().exception(timeout)
        self._retrieve()
        return error

    def _retrieve(self) -> None:
        if self._unretrieved is not None:
            self._unretrieved.retrieved()

    def settle(self, what: outcome.Maybe[T], unretrieved: UnretrievedError | None = None) -> bool:
        """Set the outcome; False if the future was cancelled, and so keeps none. Never raises."""
        try:
            if not self.set_running_or_notify_cancel():
                return False
            if isinstance(what, outcome.Value):
                self.set_result(what.value)
            else:
                self._error, self._unretrieved = what.error, unretrieved
                self.set_exception(what.error)
        except BaseException:
            logger.exception("a callback of %r raised", self)
        return True


@final
class _ArrivedCall:
    """A submission that has arrived and has not settled: it waits for room, or is accepted."""

    until_started: Final = False  # as a waiter of its job it is woken at the end
    wait: Final = None  # no task of this run waits by it

    def __init__(
        self,
        portal: LanesPortal,
        future: _JobFuture[Any],
        accepted: Future[None] | None,
        at: float,
    ) -> None:
        self._portal: Final = portal
        self.future: Final = future
        self.accepted = accepted  # what its thread waits for, which then waits for no room
        self._at: Final = at  # the time of the call
        self._target: AnyJob | None = None
        self._request: RoomRequest | None = None
        self._timer: Timer | None = None  # ends the wait: ``queue_timeout``

    def enter(self, job: AnyJob) -> None:
        """Have ``job`` accepted, or wait for room."""
        scheduler = self._portal._scheduler
        seconds = job._options.queue_timeout
        if 0 < seconds < math.inf:
            if scheduler.current_time() >= self._at + seconds:  # the lanes' own thread was busy
                raise QueueTimeoutError(seconds)
            when = self._at + job._options.delay + seconds
            self._timer = scheduler.timers.call_at(when, partial(self._out_of_time, seconds))
        joined = None if job._options.coalesce is None else scheduler.coalesce(job)
        if joined is None and self.accepted is not None:
            self._portal._submitter._check_room(job)
        self._target = joined or job
        scheduler.waits.add_waiter(self._target, self)
        if joined is None and scheduler.full(job) is None:
            scheduler.submit(job)
        elif joined is None:
            self._request = scheduler.request_room(job, self._room_decided)
        if self.accepted is not None:
            self.accepted.set_result(None)

    def _room_decided(self, what: outcome.Maybe[AnyJob]) -> None:
        self._request = None
        if isinstance(what, outcome.Error):
            self.end(what)
        elif what.value is not self._target:
            self._target = what.value
            self._portal._scheduler.waits.add_waiter(what.value, self)

    def _out_of_time(self, seconds: float) -> None:
        assert self._target is not None
        error = QueueTimeoutError(seconds)
        if self._request is not None:
            self._portal._scheduler.drop_request(self._request)
            self.end(outcome.Error(error))
        elif self._target._state is WAITING and self._target._options.caller_left():
            self.end(outcome.Error(error))
        elif self._target._state is WAITING:
            self._portal._scheduler.withdraw(self._target, error)

    def job_ended(self, target: AnyJob) -> None:
        """As a waiter of its job: it has settled."""
        if target._state is SUCCEEDED:
            self.end(outcome.Value(target._ended_with))
            return
        unretrieved = target._unretrieved
        if self.end(outcome.Error(target._ended_with), unretrieved) and unretrieved is not None:
            # From now on the failure belongs to the future, which may outlive the lanes.
            self._portal._scheduler.ends.unretrieved.discard(unretrieved)

    def cancel(self) -> None:
        """Its future was cancelled."""
        if self._request is not None:
            self._portal._scheduler.drop_request(self._request)
            self.end(_CANCELLED_OUTCOME)
        else:
            assert self._target is not None
            if self._target._options.caller_left():
                self.end(_CANCELLED_OUTCOME)
            else:
                self._target.cancel("its future was cancelled")

    def end(self, what: outcome.Maybe[Any], unretrieved: UnretrievedError | None = None) -> bool:
        """Settle the future, once; return whether it keeps the outcome."""
        if self._timer is not None:
            self._timer.cancel()
        submission = self._portal._submissions.pop(self.future, None)
        return submission is not None and self.future.settle(what, unretrieved)
