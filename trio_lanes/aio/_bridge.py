"""Calls across the border: of Trio's async functions from asyncio, and the other way.

* `call` awaits an async function of Trio's in the guest run, as a part of the asyncio task that
  calls it: it is inside of the same job, and is cancelled with that task.
* `Hosted` enters and leaves a context manager of Trio's for an asyncio task.
* `verbs`, `public_verbs` and `blocks` make methods of a class callable from both sides.
* `in_asyncio` awaits a coroutine of asyncio's in a task of Trio's.

Cancellations and errors of Trio's stay on its side of the border. `asyncio.CancelledError` becomes
the cancellation of a scope, and `trio.Cancelled` that of a task, both at once: the search for
deadlocks may look at a wait before its task has its turn. Of an error that leaves a task of Trio's
the cancellations are taken away (`spawn`), and a class of Trio's becomes a `RuntimeError` (`call`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from functools import partial, wraps
from inspect import iscoroutinefunction
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast, final
from weakref import WeakKeyDictionary

import outcome
import trio
from trio.lowlevel import Abort

from .._config.errors import JobCancelledError
from .._config.protected import not_entered, not_iterable
from .._waiting.current import enter_job, job_here, jobs_by_task
from ._guest import (
    ShieldedFuture,
    check_loop,
    enter_guest,
    guest_here,
    in_own_turn,
    leave_guest,
    new_task,
    recancel,
    this_task,
)
from ._kin import kin_here

if TYPE_CHECKING:
    from .._actors.job import AnyJob

T = TypeVar("T")
C = TypeVar("C", bound=type[Any])

Ended = ShieldedFuture[outcome.Outcome[T]]


def spawn(fn: Callable[[], Coroutine[Any, Any, T]]) -> Ended[T]:
    """Await Trio's ``fn()`` in a task of Trio's that is inside of the same job as the caller.

    Such tasks begin in the order of the calls. The cancellation of an asyncio task that awaits the
    result cancels that task.
    """
    guest, table = guest_here(), jobs_by_task()
    assert guest is not None
    kin, caller = kin_here(), asyncio.current_task()
    scope, line = trio.CancelScope(), guest.yet_to_begin
    ended: Ended[T] = ShieldedFuture(scope.cancel)
    line.append(ended)

    async def inside(ended: Ended[T], job: AnyJob | None) -> None:
        task = trio.lowlevel.current_task()
        result: outcome.Outcome[T] | None = None  # it was cancelled, or the guest run is ending
        while line[0] is not ended:  # Trio may take tasks that are ready in reverse
            await trio.lowlevel.cancel_shielded_checkpoint()
        line.popleft()
        if job is not None:
            kin.enter(task, caller, job)
        del job  # it may end before this task
        try:
            with scope:
                result = outcome.Value(await fn())
        except BaseException as error:
            rest = without(trio.Cancelled, error)
            if rest is not None:
                result = outcome.Error(rest)
            del rest
        kin.leave(task)
        ended.set_result(result)
        del result, ended  # this frame is in the traceback of the error

    trio.lowlevel.spawn_system_task(inside, ended, job_here(table), name=fn, context=copy_context())
    return ended


def without(kind: type[BaseException], error: BaseException) -> BaseException | None:
    """Return ``error``, of a group that holds any of ``kind`` the rest; None if that is all."""
    if isinstance(error, BaseExceptionGroup) and not isinstance(error, ExceptionGroup):
        return error.split(kind)[1]
    return None if isinstance(error, kind) else error


async def call(fn: Callable[..., Coroutine[Any, Any, T]], *args: Any, **options: Any) -> T:
    """Await Trio's ``fn(*args, **options)`` in the guest run, for this asyncio task."""
    await enter_guest()  # which lasts until the end of the call: not all that is called has lanes
    try:
        result = await spawn(partial(fn, *args, **options)).result_shielded()
    finally:
        await leave_guest()
    if result is None:  # pragma: no cover - a closed loop, in a process of its own
        raise asyncio.CancelledError
    try:
        return result.unwrap()
    except Exception as error:
        if type(error).__module__ == trio.__name__:
            raise RuntimeError(str(error)) from error
        raise
    finally:
        del result  # this frame is in the traceback of the error


def verbs(*names: str) -> Callable[[C], C]:
    """Decorate a class: its async methods ``names`` are to be called from both sides.

    Type checkers see the methods that the class inherits, which have the same signatures.
    """

    def decorate(cls: C) -> C:
        for name in names:
            setattr(cls, name, on_both_sides(getattr(cls, name)))
        return cls

    return decorate


def public_verbs(cls: C) -> C:
    """Decorate a class: each public async method is to be called from both sides, as by `verbs`."""
    names = (name for name in dir(cls) if not name.startswith("_"))
    return verbs(*(name for name in names if iscoroutinefunction(getattr(cls, name))))(cls)


def blocks(*names: str) -> Callable[[C], C]:
    """Decorate a class: its methods ``names``, which return async context managers of Trio's,
    return a `HostedInside` where they are called outside of Trio's tasks."""

    def decorate(cls: C) -> C:
        for name in names:
            setattr(cls, name, _block(getattr(cls, name)))
        return cls

    return decorate


def _block(of_trio: Any) -> Any:
    @wraps(of_trio)
    def block(*args: Any, **options: Any) -> Any:
        context = of_trio(*args, **options)
        return context if trio.lowlevel.in_trio_task() else HostedInside(context)

    return block


def on_both_sides(of_trio: Any, of_asyncio: Any = None) -> Any:
    """Return an async function that is ``of_trio`` in a task of Trio's, else ``of_asyncio``: that
    is by default a `call` of it."""
    of_asyncio = of_asyncio or partial(call, of_trio)

    @wraps(of_trio)
    async def verb(*args: Any, **options: Any) -> Any:
        if trio.lowlevel.in_trio_task():
            return await of_trio(*args, **options)
        check_loop()
        return await of_asyncio(*args, **options)

    verb.of_trio = of_trio  # type: ignore[attr-defined]
    return verb


@final
class Gate:
    """Where a task of Trio's waits for an end in asyncio, and acts at once when it is cancelled.

    A task of Trio's learns of its cancellation in its next turn. By then the asyncio tasks for
    which it stands could have been told what follows from the cancellation, and not of it itself.
    So ``cancelled()`` is called in an abort function of Trio's, and cancels tasks of asyncio's
    there; what their waits do then, they do by `Scheduler.act_in_abort`.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._waiting: trio.lowlevel.Task | None = None

    def open(self) -> None:
        """Let the task go on."""
        self.is_open = True
        if self._waiting is not None:
            trio.lowlevel.reschedule(self._waiting)
            self._waiting = None

    async def wait(self, cancelled: Callable[[], object] = lambda: None) -> None:
        """Wait until it is open. The cancellation of this wait calls ``cancelled()``."""
        if self.is_open:
            await trio.lowlevel.checkpoint()
            return

        def abort(raise_cancel: object) -> Abort:
            self._waiting = None
            cancelled()
            return Abort.SUCCEEDED

        with trio.CancelScope():  # a cancel status of its own: see `open_lanes`
            self._waiting = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(abort)


_blocks: Final[WeakKeyDictionary[asyncio.Task[Any], list[Hosted[Any]]]] = WeakKeyDictionary()
"""The blocks in which a task is, the outermost first. Each has a host of its own, so that what
cancels one of them has to cancel those inside of it as well, at once, as Trio does."""


class Hosted(AbstractAsyncContextManager[T]):
    """A context manager of Trio's for an asyncio task: a task of Trio's, its host, is inside it.

    If Trio cancels the block, as a nursery does when a child fails, the asyncio task in the block
    is cancelled, as by `asyncio.TaskGroup`. If that task is cancelled, so is the host. An exception
    of the block is raised in the host. The guest run lasts as long as the block at least.
    """

    _task: asyncio.Task[Any]
    _entered: ShieldedFuture[T]
    _ended: Ended[None]

    def __init__(
        self, context: AbstractAsyncContextManager[Any], made: Callable[[Any], T] = lambda it: it
    ) -> None:
        """The block is given ``made`` of what ``context`` gives."""
        self._context: Final = context
        self._made: Final = made
        self._left: Final = Gate()  # open when the asyncio block was left
        self._leaves = False  # whether the asyncio task is on its way out of it
        self._error: BaseException | None = None  # that left it
        self._interrupted = False  # whether Trio has cancelled it

    __aiter__ = not_iterable

    if not TYPE_CHECKING:  # where it would allow each name
        __getattr__ = not_entered

    async def __aenter__(self) -> T:
        await enter_guest()
        self._task = this_task()
        self._ended = spawn(self._host)
        self._entered = ShieldedFuture(self._ended.abort)
        cancelled = await self._entered.wait_through()
        if self._ended.done():  # it was not entered
            await leave_guest()
            result = self._ended.result()
            if isinstance(result, outcome.Error):
                raise result.error
            raise cancelled or asyncio.CancelledError
        if cancelled is not None:  # pragma: no cover - see `ShieldedFuture`
            await self.__aexit__(type(cancelled), cancelled, None)
            raise cancelled
        return cast("T", self._entered.result())

    async def _host(self) -> None:
        try:
            async with self._context as value:
                inside = _blocks.setdefault(self._task, [])
                inside.append(self)
                try:
                    self._entered.set_result(self._made(value))
                    await self._block()
                finally:
                    inside.remove(self)
        finally:
            if not self._entered.done():
                self._entered.set_result(None)

    async def _block(self) -> None:
        """Wait for the end of the asyncio block."""
        try:
            await self._left.wait(self._interrupt)
        except trio.Cancelled:
            if not self._left.is_open:
                self._interrupt()
                guest = guest_here()
                if guest is None or not guest.over.is_set():  # else it is never left
                    with trio.CancelScope(shield=True):
                        await self._left.wait()
            if self._error is None:
                raise
        if self._error is not None:
            raise self._error

    def _interrupt(self) -> None:
        """Trio cancels the block: so is the asyncio task, unless it does that and may be leaving.

        Then it has until the next turn of its host.
        """
        if not (self._leaves or self._interrupted or asyncio.current_task() is self._task):
            self._interrupted = True
            self._task.cancel()
            inside = _blocks[self._task]
            for block in inside[inside.index(self) + 1 :]:
                block._leaves = True
                block._ended.abort()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._leaves = True
        cancelled = error if isinstance(error, asyncio.CancelledError) else None
        if cancelled is None:
            self._error = error
        elif not self._interrupted:
            self._ended.abort()
        self._left.open()
        cancelled = await self._ended.wait_through() or cancelled
        await leave_guest()
        if self._interrupted and not self._task.uncancel():
            cancelled = None
        result = self._ended.result()
        try:
            if isinstance(error, SystemExit | KeyboardInterrupt):  # as by `asyncio.TaskGroup`
                return False
            if isinstance(result, outcome.Error):
                if result.error is error:
                    return False
                if cancelled is not None:  # pragma: no cover - see `ShieldedFuture`
                    recancel(cancelled)
                raise result.error
            if cancelled is not None and cancelled is not error:
                raise cancelled
            return cancelled is None and result is not None
        finally:
            self._error = None
            # this frame is in the traceback of the error
            del self._ended, result, error, cancelled


@final
class HostedInside(Hosted[T]):
    """A context manager of lanes that are open: it is entered in their loop only."""

    async def __aenter__(self) -> T:
        check_loop()
        return await super().__aenter__()


async def in_asyncio(fn: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Await ``fn(*args)``, of asyncio's, in a task of Trio's: as a task of the loop, in the same
    job.

    The cancellation of the Trio task cancels that task, and is over when that task has ended.
    """
    waiting, loop = trio.lowlevel.current_task(), asyncio.get_running_loop()
    table, kin = jobs_by_task(), kin_here()
    job, context = job_here(table), copy_context()
    returned: list[T] = []  # also by a task that was cancelled while it returned, which drops it
    begins = job is not None and job not in table
    if job is not None:
        context.run(enter_job, job)

    async def outside() -> T:
        await in_own_turn(loop)
        returned.append(await fn(*args))
        return returned[0]

    task = new_task(loop, outside(), context, lambda _: trio.lowlevel.reschedule(waiting))
    if job is not None:
        table[job] = job
        kin.awaited_in_trio[task] = waiting
    raise_cancel: Callable[[], NoReturn] | None = None

    def abort(raise_cancel_: Callable[[], NoReturn]) -> Abort:
        nonlocal raise_cancel
        raise_cancel = raise_cancel_
        task.cancel()
        return Abort.FAILED

    await trio.lowlevel.wait_task_rescheduled(abort)
    kin.awaited_in_trio.pop(task, None)
    if begins:
        del table[job]
    if returned:
        return returned[0]
    error = None if task.cancelled() else task.exception()
    if error is not None:
        error = without(asyncio.CancelledError, error)
    try:
        if isinstance(error, SystemExit | KeyboardInterrupt):
            # It has left the loop; if it left a second task, it would break off the loop's shutdown
            raise JobCancelledError(f"its task raised {type(error).__name__}") from error
        if error is not None:
            raise error
        if raise_cancel is not None:
            raise_cancel()
        raise JobCancelledError("its task was cancelled")
    finally:
        del error  # this frame is in its traceback


@final
class FromAsyncio(AsyncIterator[T]):
    """An async iterable of asyncio's as an async iterator of Trio's."""

    def __init__(self, items: AsyncIterable[T]) -> None:
        self._items: Final = aiter(items)

    async def __anext__(self) -> T:
        return await in_asyncio(anext, self._items)

    async def aclose(self) -> None:
        aclose = getattr(self._items, "aclose", None)
        if aclose is not None:
            await in_asyncio(aclose)
