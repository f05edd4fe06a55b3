"""The order in which tool calls start, and the order in which their outputs are read.

The classes start no task and read no clock. `Permits` answers which call starts
next: a free permit goes to the earliest call whose predecessor in its serial group has ended.
`Outbox` answers which item is read next, and which waiting emitter may continue.

Why the two never deadlock: in call order, only the earliest call that has not ended is read. All
later calls may block on a full buffer while they hold their permits. But the earliest call runs, or
gets the next free permit. It became eligible when its predecessor ended, and that end freed a
permit, which went to the call or to an earlier call; each earlier call that ends frees a permit in
the same way. If tasks competed for permits in the order in which Trio happens to run them, a later
call could take the permit, and all calls would deadlock.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from typing import Any, Final, Literal, TypeAlias, final

import attrs
from trio.lowlevel import Task

Kind: TypeAlias = Literal["output", "result", "error", "cancelled"]


@final
class Permits:
    """The permits to run. Calls are known by their numbers.

    Args:
      groups: the serial group of each call, or None.
      limit: the maximum number of calls that run at once.
    """

    def __init__(self, groups: Sequence[Hashable | None], limit: float) -> None:
        self._groups: Final = groups
        self._limit: Final = limit
        self._waiting: Final = set(range(len(groups)))
        self._running: Final[set[int]] = set()
        self._queues: Final[dict[Hashable, deque[int]]] = {}  # {group: calls that may not have run}
        self._eligible: Final[list[int]] = []  # a heap; a call may have been withdrawn from it
        for call, group in enumerate(groups):
            if group is not None:
                queue = self._queues.setdefault(group, deque())
                queue.append(call)
                if len(queue) > 1:
                    continue
            self._eligible.append(call)

    def next(self) -> int | None:
        """Give a permit to the next call and return the call; None if no call may start."""
        while self._eligible and len(self._running) < self._limit:
            call = heapq.heappop(self._eligible)
            if call in self._waiting:
                self._waiting.remove(call)
                self._running.add(call)
                return call
        return None

    def is_waiting(self, call: int) -> bool:
        """Whether the call has neither started nor ended."""
        return call in self._waiting

    @property
    def counts(self) -> tuple[int, int]:
        """The number of waiting calls, and of running calls."""
        return len(self._waiting), len(self._running)

    def ended(self, call: int) -> None:
        """Take back the permit of a call that has ended, or withdraw a call that will not start."""
        self._waiting.discard(call)
        self._running.discard(call)
        queue = self._queues.get(self._groups[call])
        if not queue or queue[0] != call:
            return  # a withdrawn call of a group is skipped when it reaches the head
        while queue and queue[0] not in self._waiting:
            queue.popleft()
        if queue:
            heapq.heappush(self._eligible, queue[0])


@final
@attrs.frozen
class Item:
    """An output of a call, or its end."""

    call: int
    kind: Kind
    data: Any


@final
@attrs.define(eq=False)
class _Buffer:
    """The items that are read one after the other. Only outputs count against the limit."""

    items: deque[Item] = attrs.field(factory=deque)
    outputs: int = 0
    waiting: OrderedDict[Task, Item] = attrs.field(factory=OrderedDict)  # {emitter: its output}


@final
class Outbox:
    """The unread outputs and ends of the calls.

    Args:
      calls: the number of calls.
      by_call: whether one call is read at a time, in call order; otherwise items are read in the
        order in which they were emitted.
      buffer: the maximum number of buffered outputs: of each call if ``by_call``, else of all calls
        together. An emitter waits with its output while the buffer is full. The end of a call is
        always buffered.
    """

    def __init__(self, calls: int, *, by_call: bool, buffer: float) -> None:
        self._by_call: Final = by_call
        self._buffer: Final = buffer
        self._buffers: Final = [_Buffer() for _ in range(calls if by_call else 1)]
        self._head = 0  # the buffer that is read
        self._unread: int = calls  # calls whose end has not been read

    def _buffer_of(self, call: int) -> _Buffer:
        return self._buffers[call if self._by_call else 0]

    @property
    def finished(self) -> bool:
        """Whether the end of each call has been read."""
        return not self._unread

    @property
    def readable(self) -> bool:
        """Whether `take` would return an item. Do not ask when the outbox is `finished`."""
        buffer = self._buffers[self._head]
        return bool(buffer.items or buffer.waiting)

    def emit(self, call: int, data: Any, emitter: Task) -> bool:
        """Add an output of ``call``; False if the buffer is full, and ``emitter`` has to wait."""
        buffer = self._buffer_of(call)
        item = Item(call, "output", data)
        if buffer.outputs < self._buffer:
            buffer.outputs += 1
            buffer.items.append(item)
            return True
        buffer.waiting[emitter] = item
        return False

    def withdraw(self, call: int, emitter: Task) -> None:
        """Remove ``emitter``, whose wait was cancelled, and its output."""
        del self._buffer_of(call).waiting[emitter]

    def end(self, call: int, kind: Kind, value: Any) -> list[Task]:
        """Add the end of ``call``; return the emitters of the call whose wait ends in an error."""
        buffer = self._buffer_of(call)
        late = [emitter for emitter, item in buffer.waiting.items() if item.call == call]
        for emitter in late:
            del buffer.waiting[emitter]
        buffer.items.append(Item(call, kind, value))
        return late

    def take(self) -> tuple[Item, Task | None]:
        """Remove and return the next item, and the emitter that may continue, if there is one.

        The outbox must be `readable`.
        """
        buffer = self._buffers[self._head]
        if not buffer.items:  # the limit is 0: take the output from the emitter itself
            emitter, item = buffer.waiting.popitem(last=False)
            return item, emitter
        item = buffer.items.popleft()
        if item.kind != "output":
            self._unread -= 1
            self._head += self._by_call
            return item, None
        buffer.outputs -= 1
        if not buffer.waiting:
            return item, None
        emitter, waiting = buffer.waiting.popitem(last=False)
        buffer.outputs += 1
        buffer.items.append(waiting)
        return item, emitter

    def drop(self) -> list[Task]:
        """Discard all items, and return the emitters that waited."""
        emitters = [emitter for buffer in self._buffers for emitter in buffer.waiting]
        for buffer in self._buffers:
            buffer.items.clear()
            buffer.waiting.clear()
        return emitters
