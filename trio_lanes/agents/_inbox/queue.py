"""The line of what waits in an inbox: its order, and when its head is due. Time is given in.

Interrupts stand before all else. Everything else stands in the order of posting, in units: what
one turn is started with. A unit is one message, or an unbroken run of collect messages of one
group. ::

    interrupts        units
    i1 i2             [f1] [c1 c2 c3] [s1]

A turn is started with the first interrupt, else with the first unit. That is due at once, unless
it is a run of collect messages with nothing behind it: new ones may still join that, so it is due
when none came for a while, and at the latest some time after its oldest was posted. If the oldest
has made room for others, the time goes on to count from it, or a stream that is fast enough to
overflow the line would never be heard.

What is posted when nothing waits and no turn is active is due at once in any mode, so nothing
joins it.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Hashable, Iterator
from contextvars import Context
from itertools import chain
from typing import Any, Final, Generic, TypeVar, final

import attrs

T = TypeVar("T")

AT_ONCE: Final = -math.inf
"""A time that has always come."""

LINE_LENGTH: Final = 160
"""Characters that a summary has of each message, at most."""


@final
class WhenBusy(enum.StrEnum):
    """What is done with a message while a turn is active, or another message waits.

    A member equals its own value, so it can be stored and sent as it is.
    """

    STEER = "steer"
    """It is offered to the active turn, and run next, in its place, if that does not take it."""
    FOLLOWUP = "followup"
    """It has a later turn of its own."""
    COLLECT = "collect"
    """It has a later turn together with its neighbours of the same group."""
    INTERRUPT = "interrupt"
    """The active turn is aborted, and it is run before all else."""
    REJECT = "reject"
    """It is refused."""
    REPLACE = "replace"
    """It takes the place of a waiting message of this mode, at the end of the line."""


@final
class Overflow(enum.StrEnum):
    """What is done when as many messages wait as may, and one more is posted.

    A member equals its own value, so it can be stored and sent as it is.
    """

    SUMMARIZE = "summarize"
    """The first in line makes room, and the next turn is given a line of it before all else."""
    DROP_OLDEST = "drop_oldest"
    """The first in line makes room."""
    DROP_NEWEST = "drop_newest"
    """The new one is dropped."""


@final
class Summary(str):
    """A message made of those that had to make room: a line of each, oldest first."""

    __slots__ = ()


def one_line(message: Any) -> str:
    """``message`` as one line of a `Summary`."""
    try:
        text = str(message)
    except Exception:  # it is not whoever posts now who is to hear of it
        text = f"<{type(message).__qualname__}>"
    line = " ".join(text.split())
    return line if len(line) <= LINE_LENGTH else line[: LINE_LENGTH - 1] + "…"


@final
@attrs.define(eq=False)
class Entry(Generic[T]):
    """One message that waits."""

    item: T
    mode: WhenBusy
    group: Hashable
    runs_at_once: bool
    posted_at: float
    context: Context
    """That of whoever posted it."""
    oldest_at: float = attrs.field(init=False)
    """When the oldest was posted of the run that it is part of."""

    def __attrs_post_init__(self) -> None:
        self.oldest_at = self.posted_at

    @property
    def _is_collected(self) -> bool:
        return self.mode is WhenBusy.COLLECT and not self.runs_at_once

    def is_joined_by(self, other: Entry[T]) -> bool:
        """Whether ``other``, which comes behind it, is part of the same run."""
        return self._is_collected and other._is_collected and self.group == other.group


@final
class Line(Generic[T]):
    """What waits, in order."""

    def __init__(
        self, debounce: float, max_wait: float, cap: int | float, overflow: Overflow
    ) -> None:
        self._debounce: Final = debounce
        self._max_wait: Final = max_wait
        self._cap: Final = cap
        self._overflow: Final = overflow
        self._interrupts: Final[deque[Entry[T]]] = deque()
        self._units: Final[deque[deque[Entry[T]]]] = deque()
        self._length = 0
        self._replaceable: Entry[T] | None = None  # the one in mode REPLACE

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Entry[T]]:
        return chain(self._interrupts, chain.from_iterable(self._units))

    @property
    def has_replaceable(self) -> bool:
        """Whether one waits that a new one in mode REPLACE takes the place of."""
        return self._replaceable is not None

    @property
    def is_full(self) -> bool:
        """Whether as many wait as may."""
        return self._length >= self._cap

    def would_drop(self, mode: WhenBusy) -> bool:
        """Whether a new message in that mode finds no room, and makes none."""
        if not self.is_full or (mode is WhenBusy.REPLACE and self.has_replaceable):
            return False
        return self._overflow is Overflow.DROP_NEWEST or not self._units

    # ---- when

    @property
    def due(self) -> float:
        """When the head is due; there must be one."""
        if self._interrupts or len(self._units) > 1:
            return AT_ONCE
        (unit,) = self._units
        return self._due(unit[0], unit[-1])

    def due_with(self, entry: Entry[T]) -> float:
        """When the head would be due if ``entry`` were added, and room made for it."""
        if self._interrupts or not entry._is_collected:
            return AT_ONCE
        gone = int(self.is_full and len(self._units[0]) == 1)
        left = len(self._units) - gone
        if not left:
            return self._due(entry, entry)
        head = self._units[gone]
        if left == 1 and head[-1].is_joined_by(entry):
            return self._due(head[0], entry)
        return AT_ONCE

    def _due(self, first: Entry[T], last: Entry[T]) -> float:
        """When a run is due that has nothing behind it."""
        if not first._is_collected:
            return AT_ONCE
        return min(last.posted_at + self._debounce, first.oldest_at + self._max_wait)

    # ---- in

    def meet(self, entry: Entry[T]) -> None:
        """Let ``entry``, which is to be added, know since when there is the run that it joins.

        Before room is made for it: that may take all that there is of the run.
        """
        if self._units and self._units[-1][-1].is_joined_by(entry):
            entry.oldest_at = self._units[-1][-1].oldest_at

    def add(self, entry: Entry[T]) -> None:
        """Have ``entry`` wait."""
        self._length += 1
        if entry.mode is WhenBusy.INTERRUPT:
            self._interrupts.append(entry)
            return
        if entry.mode is WhenBusy.REPLACE:
            self._replaceable = entry
        if self._units and self._units[-1][-1].is_joined_by(entry):
            self._units[-1].append(entry)
        else:
            self._units.append(deque((entry,)))

    # ---- out

    def take_unit(self) -> list[Entry[T]]:
        """Take out what the next turn is started with; there must be something."""
        taken = [self._interrupts.popleft()] if self._interrupts else [*self._units.popleft()]
        self._taken(taken)
        return taken

    def take_steers(self) -> list[Entry[T]]:
        """Take out the steers before which nothing else waits."""
        taken: list[Entry[T]] = []
        if not self._interrupts:
            while self._units and self._units[0][0].mode is WhenBusy.STEER:
                taken += self._units.popleft()
        self._taken(taken)
        return taken

    def take_victim(self) -> Entry[T]:
        """Take out the first that is no interrupt; there must be one."""
        unit = self._units[0]
        victim = unit.popleft()
        if not unit:
            self._units.popleft()
        self._taken([victim])
        return victim

    def take_replaceable(self) -> Entry[T]:
        """Take out the one in mode REPLACE. The runs around it become one, if they can."""
        replaced = self._replaceable
        assert replaced is not None
        at = next(i for i, unit in enumerate(self._units) if unit[0] is replaced)
        del self._units[at]
        if 0 < at < len(self._units) and self._units[at - 1][-1].is_joined_by(self._units[at][0]):
            before, behind = self._units[at - 1], self._units[at]
            for entry in behind:
                entry.oldest_at = before[0].oldest_at
            before.extend(behind)
            del self._units[at]
        self._taken([replaced])
        return replaced

    def take_all(self) -> list[Entry[T]]:
        """Take out everything."""
        taken = [*self]
        self._interrupts.clear()
        self._units.clear()
        self._taken(taken)
        return taken

    def _taken(self, entries: list[Entry[T]]) -> None:
        self._length -= len(entries)
        if self._replaceable in entries:
            self._replaceable = None
