"""Running tools: all at once, as far as they may, and heard in order.

Each call runs in a task of its own, under a cancel scope of its own, in one nursery that belongs
to the `async with` block; ``_tool_order`` decides which one is next and what is read next. What
changes is changed synchronously: a call ends, and in the same step its result is there, its permit
is free and given to the next. A call that waits has no task yet.

A call leaves its state once, however many things happen to it. What its function returned is its
result, also after it was cancelled; what it raised is its error, also besides that. Only what is
no ``Exception`` goes on, and leaves the block as it would leave a nursery.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Self, final

import attrs
import trio
from outcome import Error
from trio.lowlevel import Abort, Task, disable_ki_protection, enable_ki_protection

from .calls import Emit, ToolCall, ToolResult
from .order import Kind, Outbox, Permits


@final
@attrs.frozen
class ToolEvent:
    """Something that a tool said, as it is read."""

    sequence_number: int
    """Counts what has been read from this run, from 0 and without a gap."""
    output_index: int
    """Which call it was, counted from 0."""
    item_id: str
    """The id of that call."""
    kind: Kind
    """``"output"``, any number of times; then once ``"result"``, ``"error"`` or ``"cancelled"``."""
    data: Any
    """What was emitted or returned, the exception that was raised, or the reason of the
    cancellation."""
    final: bool
    """Whether the outputs of this call are part of the answer itself."""


def run_tools(
    calls: Iterable[ToolCall],
    *,
    limit: int | float = math.inf,
    order: Literal["call", "completion"] = "call",
    buffer: int | float = 64,
) -> AbstractAsyncContextManager[ToolRun]:
    """Run tools at the same time, and hear them in order.

    ::

        async with run_tools(calls, limit=4) as run:
            async for event in run:
                show(event)
        print(run.results)

    Each call ends with one event and one result. One that fails does not stop the others. Leaving
    the block cancels the calls that have not ended, each of which then has a ``cancelled`` result,
    and waits for their functions. As with a nursery, entering is not a checkpoint, and leaving
    always lets other tasks run.

    Args:
      calls: the calls; each has an id of its own.
      limit: how many run at once. A free permit goes to the earliest call that does not wait for
        one of its ``serial_group``.
      order: what is heard when. With ``"call"``, one call at a time, in call order: the first
        that has not ended is heard live, what later ones say waits. With ``"completion"``,
        whatever was said first.
      buffer: how many outputs may wait to be read, of each call, or with ``"completion"`` of all;
        0: none. A tool that emits more waits. How a call ends is always kept.

    Raises:
      TypeError, ValueError: at the call, for a bad value, or for two calls with the same id.
    """
    calls = tuple(calls)
    ids: set[str] = set()
    for call in calls:
        if not isinstance(call, ToolCall):
            raise TypeError(f"calls must be ToolCall objects, not {call!r}")
        if call.id in ids:
            raise ValueError(f"two calls have the id {call.id!r}")
        ids.add(call.id)
    if order not in ("call", "completion"):
        raise ValueError(f"order must be 'call' or 'completion', not {order!r}")
    _check_count("limit", limit, at_least=1)
    _check_count("buffer", buffer, at_least=0)
    return _Opened(ToolRun(calls, limit, order == "call", buffer))


def _check_count(field: str, value: object, *, at_least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field} must be a whole number, not {value!r}")
    if value != math.inf and not isinstance(value, int):
        raise ValueError(f"{field} must be a whole number or math.inf, not {value!r}")
    if value < at_least:
        raise ValueError(f"{field} must be at least {at_least}, got {value!r}")


@final
class ToolRun:
    """Calls that run; only `run_tools` makes one. Iterate over it, in one task, to hear them."""

    def __init__(
        self, calls: tuple[ToolCall, ...], limit: float, by_call: bool, buffer: float
    ) -> None:
        self._calls: Final = calls
        self._numbers: Final = {call.id: number for number, call in enumerate(calls)}
        self._results: Final[list[ToolResult | None]] = [None] * len(calls)
        self._permits: Final = Permits([call.serial_group for call in calls], limit)
        self._outbox: Final = Outbox(len(calls), by_call=by_call, buffer=buffer)
        self._scopes: Final[dict[int, trio.CancelScope]] = {}  # {number of a call: while it runs}
        self._reasons: Final[dict[int, str | None]] = {}  # {number of a call: why it is cancelled}
        self._read = 0
        self._reader: Task | None = None
        self._start: Callable[[int], None] | None = None  # None: nothing starts any more

    def __repr__(self) -> str:
        waiting, running = self._permits.counts
        return (
            f"<trio_lanes.agents.ToolRun at {id(self):#x}, {waiting} waiting, {running} running, "
            f"{len(self._calls) - waiting - running} ended>"
        )

    @property
    def results(self) -> list[ToolResult]:
        """The results of the calls that have ended, in call order, whatever ``order`` is.

        A new list. When all events were read, or the block was left: one for each call.
        """
        return [result for result in self._results if result is not None]

    @enable_ki_protection
    def cancel(self, id: str, reason: str | None = None) -> bool:
        """Cancel one call; False if it has ended. Not a checkpoint.

        A call that waits never starts. One that runs is cancelled, and keeps its permit and its
        place in its serial group until it has ended: with a result, should it return one.

        Raises:
          KeyError: if there is no such call.
        """
        number = self._numbers[id]
        if self._results[number] is not None:
            return False
        self._reasons.setdefault(number, reason)
        self._cancel(number)
        return True

    def __aiter__(self) -> Self:
        return self

    @enable_ki_protection
    async def __anext__(self) -> ToolEvent:
        """The next event. A checkpoint; if it is cancelled, the event is still the next one.

        Raises:
          StopAsyncIteration: when the end of each call has been read.
          trio.ClosedResourceError: if the block was left before that.
          trio.BusyResourceError: if another task waits for the next event.
        """
        await trio.lowlevel.checkpoint()
        while True:
            if self._outbox.finished:
                raise StopAsyncIteration
            if self._start is None:
                raise trio.ClosedResourceError("the block of this run was left")
            if self._outbox.readable:
                break
            if self._reader is not None:
                raise trio.BusyResourceError("another task reads this run")
            await self._wait_readable()
        item, speaker = self._outbox.take()
        if speaker is not None:
            trio.lowlevel.reschedule(speaker)
        call = self._calls[item.call]
        number = self._read
        self._read += 1
        return ToolEvent(number, item.call, call.id, item.kind, item.data, call.final)

    async def _wait_readable(self) -> None:
        def abort(raise_cancel: Callable[[], Any]) -> Abort:
            self._reader = None
            return Abort.SUCCEEDED

        self._reader = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)

    def _wake_reader(self) -> None:
        if self._reader is not None and (self._outbox.readable or self._start is None):
            trio.lowlevel.reschedule(self._reader)
            self._reader = None

    # ---- the calls

    def _open(self, nursery: trio.Nursery) -> None:
        # A call must not inherit the context of the one at whose end it starts.
        context = copy_context()

        def start(number: int) -> None:
            call = self._calls[number]
            self._scopes[number] = trio.CancelScope()
            name = call.name or call.id
            context.run(lambda: nursery.start_soon(self._run, number, name=name))

        self._start = start
        self._start_more()

    def _close(self) -> None:
        """Nothing starts, nobody reads."""
        self._start = None
        for number, result in enumerate(self._results):
            if result is None:
                self._cancel(number)
        for speaker in self._outbox.drop():  # those that are shielded
            trio.lowlevel.reschedule(speaker)
        self._wake_reader()

    def _start_more(self) -> None:
        while self._start is not None and (number := self._permits.next()) is not None:
            self._start(number)

    def _cancel(self, number: int) -> None:
        if self._permits.is_waiting(number):
            self._cancelled(number)
        else:
            self._scopes[number].cancel(self._reasons.get(number))

    @enable_ki_protection
    async def _run(self, number: int) -> None:
        leaves: BaseException | None = None
        returned = False
        value: Any = None
        try:
            with self._scopes[number]:
                await trio.lowlevel.checkpoint_if_cancelled()  # then it is not called at all
                value = await _call(self._calls[number].fn, partial(self._emit, number))
                returned = True
        except BaseException as error:  # also for a scope that the function has left open
            leaves = self._failed(number, error)
        else:
            if returned:
                self._end(number, "result", value)
            else:
                self._cancelled(number)
        if leaves is not None:
            try:
                raise leaves
            finally:
                del leaves  # its traceback holds this frame

    def _failed(self, number: int, error: BaseException) -> BaseException | None:
        """``error`` ended a call, or this whole run; what of it is not the call's own affair."""
        cancelled, failure = _split(error)
        if failure is None:
            self._cancelled(number)
        else:
            self._end(number, "error", failure)
            if not isinstance(failure, Exception):
                return error
        return cancelled

    def _cancelled(self, number: int) -> None:
        self._end(number, "cancelled", self._reasons.get(number))

    def _end(self, number: int, kind: Literal["result", "error", "cancelled"], value: Any) -> None:
        self._results[number] = ToolResult(self._calls[number].id, kind, value)
        self._scopes.pop(number, None)
        for speaker in self._outbox.end(number, kind, value):
            trio.lowlevel.reschedule(speaker, Error(_has_ended(self._calls[number])))
        self._wake_reader()
        self._permits.ended(number)
        self._start_more()

    @enable_ki_protection
    async def _emit(self, number: int, data: Any, /) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._results[number] is not None:
            raise _has_ended(self._calls[number])
        speaker = trio.lowlevel.current_task()
        if self._start is None or self._outbox.say(number, data, speaker):
            self._wake_reader()
            await trio.lowlevel.cancel_shielded_checkpoint()
            return

        def abort(raise_cancel: Callable[[], Any]) -> Abort:
            self._outbox.withdraw(number, speaker)
            return Abort.SUCCEEDED

        self._wake_reader()
        await trio.lowlevel.wait_task_rescheduled(abort)


@disable_ki_protection
async def _call(fn: Callable[[Emit], Awaitable[Any]], emit: Emit) -> Any:
    return await fn(emit)


def _has_ended(call: ToolCall) -> trio.ClosedResourceError:
    return trio.ClosedResourceError(f"call {call.id!r} has ended")


def _split(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """What of ``error`` is a cancellation, and what is not."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)
    return (error, None) if isinstance(error, trio.Cancelled) else (None, error)


@final
class _Opened:
    """The `async with` block of `run_tools`."""

    def __init__(self, run: ToolRun) -> None:
        self._run: Final = run
        self._nursery: Final = trio.open_nursery(strict_exception_groups=True)

    @enable_ki_protection
    async def __aenter__(self) -> ToolRun:
        self._run._open(await self._nursery.__aenter__())
        return self._run

    @enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        self._run._close()
        try:
            return await self._nursery.__aexit__(exc_type, exc, traceback)
        except BaseExceptionGroup as group:
            if group.exceptions == (exc,):
                return False  # the block's own, which leaves it as it is
            raise
