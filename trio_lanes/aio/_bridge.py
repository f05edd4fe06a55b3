"""Calls across the border: of Trio's async functions from asyncio, and the other way.

* `call` awaits an async function of Trio's in the guest run, as a part of the asyncio task that
  calls it: it is inside of the same job, and is cancelled with that task.
* `Hosted` enters and leaves a context manager of Trio's for an asyncio task.
* `verbs` makes the async methods of a class callable from both sides, by `call`.
* `in_asyncio` awaits a coroutine of asyncio's in a task of Trio's.

A cancellation stays on its side of the border: `asyncio.CancelledError` becomes the cancellation
of a scope, and `trio.Cancelled` that of a task. Trio raises again at each checkpoint of a cancelled
task, asyncio raises once. So if a call has a result in spite of its cancellation, the task is
cancelled again (`come_again`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast, final

import outcome
import trio
from trio.lowlevel import Abort

from .._config.errors import JobCancelledError
from .._config.protected import not_entered, not_iterable
from .._waiting.current import enter_job, job_here, jobs_by_task
from ._guest import come_again, enter_guest, guest_here, this_task, wait_for

T = TypeVar("T")
C = TypeVar("C", bound=type[Any])

calls: Final[dict[asyncio.Task[Any], trio.CancelScope]] = {}
"""{asyncio task: the scope of its `call`}. It is cancelled with the body of a job, at once: the
search for deadlocks may look at that wait before the task has its turn."""


def spawn(fn: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Start a task of Trio's that is inside of the same job as the caller, an asyncio task."""
    table = jobs_by_task()
    job = job_here(table)

    async def inside() -> None:
        task = trio.lowlevel.current_task()
        if job is not None:
            table[task] = job
        try:
            await fn()
        finally:
            table.pop(task, None)

    trio.lowlevel.spawn_system_task(inside, name=fn, context=copy_context())


async def call(fn: Callable[..., Coroutine[Any, Any, T]], *args: Any, **options: Any) -> T:
    """Await Trio's ``fn(*args, **options)`` in the guest run, for this asyncio task."""
    if guest_here() is None:  # lanes whose block was left answer, too
        guest = await enter_guest()
        try:
            return await call(fn, *args, **options)
        finally:
            await guest.leave()
    task = this_task()
    future: asyncio.Future[outcome.Outcome[T] | None] = task.get_loop().create_future()
    scope = trio.CancelScope()

    async def inside() -> None:
        result: outcome.Outcome[T] | None = None  # it was cancelled
        try:
            with scope:
                result = outcome.Value(await fn(*args, **options))
        except trio.Cancelled:  # pragma: no cover - a closed loop, in a process of its own
            pass  # the guest run is ending
        except BaseException as error:
            result = outcome.Error(error)
        future.set_result(result)
        del result  # this frame is in the traceback of the error

    spawn(inside)
    calls[task] = scope
    try:
        cancelled = await wait_for(future, scope.cancel)
    finally:
        del calls[task]
    result = future.result()
    if result is None:
        raise cancelled or asyncio.CancelledError
    if cancelled is not None:
        come_again(task)
    try:
        return result.unwrap()
    finally:
        del result, cancelled  # this frame is in the traceback of the error


def verbs(*names: str, **of_asyncio: Callable[..., Any]) -> Callable[[C], C]:
    """Decorate a class: its async methods of Trio's are to be called from both sides.

    Methods ``names`` are awaited by `call` then; for others, a function of asyncio's is given. Type
    checkers see the methods that the class inherits, which have the same signatures.
    """

    def decorate(cls: C) -> C:
        for name in (*names, *of_asyncio):
            setattr(cls, name, _on_both_sides(getattr(cls, name), of_asyncio.get(name)))
        return cls

    return decorate


def _on_both_sides(method: Any, of_asyncio: Callable[..., Any] | None) -> Any:
    of_asyncio = of_asyncio or partial(call, method)

    @wraps(method)
    async def verb(self: Any, *args: Any, **options: Any) -> Any:
        if trio.lowlevel.in_trio_task():
            return await method(self, *args, **options)
        self._check_thread()
        return await of_asyncio(self, *args, **options)

    return verb


class Hosted(AbstractAsyncContextManager[T]):
    """A context manager of Trio's for an asyncio task: a task of Trio's, its host, is inside it.

    If Trio cancels the block, as a nursery does when a child fails, the asyncio task in the block
    is cancelled, as by `asyncio.TaskGroup`. If that task is cancelled, so is the host. An exception
    of the block is raised in the host.
    """

    def __init__(self, context: AbstractAsyncContextManager[Any]) -> None:
        self._context: Final = context
        self._scope: Final = trio.CancelScope()
        self._left: Final = trio.Event()  # the asyncio block
        self._error: BaseException | None = None  # that left it
        self._interrupted = False  # whether Trio has cancelled it

    __aiter__ = not_iterable

    if not TYPE_CHECKING:  # where it would allow each name
        __getattr__ = not_entered

    def cancel(self) -> None:
        """Cancel the block of Trio's."""
        self._scope.cancel()

    def made(self, value: Any) -> T:
        """Return what the block is given in the place of ``value``."""
        return cast("T", value)

    async def __aenter__(self) -> T:
        self._task = this_task()
        self._entered: asyncio.Future[T | None] = self._task.get_loop().create_future()
        self._ended: asyncio.Future[BaseException | None] = self._task.get_loop().create_future()
        spawn(self._host)
        cancelled = await wait_for(self._entered, self.cancel)
        # Python 3.11 does not trace what a task does after its cancellation
        if cancelled is not None and not self._ended.done():  # pragma: no cover - see above
            await self.__aexit__(type(cancelled), cancelled, None)
            raise cancelled
        if self._ended.done():  # it was not entered
            raise self._ended.result() or cancelled or asyncio.CancelledError
        return cast("T", self._entered.result())

    async def _host(self) -> None:
        error: BaseException | None = None
        try:
            with self._scope:
                async with self._context as value:
                    self._entered.set_result(self.made(value))
                    await self._block()
        except trio.Cancelled:  # pragma: no cover - a closed loop, in a process of its own
            pass  # the guest run is ending
        except BaseException as exc:
            error = exc
        self._ended.set_result(error)
        del error  # this frame is in its traceback
        if not self._entered.done():
            self._entered.set_result(None)

    async def _block(self) -> None:
        """Wait for the end of the asyncio block."""
        try:
            await self._left.wait()
        except trio.Cancelled:
            if not self._left.is_set():
                self._interrupted = True
                self._task.cancel()
                guest = guest_here()
                if guest is None or not guest.over.is_set():  # else it is never left
                    with trio.CancelScope(shield=True):
                        await self._left.wait()
            if self._error is None:
                raise
        if self._error is not None:
            raise self._error

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        cancelled = error if isinstance(error, asyncio.CancelledError) else None
        if cancelled is None:
            self._error = error
        elif not self._interrupted:
            self.cancel()
        self._left.set()
        cancelled = await wait_for(self._ended, self.cancel) or cancelled
        if self._interrupted and not self._task.uncancel():
            cancelled = None
        failure = self._ended.result()
        try:
            if isinstance(error, SystemExit | KeyboardInterrupt):  # as by `asyncio.TaskGroup`
                return False
            if failure is not None:
                if failure is error:
                    return False
                if cancelled is not None:
                    come_again(this_task())
                raise failure
            if cancelled is not None and cancelled is not error:
                raise cancelled
            return cancelled is None
        finally:
            self._error = None
            # this frame is in the traceback of the error
            del self._ended, failure, error, cancelled


class HostedRun(Hosted[T]):
    """A `Hosted` that lasts as long as the guest run does at least."""

    async def __aenter__(self) -> T:
        guest = await enter_guest()
        try:
            return await super().__aenter__()
        except BaseException:
            await guest.leave()
            raise

    async def __aexit__(self, *error: Any) -> bool:
        try:
            return await super().__aexit__(*error)
        finally:
            guest = guest_here()
            if guest is not None:  # else the loop is being closed
                await guest.leave()


def cancel(task: asyncio.Task[Any], reason: str | None = None) -> None:
    """Cancel ``task``, and at once what it awaits in the guest run."""
    task.cancel(reason)
    if (scope := calls.get(task)) is not None:
        scope.cancel()


async def in_asyncio(coro: Coroutine[Any, Any, T]) -> T:
    """Await ``coro``, of asyncio's, in a task of Trio's: as a task of the loop, in the same job.

    The cancellation of the Trio task cancels that task, and is over when that task has ended.
    """
    waiting = trio.lowlevel.current_task()
    table = jobs_by_task()
    job, context = job_here(table), copy_context()
    begins = job is not None and job not in table
    if job is not None:
        context.run(enter_job, job)
        table[job] = job
    task = asyncio.get_running_loop().create_task(coro, context=context)
    task.add_done_callback(lambda _: trio.lowlevel.reschedule(waiting))
    raise_cancel: Callable[[], NoReturn] | None = None

    def abort(raise_cancel_: Callable[[], NoReturn]) -> Abort:
        nonlocal raise_cancel
        raise_cancel = raise_cancel_
        cancel(task)
        return Abort.FAILED

    await trio.lowlevel.wait_task_rescheduled(abort)
    if begins:
        del table[job]
    if task.cancelled():
        if raise_cancel is not None:
            raise_cancel()
        raise JobCancelledError("its task was cancelled")
    return task.result()


@final
class FromAsyncio(AsyncIterator[T]):
    """An async iterable of asyncio's as an async iterator of Trio's."""

    def __init__(self, items: AsyncIterable[T]) -> None:
        self._items: Final = aiter(items)

    async def __anext__(self) -> T:
        return await in_asyncio(_next_of(self._items))

    async def aclose(self) -> None:
        aclose = getattr(self._items, "aclose", None)
        if aclose is not None:
            await in_asyncio(aclose())


async def _next_of(items: AsyncIterator[T]) -> T:
    return await anext(items)
