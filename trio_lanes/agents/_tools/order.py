"""In which order tools start, and in which order is read what they say. Pure: no task, no time.

`Permits` answers which call starts next: a free permit goes to the earliest call whose predecessor
in its serial group has ended. `Outbox` answers what is read next, and who may say more.

That the two together never come to a standstill rests on the order of the permits. In call order,
only the earliest call that has not ended is read, and all others may be stuck with a full buffer
while they hold their permits. But that one runs, or gets the next permit there is: when it became
eligible, by the end of its predecessor, that end freed a permit, which went to it or to an earlier
one; and so does each permit that an earlier one gives back. Permits that tasks take for themselves,
in the order in which they happen to run, have no such order, and do stand still.
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
    """Which of the calls, known by their numbers, may start.

    Args:
      groups: the serial group of each call, or None.
      limit: how many may run at once.
    """

    def __init__(self, groups: Sequence[Hashable | None], limit: float) -> None:
        self._groups: Final = groups
        self._limit: Final = limit
        self._waiting: Final = set(range(len(groups)))
        self._running: Final[set[int]] = set()
        self._lines: Final[dict[Hashable, deque[int]]] = {}  # {group: its calls that may be left}
        self._eligible: Final[list[int]] = []  # a heap; a call may have been withdrawn from it
        for call, group in enumerate(groups):
            if group is not None:
                line = self._lines.setdefault(group, deque())
                line.append(call)
                if len(line) > 1:
                    continue
            self._eligible.append(call)

    def next(self) -> int | None:
        """The call that starts now, if one may."""
        while self._eligible and len(self._running) < self._limit:
            call = heapq.heappop(self._eligible)
            if call in self._waiting:
                self._waiting.remove(call)
                self._running.add(call)
                return call
        return None

    def is_waiting(self, call: int) -> bool:
        """Whether it has neither started nor ended."""
        return call in self._waiting

    @property
    def counts(self) -> tuple[int, int]:
        """How many wait, and how many run."""
        return len(self._waiting), len(self._running)

    def ended(self, call: int) -> None:
        """It has ended, or will not start."""
        self._waiting.discard(call)
        self._running.discard(call)
        line = self._lines.get(self._groups[call])
        if not line or line[0] != call:
            return  # if in a group, it was withdrawn, and is passed over when it becomes the first
        while line and line[0] not in self._waiting:
            line.popleft()
        if line:
            heapq.heappush(self._eligible, line[0])


@final
@attrs.frozen
class Item:
    """What a call said."""

    call: int
    kind: Kind
    data: Any


@final
@attrs.define(eq=False)
class _Line:
    """What is to be read one after the other; only outputs count."""

    items: deque[Item] = attrs.field(factory=deque)
    outputs: int = 0
    waiting: OrderedDict[Task, Item] = attrs.field(factory=OrderedDict)  # for room, by speaker


@final
class Outbox:
    """What the calls have said and nobody has read.

    Args:
      calls: how many there are.
      by_call: whether one call is read at a time, in order; else whatever was said first.
      buffer: how many outputs are kept: of each call, if ``by_call``, else of all together. A
        speaker for whose output there is no room waits, and the output with it. What a call ends
        with always has room.
    """

    def __init__(self, calls: int, *, by_call: bool, buffer: float) -> None:
        self._by_call: Final = by_call
        self._buffer: Final = buffer
        self._lines: Final = [_Line() for _ in range(calls if by_call else 1)]
        self._head = 0  # the line that is read
        self._unread: int = calls  # calls whose end has not been read

    def _line(self, call: int) -> _Line:
        return self._lines[call if self._by_call else 0]

    @property
    def finished(self) -> bool:
        """Whether all has been read that there will ever be."""
        return not self._unread

    @property
    def readable(self) -> bool:
        """Whether there is something to take; not to be asked when it is `finished`."""
        line = self._lines[self._head]
        return bool(line.items or line.waiting)

    def say(self, call: int, data: Any, speaker: Task) -> bool:
        """An output of ``call``; False if there is no room, and ``speaker`` has to wait."""
        line = self._line(call)
        item = Item(call, "output", data)
        if line.outputs < self._buffer:
            line.outputs += 1
            line.items.append(item)
            return True
        line.waiting[speaker] = item
        return False

    def withdraw(self, call: int, speaker: Task) -> None:
        """``speaker`` does not wait any more, and has said nothing."""
        del self._line(call).waiting[speaker]

    def end(self, call: int, kind: Kind, value: Any) -> list[Task]:
        """The last that ``call`` says; who waits in vain to say more for it."""
        line = self._line(call)
        late = [speaker for speaker, item in line.waiting.items() if item.call == call]
        for speaker in late:
            del line.waiting[speaker]
        line.items.append(Item(call, kind, value))
        return late

    def take(self) -> tuple[Item, Task | None]:
        """What is read next, if it is `readable`, and who waits no more because of that."""
        line = self._lines[self._head]
        if not line.items:  # there is no buffer
            speaker, item = line.waiting.popitem(last=False)
            return item, speaker
        item = line.items.popleft()
        if item.kind != "output":
            self._unread -= 1
            self._head += self._by_call
            return item, None
        line.outputs -= 1
        if not line.waiting:
            return item, None
        speaker, waiting = line.waiting.popitem(last=False)
        line.outputs += 1
        line.items.append(waiting)
        return item, speaker

    def drop(self) -> list[Task]:
        """Forget what nobody will read; who waits no more."""
        speakers = [speaker for line in self._lines for speaker in line.waiting]
        for line in self._lines:
            line.items.clear()
            line.waiting.clear()
        return speakers
