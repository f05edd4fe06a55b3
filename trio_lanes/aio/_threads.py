"""`to_thread`: a blocking function in a thread, and a task that waits until that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from threading import Lock
from typing import ParamSpec, TypeVar

import outcome

from ._guest import ShieldedFuture, recancel

T = TypeVar("T")
P = ParamSpec("P")


async def to_thread(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``fn(*args, **kwargs)`` in a thread, and wait until that call has ended.

    It is `asyncio.to_thread`, but for a cancellation: that leaves its thread behind, and a job
    whose body waited there gives its slot and its place in its session to the next job, while the
    thread works on. This waits for the end of the thread, and so holds both. A call that still
    waits for a thread of the loop's default executor is withdrawn, and never made.

    It may be awaited in any asyncio task, in a body or not. ``fn`` runs in a copy of the present
    context; `current_job` is None there.

    Returns what ``fn`` returns, or raises what it raises. A checkpoint. If the task was cancelled
    meanwhile, a value is dropped and the cancellation is raised; an exception of ``fn`` is raised
    in its place, and the cancellation comes again at a later wait of the task, unless the scope
    that asked for it, such as `asyncio.timeout`, has been left.
    """
    result, cancelled = await _in_thread(partial(copy_context().run, partial(fn, *args, **kwargs)))
    try:
        if result is None:  # it was withdrawn, or its executor was shut down
            raise cancelled or asyncio.CancelledError
        if cancelled is None:
            return result.unwrap()
        if isinstance(result, outcome.Error):  # pragma: no cover - see `ShieldedFuture`
            recancel(cancelled)
            result.unwrap()
        raise cancelled  # pragma: no cover - see `ShieldedFuture`
    finally:
        del result, cancelled  # this frame is in the traceback of the error


async def _in_thread(
    fn: Callable[[], T],
) -> tuple[outcome.Outcome[T] | None, asyncio.CancelledError | None]:
    """Return how ``fn`` ended, if it began, and the cancellation of this task meanwhile."""
    begins = Lock()  # who takes it first decides whether the call is made: the thread, or this task

    def call() -> outcome.Outcome[T] | None:
        # an outcome, since a future cannot hold a StopIteration
        return outcome.capture(fn) if begins.acquire(blocking=False) else None

    def withdraw() -> None:
        if begins.acquire(blocking=False):
            future.cancel()

    ended: ShieldedFuture[bool] = ShieldedFuture(withdraw)
    future = asyncio.get_running_loop().run_in_executor(None, call)
    future.add_done_callback(lambda _: ended.set_result(True))
    cancelled = await ended.wait_through()
    return None if future.cancelled() else future.result(), cancelled
