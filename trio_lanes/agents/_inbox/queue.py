"""The queue of waiting messages of an inbox: their order, and when the head is due.

The module reads no clock; the caller passes the time in.

Interrupts come before all other messages. The other messages are in the order of posting, in
units. A turn is started with one unit. A unit is one message, or a run of adjacent collect messages
of one group. ::

    interrupts        units
    i1 i2             [f1] [c1 c2 c3] [s1]

A turn is started with the first interrupt, else with the first unit. The unit is due at once,
unless it is a run of collect messages at the end of the queue. New messages may still join such a
run, so it is due when no message has joined for ``debounce`` seconds, and at the latest
``max_wait`` seconds after its oldest message was posted. The time counts from the oldest message
even if an overflow has removed that message; otherwise a stream of messages that keeps
overflowing the queue would never be due.

A message that is posted while the queue is empty and no turn is active is due at once in every
mode, so no message joins it.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextvars import Context
from itertools import chain, count, pairwise
from typing import Any, Final, Generic, TypeVar, final

import attrs

T = TypeVar("T", bound=Hashable)

NOW: Final = -math.inf
"""A due time that is always in the past."""

LINE_LENGTH: Final = 160
"""The maximum number of characters of one message in a summary."""


@final
class WhenBusy(enum.StrEnum):
    """How an inbox treats a message while a turn is active or another message waits.

    A member equals its own value, so it can be stored and sent as it is.
    """

    STEER = "steer"
    """The active turn may take the message, if it is of the same group; if it does not, the message
    gets a turn of its own."""
    FOLLOWUP = "followup"
    """The message gets a later turn of its own."""
    COLLECT = "collect"
    """The message shares a later turn with adjacent messages of the same group."""
    INTERRUPT = "interrupt"
    """The active turn is aborted, and the message is handled before all other messages."""
    ROLLBACK = "rollback"
    """As INTERRUPT; and the aborted turn is to leave the conversation: `Turn.rollback_called`."""
    REJECT = "reject"
    """The message is refused."""
    REPLACE = "replace"
    """The message replaces a waiting message of this mode; its place is the tail of the queue."""


GO_FIRST: Final = frozenset({WhenBusy.INTERRUPT, WhenBusy.ROLLBACK})
"""The modes of messages that abort the active turn, and are handled before all others."""


@final
class Overflow(enum.StrEnum):
    """How an inbox treats a new message when ``cap`` messages wait already.

    A member equals its own value, so it can be stored and sent as it is.
    """

    SUMMARIZE = "summarize"
    """The head of the queue is removed; the next turn begins with a summary that quotes it."""
    DROP_OLDEST = "drop_oldest"
    """The head of the queue is dropped."""
    DROP_NEWEST = "drop_newest"
    """The new message is dropped."""


@final
class Summary(str):
    """A message that quotes the messages an overflow removed: one line each, oldest first."""

    __slots__ = ()


def one_line(message: Any) -> str:
    """Return ``message`` as one line of a `Summary`."""
    try:
        text = str(message)
    except Exception:  # the caller posts another message, and is not to blame for this one
        text = f"<{type(message).__qualname__}>"
    line = " ".join(text.split())
    return line if len(line) <= LINE_LENGTH else line[: LINE_LENGTH - 1] + "…"


@final
@attrs.define(eq=False)
class Entry(Generic[T]):
    """A waiting message."""

    item: T
    mode: WhenBusy
    group: Hashable
    runs_at_once: bool
    posted_at: float
    context: Context
    """The context in which the message was posted."""
    oldest_at: float = attrs.field(init=False)
    """When the oldest message of its run was posted."""
    place: int = attrs.field(init=False, default=0)
    """Its place in the queue: the higher, the later it was added."""

    def __attrs_post_init__(self) -> None:
        self.oldest_at = self.posted_at

    @property
    def goes_first(self) -> bool:
        """Whether it is an interrupt."""
        return self.mode in GO_FIRST

    @property
    def _is_collected(self) -> bool:
        return self.mode is WhenBusy.COLLECT and not self.runs_at_once

    def is_joined_by(self, other: Entry[T]) -> bool:
        """Whether ``other``, the next entry of the queue, is part of the same run."""
        return self._is_collected and other._is_collected and self.group == other.group


@final
class MessageQueue(Generic[T]):
    """The waiting messages of an inbox, in order."""

    def __init__(
        self, debounce: float, max_wait: float, cap: int | float, overflow: Overflow
    ) -> None:
        self._debounce: Final = debounce
        self._max_wait: Final = max_wait
        self._cap: Final = cap
        self._overflow: Final = overflow
        self._by_item: Final[dict[T, Entry[T]]] = {}
        self._next_place: Final = count().__next__
        self._interrupts: Final[deque[Entry[T]]] = deque()
        # All other messages, by place: a message is found by bisection, and the C code of a list
        # moves those behind it. Units are not kept: they end where two neighbours are not joined.
        self._line: Final[list[Entry[T]]] = []
        self._ends = 0  # of units, but for the last
        self._replaceable: Entry[T] | None = None  # the message in mode REPLACE

    def __len__(self) -> int:
        return len(self._by_item)

    def __iter__(self) -> Iterator[Entry[T]]:
        return chain(self._interrupts, self._line)

    def find(self, item: T) -> Entry[T] | None:
        """Return the entry of a message, if it waits."""
        return self._by_item.get(item)

    def position(self, entry: Entry[T]) -> int:
        """Return how many messages wait before ``entry``, which waits."""
        if entry.goes_first:
            return self._interrupts.index(entry)
        return len(self._interrupts) + self._index(entry)

    def _index(self, entry: Entry[T]) -> int:
        return bisect_left(self._line, entry.place, key=_place)

    @property
    def has_replaceable(self) -> bool:
        """Whether a message in mode REPLACE waits."""
        return self._replaceable is not None

    @property
    def is_full(self) -> bool:
        """Whether ``cap`` messages wait."""
        return len(self) >= self._cap

    def would_drop(self, mode: WhenBusy) -> bool:
        """Whether the overflow rule drops a new message of this mode."""
        if not self.is_full or (mode is WhenBusy.REPLACE and self.has_replaceable):
            return False
        return self._overflow is Overflow.DROP_NEWEST or not self._line

    # ---- due times

    @property
    def due(self) -> float:
        """The time at which the head is due. The queue must not be empty."""
        if self._interrupts or self._ends:
            return NOW
        return self._due(self._line[0], self._line[-1])

    def due_with(self, entry: Entry[T]) -> float:
        """Return when the head would be due after ``entry`` was added and an overflow resolved."""
        if self._interrupts or not entry._is_collected:
            return NOW
        line = self._line
        gone = int(self.is_full and (len(line) == 1 or not line[0].is_joined_by(line[1])))
        left = self._ends + bool(line) - gone
        if not left:
            return self._due(entry, entry)
        if left == 1 and line[-1].is_joined_by(entry):
            return self._due(line[gone], entry)
        return NOW

    def _due(self, first: Entry[T], last: Entry[T]) -> float:
        """Return when the last run of the queue is due."""
        if not first._is_collected:
            return NOW
        return min(last.posted_at + self._debounce, first.oldest_at + self._max_wait)

    # ---- adding

    def inherit_age(self, entry: Entry[T]) -> None:
        """Copy the age of the run that ``entry`` will join into ``entry``.

        Call this before an overflow is resolved, which may remove every message of the run.
        """
        if self._line and self._line[-1].is_joined_by(entry):
            entry.oldest_at = self._line[-1].oldest_at

    def add(self, entry: Entry[T]) -> None:
        """Add ``entry``: interrupts before the units, all other messages at the tail."""
        self._by_item[entry.item] = entry
        if entry.goes_first:
            self._interrupts.append(entry)
            return
        if entry.mode is WhenBusy.REPLACE:
            self._replaceable = entry
        entry.place = self._next_place()
        self._ends += _ends([*self._line[-1:], entry])
        self._line.append(entry)

    # ---- removing

    def take_unit(self) -> list[Entry[T]]:
        """Remove and return the messages of the next turn. The queue must not be empty."""
        if self._interrupts:
            taken = [self._interrupts.popleft()]
            self._taken(taken)
            return taken
        neighbours = enumerate(pairwise(self._line), 1)
        return self._take_first(
            next((n for n, (one, two) in neighbours if not one.is_joined_by(two)), len(self._line))
        )

    def take_steers(self, group: Hashable) -> list[Entry[T]]:
        """Remove and return the steers of ``group`` at the head of the queue."""
        if self._interrupts:
            return []
        line = enumerate(self._line)
        steer = WhenBusy.STEER
        return self._take_first(
            next(
                (n for n, one in line if one.mode is not steer or one.group != group),
                len(self._line),
            )
        )

    def take_victim(self) -> Entry[T]:
        """Remove and return the first message that is not an interrupt; there must be one."""
        (victim,) = self._take_first(1)
        return victim

    def _take_first(self, many: int) -> list[Entry[T]]:
        """Remove and return the first messages that are no interrupts."""
        taken = self._line[:many]
        self._ends -= _ends(self._line[: many + 1])
        del self._line[:many]
        self._taken(taken)
        return taken

    def take_replaceable(self) -> Entry[T]:
        """Remove and return the message in mode REPLACE; there must be such a message."""
        replaced = self._replaceable
        assert replaced is not None
        self.take(replaced)
        return replaced

    def take(self, entry: Entry[T]) -> None:
        """Remove ``entry``, which waits; join the runs on both sides of it."""
        self._taken([entry])
        if entry.goes_first:
            self._interrupts.remove(entry)
            return
        line, at = self._line, self._index(entry)
        first = max(at - 1, 0)
        self._ends -= _ends(line[first : at + 2])
        del line[at]
        self._ends += _ends(line[first : at + 1])
        # what was behind has the age of the run that it is part of now
        while 0 < at < len(line) and line[at - 1].is_joined_by(line[at]):
            if line[at].oldest_at == line[at - 1].oldest_at:
                break
            line[at].oldest_at = line[at - 1].oldest_at
            at += 1

    def take_all(self) -> list[Entry[T]]:
        """Remove and return all messages."""
        taken = [*self]
        self._interrupts.clear()
        self._line.clear()
        self._ends = 0
        self._taken(taken)
        return taken

    def _taken(self, entries: list[Entry[T]]) -> None:
        for entry in entries:
            del self._by_item[entry.item]
            if entry is self._replaceable:
                self._replaceable = None


def _ends(entries: Sequence[Entry[Any]]) -> int:
    """Return how many units end between the first and the last of ``entries``."""
    return sum(not one.is_joined_by(two) for one, two in pairwise(entries))


def _place(entry: Entry[Any]) -> int:
    return entry.place
