"""Running tool calls concurrently, and reading their outputs in order.

Each call runs in a task of its own, under a cancel scope of its own, in the nursery of the
`async with` block. The module ``order`` decides which call starts next and which item is read next.
State changes are synchronous: in the step in which a call ends, its result is stored, and its
permit goes to the next call. A waiting call has no task yet.

A call ends once, even if it is cancelled and its function returns or raises. A returned value
becomes the result, even after a cancellation; a raised exception becomes the error. An exception
that is not an ``Exception`` leaves the block as it would leave a nursery.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from functools import partial
from typing import Any, Final, Literal, Self, final

import attrs
import trio
from outcome import Error
from trio.lowlevel import Abort, disable_ki_protection, enable_ki_protection

from ..._config.check import count, positive_count
from .calls import Emit, ToolCall, ToolResult
from .order import Kind, Outbox, Permits


@final
@attrs.frozen
class ToolEvent:
    """An event that is read from a run: an output of a call, or its end."""

    sequence_number: int
    """The number of the event in this run, from 0 and without a gap."""
    output_index: int
    """The position of the call in the list of calls, from 0."""
    item_id: str
    """The id of the call."""
    kind: Kind
    """``"output"``, any number of times; then once ``"result"``, ``"error"`` or ``"cancelled"``."""
    data: Any
    """The emitted or returned value, the exception that was raised, or the reason of the
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
    """Run tool calls at the same time, and read their events in order.

    ::

        async with run_tools(calls, limit=4) as run:
            async for event in run:
                show(event)
        print(run.results)

    Each call ends with one event and one result. A call that fails does not stop the others.
    Leaving the block cancels the calls that have not ended, and waits for their functions; each of
    these calls then has a ``cancelled`` result. As with a nursery, entering is not a checkpoint,
    and leaving always lets other tasks run.

    Args:
      calls: the calls, with different ids.
      limit: the maximum number of calls that run at once. A free permit goes to the earliest call
        that does not wait for another call of its ``serial_group``.
      order: the order of the events. With ``"call"``, one call is read at a time, in call order:
        the events of the first call that has not ended are read live, the outputs of later calls
        are buffered. With ``"completion"``, events are read in the order in which they happened.
      buffer: the maximum number of unread outputs, of each call, or with ``"completion"`` of all
        calls together; 0: no buffer. A tool that emits more waits. The end of a call is always
        kept.

    Raises:
      TypeError, ValueError: at the call, for a bad value, or for two calls with the same id.
    """
    return opened(ToolRun, tuple(calls), limit, order, buffer)


def opened(
    kind: type[ToolRun], calls: tuple[ToolCall, ...], limit: float, order: str, buffer: float
) -> AbstractAsyncContextManager[ToolRun]:
    """Return the block of a `run_tools` that gives a run of that ``kind``."""
    ids: set[str] = set()
    for call in calls:
        if not isinstance(call, ToolCall):
            raise TypeError(f"calls must be ToolCall objects, not {call!r}")
        if call.id in ids:
            raise ValueError(f"two calls have the id {call.id!r}")
        ids.add(call.id)
    if order not in ("call", "completion"):
        raise ValueError(f"order must be 'call' or 'completion', not {order!r}")
    positive_count("limit", limit)
    count("buffer", buffer)
    return _Opened(kind(calls, limit, order == "call", buffer))


class ToolRun:
    """The calls of one `run_tools` block. Iterate over it, in one task, to read the events."""

    def __init__(
        self, calls: tuple[ToolCall, ...], limit: float, by_call: bool, buffer: float
    ) -> None:
        self._calls: Final = calls
        self._numbers: Final = {call.id: number for number, call in enumerate(calls)}
        self._results: Final[list[ToolResult | None]] = [None] * len(calls)
        self._permits: Final = Permits([call.serial_group for call in calls], limit)
        self._outbox: Final = Outbox(len(calls), by_call=by_call, buffer=buffer)
        self._scopes: Final[dict[int, trio.CancelScope]] = {}  # {number of a running call: scope}
        self._reasons: Final[dict[int, str | None]] = {}  # {number of a cancelled call: reason}
        self._read = 0
        self._reader: Final = trio.lowlevel.ParkingLot()  # where it waits for an event
        self._start: Callable[[int], None] | None = None  # None: no call starts any more

    def __repr__(self) -> str:
        waiting, running = self._permits.counts
        return (
            f"<trio_lanes.agents.ToolRun at {id(self):#x}, {waiting} waiting, {running} running, "
            f"{len(self._calls) - waiting - running} ended>"
        )

    @property
    def results(self) -> list[ToolResult]:
        """A new list of the results of the calls that have ended, in call order.

        After all events were read, or the block was left, it has a result for each call.
        """
        return [result for result in self._results if result is not None]

    @enable_ki_protection
    def cancel(self, id: str, reason: str | None = None) -> bool:
        """Cancel one call; False if it has ended. Not a checkpoint.

        A waiting call never starts. A running call is cancelled, and keeps its permit and its place
        in its serial group until it has ended; if its function returns a value nevertheless, the
        call ends with that result.

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
        """Wait for the next event, and return it. A checkpoint; a cancelled wait loses no event.

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
            if self._reader:
                raise trio.BusyResourceError("another task reads this run")
            await self._reader.park()
        item, emitter = self._outbox.take()
        if emitter is not None:
            trio.lowlevel.reschedule(emitter)
        call = self._calls[item.call]
        number = self._read
        self._read += 1
        return ToolEvent(number, item.call, call.id, item.kind, item.data, call.final)

    # ---- the calls

    def _open(self, nursery: trio.Nursery) -> None:
        # A call must not inherit the context of the call whose end starts it.
        context = copy_context()

        def start(number: int) -> None:
            call = self._calls[number]
            self._scopes[number] = trio.CancelScope()
            name = call.name or call.id
            context.run(lambda: nursery.start_soon(self._run, number, name=name))

        self._start = start
        self._start_more()

    def _close(self) -> None:
        """Cancel the calls that have not ended, and wake the emitters and the reader."""
        self._start = None
        for number, result in enumerate(self._results):
            if result is None:
                self._cancel(number)
        for emitter in self._outbox.drop():  # emitters that are shielded from the cancellation
            trio.lowlevel.reschedule(emitter)
        self._reader.unpark_all()

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
                await trio.lowlevel.checkpoint_if_cancelled()  # then do not call it
                value = await _call(self._calls[number].fn, partial(self._emit, number))
                returned = True
        except BaseException as error:  # also an error about a scope that the function left open
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
        """End a call that raised ``error``; return the part of it that has to leave the block."""
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
        for emitter in self._outbox.end(number, kind, value):
            trio.lowlevel.reschedule(emitter, Error(_has_ended(self._calls[number])))
        self._reader.unpark_all()
        self._permits.ended(number)
        self._start_more()

    @enable_ki_protection
    async def _emit(self, number: int, data: Any, /) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._results[number] is not None:
            raise _has_ended(self._calls[number])
        emitter = trio.lowlevel.current_task()
        if self._start is None or self._outbox.emit(number, data, emitter):
            self._reader.unpark_all()
            await trio.lowlevel.cancel_shielded_checkpoint()
            return

        def abort(raise_cancel: Callable[[], Any]) -> Abort:
            self._outbox.withdraw(number, emitter)
            return Abort.SUCCEEDED

        self._reader.unpark_all()
        await trio.lowlevel.wait_task_rescheduled(abort)


@disable_ki_protection
async def _call(fn: Callable[[Emit], Awaitable[Any]], emit: Emit) -> Any:
    return await fn(emit)


def _has_ended(call: ToolCall) -> trio.ClosedResourceError:
    return trio.ClosedResourceError(f"call {call.id!r} has ended")


def _split(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """Split ``error`` into its cancellations and the rest."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)
    return (error, None) if isinstance(error, trio.Cancelled) else (None, error)


@final
class _Opened:
    """The `async with` block of `run_tools`."""

    def __init__(self, run: ToolRun) -> None:
        self._run: Final = run
        self._nursery: Final = trio.open_nursery(strict_exception_groups=True)
        # As in `open_lanes`: while Trio delivers a cancellation to this task, a callback may cancel
        # a call, and so have another started in the nursery.
        self._block: Final = trio.CancelScope()

    @enable_ki_protection
    async def __aenter__(self) -> ToolRun:
        self._run._open(await self._nursery.__aenter__())
        self._block.__enter__()
        return self._run

    @enable_ki_protection
    async def __aexit__(self, *exc: Any) -> bool | None:
        self._run._close()
        self._block.__exit__(None, None, None)
        try:
            return await self._nursery.__aexit__(*exc)
        except BaseExceptionGroup as group:
            if group.exceptions == exc[1:2]:
                return False  # the exception of the block itself leaves it unchanged
            raise
