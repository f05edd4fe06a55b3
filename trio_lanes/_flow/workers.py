"""Where a job runs: the workers, which are the only tasks that call users' functions.

A task and a cancel scope for each job would be simple, and cost more than all the rest of a job's
way through its lanes. Most of that buys nothing for a job that never blocks. So a worker takes the
first step of a job, up to the first time that it blocks, without knowing which kind it is:

* A job that ends in its first step never blocked. The worker goes on with the next one: same
  task, same scope, no pass of Trio's scheduler.
* A job that blocks has, from then on, the worker to itself: its task, its scope, its context. What
  it leaves behind (a lock, an open cancel scope, an abandoned async generator) dies with that
  task and is found, if at all, before the job settles.

The first step is taken by ``context.run``, and the context is then that of the task, too: code that
looks at ``current_task().context`` finds the context that it runs in. Trio enters it at every later
step; a job that never blocked gives the task its former context back. A job that spoilt the scope
of its worker (it was cancelled, is past its deadline, or left a scope of its own open) keeps that
worker as if it had blocked.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from operator import attrgetter
from types import CoroutineType, TracebackType
from typing import Any, Final, Protocol, final

import trio
from trio.lowlevel import Task, disable_ki_protection, enable_ki_protection

from .._config.check import refuse_like_trio
from .._waiting.current import JobsByTask
from .._actors.job import OWN_CODE, AnyJob
from .._actors.state import RUNNING

JOBS_PER_PASS: Final = 250
"""How many jobs that never block all workers together run before other tasks have their turn."""

LINGERS: Final = 2
"""How many passes of Trio's scheduler the last worker stays: the first ends before those that a job
has woken have all had their turn."""

_NO_VALUE: Final = object()  # what a body returned that did not return


class Foreman(Protocol):
    """Who is told how bodies end."""

    def returned(self, job: AnyJob, value: Any) -> None:
        """The body of ``job`` returned ``value``."""

    def raised(self, job: AnyJob, error: BaseException) -> BaseException | None:
        """``error`` left the body of ``job``, and its scope; returns what leaves the worker."""

    def interrupted(self, job: AnyJob) -> BaseException | None:
        """The scope of ``job`` ended its body; returns what leaves the worker."""


@final
class Crew:
    """The workers of one `Lanes`: hired when a job is granted its slots, gone when none is."""

    def __init__(
        self,
        foreman: Foreman,
        running: JobsByTask,
        spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], None],
    ) -> None:
        self._foreman: Final = foreman
        self._running: Final = running
        self._spawn: Final = spawn
        self._granted: Final[deque[AnyJob]] = deque()  # they have their slots but no worker yet
        self._ready = 0  # workers that will come for a granted job
        self._steps = 0  # jobs that never blocked, since a worker last let others have their turn
        self._stepping = False  # whether a worker takes a first step now, and will come back

    def grant(self, job: AnyJob) -> None:
        """Have a worker run the body of ``job``, which has its slots now."""
        self._granted.append(job)
        if not self._stepping and self._ready < len(self._granted):
            self._hire()

    def _hire(self) -> None:
        self._ready += 1
        self._spawn(self._work)

    def _leave(self) -> None:
        """A worker will not come back for granted jobs.

        If there are any, two are hired in its place: with each job that blocks the number of ready
        workers doubles, while jobs that never block keep one worker and need no other.
        """
        self._stepping = False
        self._ready -= 1
        for _ in range(2):
            if self._ready < len(self._granted):
                self._hire()

    async def _lingers(self) -> bool:
        """Whether more has been granted while the last worker let other tasks have their turn.

        One who waits for the job that has just ended, and then submits the next, is spared the
        making of a task and its scope.
        """
        self._stepping = False
        for _ in range(LINGERS):
            if self._ready > 1:
                return False
            await trio.lowlevel.cancel_shielded_checkpoint()
            self._steps = 0
            if self._granted:
                return True
        return False

    @enable_ki_protection
    async def _work(self) -> None:
        task = trio.lowlevel.current_task()
        own_context = task.context
        running = self._running
        job: AnyJob | None = None  # taken, and not yet ended
        ended: AnyJob | None = None
        ready = True  # whether this worker counts in self._ready
        value: Any = _NO_VALUE
        error: BaseException | None = None
        try:
            with trio.CancelScope() as scope:
                home = _innermost(task)
                while self._granted or await self._lingers():
                    if self._steps >= JOBS_PER_PASS:
                        if self._ready > 1:  # the last one goes on, and is enough so far
                            ready = self._stepping = False
                            self._ready -= 1
                            break
                        self._stepping = False
                        await trio.lowlevel.cancel_shielded_checkpoint()
                        self._steps = 0
                        continue
                    self._stepping = True
                    job = self._granted.popleft()
                    if job._state is not RUNNING:  # reset before it began: it is never called
                        job = None
                        continue
                    context = job._context
                    assert context is not None
                    running[task] = job
                    job._task = task
                    job._scope = scope
                    touched = job._interruption or job._options.limits_run
                    if touched:
                        _prepare(job, scope)
                    lane, session = job._lane, job._session_lane
                    if lane.wrap is None and (session is None or session.wrap is None):
                        body = _body(job._fn, job._args)
                    else:
                        body = _wrapped(job)
                    task.context = context
                    try:
                        trap = context.run(body.send, None)
                    except StopIteration as stop:
                        value = stop.value
                    except Exception as exc:
                        error = exc
                    else:  # it has blocked
                        self._leave()
                        ready = False
                        task.name = job.name
                        value = await _Resumed(body, trap)
                        break
                    self._steps += 1
                    if touched and not (job._interruption or scope.cancel_called):
                        scope.deadline = math.inf  # which was all that had touched it
                        touched = False
                    if touched or job._interruption or _innermost(task) is not home:
                        if error is not None:
                            raise error
                        break
                    del running[task]
                    ended, job = job, None  # what is raised from here on is not its body's
                    if error is None:
                        self._foreman.returned(ended, value)
                    else:
                        error = self._foreman.raised(ended, _shortened(error))
                    ended, value = None, _NO_VALUE
                    task.context = own_context  # after job_finished, which is told in the job's
                    if error is not None:
                        raise error
        except BaseException as exc:
            error = exc
            value = _NO_VALUE
        if ready:
            self._leave()
        if job is not None:
            del running[task]
            if error is not None:
                error = self._foreman.raised(job, _shortened(error))
            elif value is not _NO_VALUE:
                self._foreman.returned(job, value)
            else:
                error = self._foreman.interrupted(job)
        job = None  # on Python 3.13 the frames of the error lead back to this one
        if error is not None:
            try:
                raise error
            finally:
                del error  # this frame is in its traceback


def _prepare(job: AnyJob, scope: trio.CancelScope) -> None:
    """Tell ``scope`` what is known of ``job`` before its first step."""
    scope.deadline = job._deadline
    if job._interruption is not None:
        scope.cancel(job._interruption.reason)


# The innermost cancel scope of a task, to see whether a job left one open. Trio has no public way
# to ask for it; should the attribute go away, then what a job leaves open that never blocks is
# found only when its worker ends.
_innermost = attrgetter("_cancel_status" if hasattr(Task, "_cancel_status") else "name")


@disable_ki_protection
async def _body(fn: Any, args: tuple[Any, ...]) -> Any:
    """The user's function, and the frame in which Ctrl-C may interrupt it."""
    coro = fn(*args)
    if type(coro) is not CoroutineType and not isinstance(coro, Coroutine):
        refuse_like_trio(fn, coro)
    return await coro


def _wrapped(job: AnyJob) -> Coroutine[Any, Any, Any]:
    """The body of ``job`` in what its lane and, around that, its session wrap around it."""
    body: Callable[[], Coroutine[Any, Any, Any]] = partial(_body, job._fn, job._args)
    for actor in job._actors:
        if actor is not None and actor.wrap is not None:
            body = partial(_body, actor.wrap, (job, body))
    return body()


def _shortened(error: BaseException) -> BaseException:
    """``error`` without the frames of this module at the head of its traceback."""
    traceback: TracebackType | None = error.__traceback__
    while (
        traceback is not None
        and traceback.tb_next is not None
        and traceback.tb_frame.f_code.co_filename == __file__
    ):
        traceback = traceback.tb_next
    return BaseException.with_traceback(error, traceback)  # it may have another of its own


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


OWN_CODE.update({Crew._work.__code__, _body.__code__})
