"""Calls across the border: of Trio's async functions from asyncio, and the other way.

`call` runs an async function of Trio's in the guest run, as a part of the asyncio task that awaits
it: inside the job that this task is inside of, and cancelled when this task is. `Hosted` enters and
leaves a context manager of Trio's for an asyncio task, `in_asyncio` awaits a coroutine of asyncio's
in a Trio task.

A cancellation is an exception of the side that it happens on: `asyncio.CancelledError` becomes the
cancellation of a scope, and `trio.Cancelled` the cancellation of a task. Trio raises again at the
next checkpoint of a cancelled task, asyncio does not. So if a call has a result in spite of its
cancellation, the cancellation comes again (`come_again`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from types import TracebackType
from typing import Any, Final, TypeVar, cast

import outcome
import trio
from trio.lowlevel import Abort

from .._config.errors import JobCancelledError
from .._waiting.current import job_here, jobs_by_task

T = TypeVar("T")


def come_again(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` again soon: its cancellation came too late for what it awaited.

    A scope that has asked for the cancellation, such as `asyncio.timeout`, may be left before that.
    """
    asked = task.cancelling()

    def cancel() -> None:
        if task.cancelling() >= asked and not task.done():
            task.cancel()
            task.uncancel()  # it is the same cancellation

    if asked:
        task.get_loop().call_soon(cancel)


async def wait_for(
    future: asyncio.Future[Any], cancel: Callable[[], object]
) -> asyncio.CancelledError | None:
    """Wait until ``future`` is done, however often this task is cancelled.

    Each cancellation calls ``cancel()``; the last one is returned.
    """
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
            cancel()
    return cancelled


def spawn(fn: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Start a task of Trio's that is inside of the job that this asyncio task is inside of."""
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
    """Await Trio's ``fn(*args, **options)`` in the guest run, as a part of this asyncio task."""
    task = asyncio.current_task()
    assert task is not None
    future: asyncio.Future[outcome.Outcome[T] | None] = task.get_loop().create_future()
    scope = trio.CancelScope()

    async def inside() -> None:
        result: outcome.Outcome[T] | None = None  # it was cancelled
        try:
            with scope:
                result = outcome.Value(await fn(*args, **options))
        except trio.Cancelled:  # the guest run is ending
            pass
        except BaseException as error:
            result = outcome.Error(error)
        future.set_result(result)

    spawn(inside)
    cancelled = await wait_for(future, scope.cancel)
    result = future.result()
    if result is None:
        raise cancelled or asyncio.CancelledError
    if cancelled is not None:
        come_again(task)
    try:
        return result.unwrap()
    finally:
        del result, cancelled  # this frame is in the traceback of the error


async def in_asyncio(coro: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """Await a coroutine of asyncio's in a task of Trio's: as a task of ``loop``.

    The cancellation of the Trio task cancels that task, and waits until it has ended.
    """
    waiting = trio.lowlevel.current_task()
    task = loop.create_task(coro, context=copy_context())
    task.add_done_callback(lambda _: trio.lowlevel.reschedule(waiting))
    raise_cancel: Callable[[], Any] | None = None

    def abort(raise_cancel_: Callable[[], Any]) -> Abort:
        nonlocal raise_cancel
        raise_cancel = raise_cancel_
        task.cancel()
        return Abort.FAILED

    await trio.lowlevel.wait_task_rescheduled(abort)
    if task.cancelled():
        if raise_cancel is not None:
            raise_cancel()
        raise JobCancelledError("its task was cancelled")
    return task.result()


class Hosted(AbstractAsyncContextManager[T]):
    """A context manager of Trio's for an asyncio task: a task of Trio's, its host, is inside it.

    If Trio cancels the block, as a nursery does when a child fails, the asyncio task in the block
    is cancelled, as by `asyncio.TaskGroup`. If that task is cancelled, so is the block of Trio's.
    An exception of the block is raised in the block of Trio's.
    """

    def __init__(self, context: AbstractAsyncContextManager[Any]) -> None:
        self._context: Final = context
        self._scope: Final = trio.CancelScope()
        self._error: BaseException | None = None  # of the asyncio block
        self._interrupted = False  # whether Trio has cancelled the block

    def _made(self, value: Any) -> T:
        """Return what the block is given for ``value`` of the block of Trio's."""
        made: T = value
        return made

    async def __aenter__(self) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[Any] = task
        loop = task.get_loop()
        self._entered: asyncio.Future[T | None] = loop.create_future()
        self._left = trio.Event()
        self._ended: asyncio.Future[BaseException | None] = loop.create_future()
        spawn(self._host)
        cancelled = await wait_for(self._entered, self._scope.cancel)
        if cancelled is not None:
            await self.__aexit__(type(cancelled), cancelled, None)
            raise cancelled
        if self._ended.done():  # it was not entered
            raise self._ended.result() or asyncio.CancelledError
        return cast("T", self._entered.result())

    async def _host(self) -> None:
        error: BaseException | None = None
        try:
            with self._scope:
                async with self._context as value:
                    self._entered.set_result(self._made(value))
                    await self._block()
        except trio.Cancelled:  # the guest run is ending
            pass
        except BaseException as exc:
            error = exc
        self._ended.set_result(error)
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
            self._scope.cancel()
        self._left.set()
        cancelled = await wait_for(self._ended, self._scope.cancel) or cancelled
        if self._interrupted and not self._task.uncancel():
            cancelled = None
        failure = self._ended.result()
        try:
            if failure is not None and failure is not error:
                raise failure
            if failure is not None:
                return False
            if cancelled is not None and cancelled is not error:
                raise cancelled
            return cancelled is None
        finally:
            del self._error, failure, error, cancelled, self
