"""The workers: the only tasks that call users' functions.

Theory of operation
-------------------
A task and an entered cancel scope for each job would be simple, and would cost more than all other
steps of the job together. A job that never blocks has no use for them. So a worker takes the first
step of a job, up to the first time that it blocks, without knowing whether it will block:

* A job that ends in its first step never blocked. The worker goes on with the next granted job, in
  the same task and scope, without a pass of Trio's scheduler.
* A job that blocks has the worker to itself until it has ended: its task, its scope, its context.
  Then the worker goes on with the next granted job only if the job left nothing behind. What a
  job can leave (a lock that it holds, a token, an open nursery, a saved task, a weak reference)
  refers to the task. So the worker counts the references to its task, strong and weak. The task
  ends if there are more references than to the task of a new worker, a scope is still open, the
  scope was cancelled or is past its deadline, or the body raised; then the references end with the
  task. Where such counts cannot be trusted (`REUSES_TASKS`), each job that blocks has its own task.

Each job has a cancel scope from its submission. A worker enters the scope of its first job. A later
job, whose own scope was not touched, takes that scope over as its own: the job before it has ended,
so at any time a scope belongs to one job. Its own scope, never entered, goes to a later submission.
A job whose scope was cancelled before it ran is run under its own scope. If a job spoils the scope
(it is cancelled, is past its deadline, or leaves a scope of its own open), so is the next job.

The first step is taken by ``context.run``, and the task has the same context, so that code finds
the context in which it runs in ``current_task().context``. Trio enters it at every later step.
When the job has ended, the task gets its own context back.

Invariants
----------
* ``ready`` is the number of workers that will come for a granted job. If there are more granted
  jobs, and fewer than `MAX_HIRED` workers, the loop hires a worker (`WorkerPool.hire`), after all
  other acts. More workers are hired only as jobs block: jobs that never block need one worker.
* While a worker takes a first step, it will come for the jobs that this step lets start: no other
  worker is hired for them. If the job then blocks, up to two workers are hired in its place, so the
  number of ready workers at most doubles with each pass of Trio's scheduler.
* The worker calls ``returned``, ``raised`` or ``interrupted`` exactly once for each job whose body
  it began. A granted job that was reset before that is skipped.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from operator import attrgetter
from types import CoroutineType, TracebackType
from typing import Any, Final, final
from weakref import getweakrefs

import trio
from trio.abc import Instrument
from trio.lowlevel import Abort, Task, disable_ki_protection, enable_ki_protection

from .._actors.job import OWN_CODE, AnyJob
from .._actors.state import RUNNING
from .._config.check import refuse_like_trio

JOBS_PER_PASS: Final = 250
"""How many jobs that never block all workers together run before other tasks have their turn."""

MAX_HIRED: Final = 8
"""How many workers are hired at most for jobs that are granted while no worker takes a first step.

Of a hundred jobs that block, 8, 16, 32 and 44 then start in four passes of Trio's scheduler."""

LINGERS: Final = 2
"""How many passes of Trio's scheduler the last worker stays: one pass may end before all tasks that
a job has woken have had their turn."""

_NO_VALUE: Final = object()  # in place of a value: the body did not return


@final
class WorkerPool:
    """The workers of one `Lanes`: hired when jobs are granted slots, gone when no job is left.

    Args:
      running: the table of this Trio run: {task: the job it runs}.
      spawn: starts a task in the lanes' nursery.
      blocked: is called when the body of a job that has a limit to its time has blocked.
      returned: is called when the body of a job has returned a value.
      raised: is called with the error that left the body of a job and its scope; returns the
        error that leaves the worker.
      interrupted: is called when its scope has ended the body of a job; returns the error that
        leaves the worker.
    """

    def __init__(
        self,
        running: dict[object, AnyJob],
        spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], None],
        blocked: Callable[[AnyJob], None],
        returned: Callable[[AnyJob, Any], None],
        raised: Callable[[AnyJob, BaseException], BaseException | None],
        interrupted: Callable[[AnyJob], BaseException | None],
    ) -> None:
        self._running: Final = running
        self._spawn: Final = spawn
        self._blocked: Final = blocked
        self._returned: Final = returned
        self._raised: Final = raised
        self._interrupted: Final = interrupted
        self.granted: Final[deque[AnyJob]] = deque()
        """Jobs that have their slots, and no worker yet."""
        self.ready = 0  # workers that will come for a granted job
        self._steps = 0  # jobs that never blocked, since a worker last let others have their turn
        self.stepping = False  # whether a worker takes a first step now, and will come back
        self.wraps = False  # whether a lane or a session has a `wrap`
        self.unused_scopes: Final[list[trio.CancelScope]] = []
        """Scopes of jobs that ran under their worker's scope, for jobs that are submitted later."""
        self._fewest = sys.maxsize  # references to a task to which no job has left a reference

    def hire(self) -> None:
        """Start one more worker."""
        self.ready += 1
        self._spawn(self._work)

    def _leave(self) -> None:
        """A worker will not come back for granted jobs: hire up to two workers in its place.

        Hire none while other tasks are due for their turn and another worker waits for that.
        """
        self.stepping = False
        self.ready -= 1
        if self._steps < JOBS_PER_PASS or not self.ready:
            for _ in range(2):
                if self.ready < len(self.granted):
                    self.hire()

    async def _next(self) -> AnyJob | None:
        """Return the next granted job; None if this worker is not needed any more.

        The last ready worker lets other tasks have their turn, and then goes on. It does so even if
        no job is granted: so a task that submits one job after another pays for no new worker.
        """
        idle_passes = 0
        while True:
            if not self.granted:
                idle_passes += 1
            elif self._steps < JOBS_PER_PASS:
                job = self.granted.popleft()
                if job._state is RUNNING:  # else it was reset before its body began
                    self.stepping = True
                    return job
                continue
            self.stepping = False
            if self.ready > 1 or idle_passes > LINGERS:
                return None
            await trio.lowlevel.cancel_shielded_checkpoint()
            self._steps = 0

    def _is_clean(self, task: Task) -> bool:
        """Whether there are as few references to ``task`` as a worker ever had at this place.

        It compares with the fewest of all workers, since one of Trio's instruments may hold a task
        for a while: the reference that it drops must not hide a reference that a job leaves. All
        plain weak references to an object are one object, so the references to weak references are
        counted, too.
        """
        references = sys.getrefcount(task) + sum(map(sys.getrefcount, getweakrefs(task)))
        fewest = self._fewest
        if references < fewest:
            self._fewest = references
        return references == fewest

    @enable_ki_protection
    async def _work(self) -> None:
        task = trio.lowlevel.current_task()
        own_context = task.context
        running, granted, unused_scopes = self._running, self.granted, self.unused_scopes
        is_new = REUSES_TASKS  # whether the references to the task have not been counted yet
        ready = True  # whether this worker counts in self.ready
        job: AnyJob | None = None  # taken, and not yet ended
        value: Any = _NO_VALUE
        error: BaseException | None = None
        try:
            job = await self._next()
            while job is not None:
                assert isinstance(job._scope, trio.CancelScope)
                with job._scope as scope:
                    home, limited = _innermost(task), job._options.limits_run
                    while True:
                        running[task] = job
                        job._task = task
                        if limited:
                            scope.deadline = job._deadline
                        body = wrapped(job, _body) if self.wraps else _body(job._fn, job._args)
                        context = job._context
                        assert context is not None
                        task.context, task.name = context, job.name
                        if is_new:
                            is_new = False
                            self._is_clean(task)
                        try:
                            rest = _Resumed(body, context.run(body.send, None))
                        except StopIteration as stop:
                            value = stop.value
                            self._steps += 1
                        except Exception as exc:
                            error = exc
                            self._steps += 1
                        else:  # it has blocked
                            self._leave()
                            ready = False
                            if limited:
                                self._blocked(job)
                            try:
                                value = await rest
                            except BaseException as exc:
                                if _holds_cancelled(exc):  # then the scope decides whose it is
                                    raise
                                error = exc
                                break
                            del rest  # it may refer to the task
                            if not REUSES_TASKS or job._interruption or not self._is_clean(task):
                                break  # it is spoilt, or the job has left something behind
                            ready = self.stepping = True
                            self.ready += 1
                        if job._interruption or _innermost(task) is not home:
                            break
                        if limited:
                            if scope.cancel_called:
                                break
                            scope.deadline = math.inf
                        del running[task]
                        task.custom_sleep_data = None
                        ended, job = job, None  # an error from here on is no error of its body
                        if error is None:
                            self._returned(ended, value)
                        else:
                            error = self._raised(ended, shortened(error, __file__))
                        del ended
                        value = _NO_VALUE
                        task.context = own_context  # after job_finished, which runs in the job's
                        if error is not None:
                            break
                        if granted and self._steps < JOBS_PER_PASS:
                            job = granted.popleft()
                        else:
                            job = await self._next()
                        if job is None or job._interruption:
                            break
                        limited = job._options.limits_run
                        if not limited and len(unused_scopes) < JOBS_PER_PASS:
                            assert isinstance(job._scope, trio.CancelScope)
                            unused_scopes.append(job._scope)
                        job._scope = scope
                if job is None or task in running:
                    break  # no job is left, or this job has blocked or spoilt the scope
                if job._state is not RUNNING:  # it was reset before its body began
                    job = await self._next()
        except BaseException as exc:
            if error is not None:  # the body has raised, and has left a scope open
                exc.__context__ = error
            error = exc
            value = _NO_VALUE
        if ready:
            self._leave()
        if task.child_nurseries:
            await _end_nurseries(task)
        if job is not None:
            del running[task]
            if error is not None:
                error = self._raised(job, shortened(error, __file__))
            elif value is not _NO_VALUE:
                self._returned(job, value)
            else:
                error = self._interrupted(job)
        job = None  # on Python 3.13 the frames of the error lead back to this one
        if error is not None:
            try:
                raise error
            finally:
                del error  # this frame is in its traceback


REUSES_TASKS: Final = (
    sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
)
"""Whether counts of references can be trusted, so that the task of a job that blocked is reused."""


# The innermost cancel scope of a task, to see whether a job left a scope open. Trio has no public
# name for it. Without the attribute, a scope that a job leaves open without blocking is found only
# when its worker ends.
_innermost = attrgetter("_cancel_status" if hasattr(Task, "_cancel_status") else "name")


@disable_ki_protection
async def _body(fn: Any, args: tuple[Any, ...]) -> Any:
    """The user's function, and the frame in which Ctrl-C may interrupt it."""
    coro = fn(*args)
    if type(coro) is not CoroutineType and not isinstance(coro, Coroutine):
        refuse_like_trio(fn, coro)
    return await coro


def wrapped(job: AnyJob, call: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
    """Return the body of ``job`` inside the ``wrap`` of its lane, inside that of its session.

    ``call(fn, args)`` calls and awaits each of these functions.
    """
    body = partial(call, job._fn, job._args)
    for actor in (job._lane, job._session_lane):
        if actor is not None and actor.wrap is not None:
            body = partial(call, actor.wrap, (job, body))
    return body()


def _holds_cancelled(error: BaseException) -> bool:
    """Whether ``error`` is a `trio.Cancelled`, or a group that holds one."""
    # Not by `split`: it copies a group that holds none, too, and its class may override the method.
    if isinstance(error, BaseExceptionGroup):
        return any(map(_holds_cancelled, error.exceptions))
    return isinstance(error, trio.Cancelled)


async def _end_nurseries(task: Task) -> None:
    """Cancel the nurseries that a job left open in ``task``, and wait until they have no task.

    Trio does the same when a task ends, but does not wait, and raises an error in the nursery of
    that task: here in that of the lanes, which would cancel all jobs.
    """
    nurseries: list[Any] = task.child_nurseries
    for nursery in nurseries:
        nursery.cancel_scope.cancel("its job has ended")
        nursery._closed = True  # else Trio's cleanup of a generator that holds it wakes this task
    if any(nursery.child_tasks for nursery in nurseries):
        trio.lowlevel.add_instrument(_Exits(task, nurseries))
        await trio.lowlevel.wait_task_rescheduled(lambda raise_cancel: Abort.FAILED)
    task._child_nurseries.clear()


@final
class _Exits(Instrument):
    """Wakes ``task`` when no task of ``nurseries`` is left: such a nursery does not."""

    def __init__(self, task: Task, nurseries: list[Any]) -> None:
        self._task: Final = task
        self._nurseries: Final = nurseries

    def task_exited(self, task: Task) -> None:
        if not any(nursery.child_tasks for nursery in self._nurseries):
            trio.lowlevel.remove_instrument(self)
            trio.lowlevel.reschedule(self._task)


def shortened(error: BaseException, module: str) -> BaseException:
    """Return ``error`` without the frames of ``module`` at the head of its traceback."""
    traceback: TracebackType | None = error.__traceback__
    while (
        traceback is not None
        and traceback.tb_next is not None
        and traceback.tb_frame.f_code.co_filename == module
    ):
        traceback = traceback.tb_next
    return BaseException.with_traceback(error, traceback)  # its class may override the method


@final
class _Resumed:
    """Awaits the rest of a coroutine whose first step, which gave ``trap``, was taken before.

    All but the first step goes straight to the coroutine's own methods. `trio` looks through it
    at the coroutine's frames, as through any coroutine, by ``cr_frame`` and ``cr_await``;
    `stackscope` by ``_stackscope_install_glue_``.
    """

    __slots__ = ("_coro", "_trap", "close", "send", "throw")

    def __init__(self, coro: Any, trap: object) -> None:
        self._coro: Any = coro
        self._trap: list[object] = [trap]
        self.send = coro.send
        self.throw = coro.throw
        self.close = coro.close

    def __iter__(self) -> _Resumed:
        return self

    __await__ = __iter__

    def __next__(self) -> object:
        return self._trap.pop() if self._trap else self.send(None)

    @property
    def cr_frame(self) -> Any:
        return self._coro.cr_frame

    @property
    def cr_await(self) -> Any:
        return self._coro.cr_await


def _stackscope_install_glue_() -> None:  # pragma: no cover - not on Python 3.13: see its test
    """Let `stackscope`, which calls this, show the frames of a job that has blocked."""
    from stackscope import unwrap_stackitem

    unwrap_stackitem.register(_Resumed, lambda resumed: resumed._coro)


OWN_CODE.update({WorkerPool._work.__code__, _body.__code__})
