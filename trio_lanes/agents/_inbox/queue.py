"""The queue of waiting messages of an inbox: their order, and when the head is due.

The module reads no clock; the caller passes the time in. A durable inbox has its queue in a store,
and shares the modes and the rules of `Posted`.

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

An active turn takes steers from anywhere in the queue, unless ``steers_first`` is False: then from
its head only. What was on both sides of a message that has left is adjacent.

A message that is posted while the queue is empty and no turn is active is due at once in every
mode, so no message joins it.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from contextvars import Context
from itertools import chain, count, takewhile
from typing import Any, Final, Generic, TypeVar, final

import attrs

from ..._config import check as _check

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


class Posted:
    """How a message was posted, as far as its place and its turn depend on it."""

    __slots__ = ()

    mode: WhenBusy
    group: Hashable
    runs_at_once: bool
    """Whether the inbox was idle at the post."""

    @property
    def goes_first(self) -> bool:
        """Whether it is an interrupt."""
        return self.mode in GO_FIRST

    @property
    def is_collected(self) -> bool:
        """Whether it may share a turn with messages before and behind it."""
        return self.mode is WhenBusy.COLLECT and not self.runs_at_once

    def is_joined_by(self, other: Posted) -> bool:
        """Whether ``other``, the next message, is part of the same run."""
        return self.is_collected and other.is_collected and self.group == other.group


@final
@attrs.frozen(eq=False)
class Unit:
    """What a turn is started with: one message, or a run of collect messages."""

    oldest_at: float
    """When its oldest message was posted."""


@final
@attrs.define(eq=False)
class Entry(Posted, Generic[T]):
    """A waiting message."""

    item: T
    mode: WhenBusy
    group: Hashable
    runs_at_once: bool
    posted_at: float
    context: Context
    """The context in which the message was posted."""
    unit: Unit = attrs.field(init=False)
    place: int = attrs.field(init=False, default=0)
    """Its place in the queue: the higher, the later it was added."""

    def __attrs_post_init__(self) -> None:
        self.unit = Unit(self.posted_at)


@final
@attrs.frozen
class QueueOptions:
    """The options of the queue of an inbox, which are checked here."""

    debounce: float = attrs.field(validator=_check.field(_check.finite_seconds))
    max_wait: float = attrs.field(validator=_check.field(_check.seconds))
    cap: int | float = attrs.field(validator=_check.field(_check.positive_count))
    overflow: Overflow = attrs.field(converter=Overflow)


@final
class MessageQueue(Generic[T]):
    """The waiting messages of an inbox, in order.

    Args:
      steers_first: whether a turn takes steers although messages of other modes are before them.
    """

    def __init__(self, options: QueueOptions, *, steers_first: bool) -> None:
        self._options: Final = options
        self._steers_first: Final = steers_first
        self._by_item: Final[dict[T, Entry[T]]] = {}
        self._next_place: Final = count().__next__
        self._interrupts: Final[deque[Entry[T]]] = deque()
        # All other messages, by place: a message is found by bisection, and the C code of a list
        # moves those behind it.
        self._line: Final[list[Entry[T]]] = []
        self._steers: Final[dict[T, Entry[T]]] = {}  # those of the line, in the same order
        self._replaceable: Entry[T] | None = None  # the message in mode REPLACE

    def __len__(self) -> int:
        return len(self._by_item)

    def __iter__(self) -> Iterator[Entry[T]]:
        return chain(self._interrupts, self._line)

    def find(self, item: T) -> Entry[T] | None:
        """Return the entry of a message, if it waits."""
        return self._by_item.get(item)

    def position(self, entry: Entry[T], taken: list[Entry[T]]) -> int:
        """Return how many messages wait before ``entry``, which waits.

        Args:
          taken: the `steers_of` a turn, which takes them before it ends; or none.
        """
        if entry in taken:
            return taken.index(entry)
        if entry.goes_first:
            return len(taken) + self._interrupts.index(entry)
        behind = sum(one.place > entry.place for one in taken)
        return len(self._interrupts) + self._index(entry) + behind

    def _index(self, entry: Entry[T]) -> int:
        return bisect_left(self._line, entry.place, key=_place)

    @property
    def has_replaceable(self) -> bool:
        """Whether a message in mode REPLACE waits."""
        return self._replaceable is not None

    @property
    def is_full(self) -> bool:
        """Whether ``cap`` messages wait."""
        return len(self._by_item) >= self._options.cap

    def would_drop(self, mode: WhenBusy) -> bool:
        """Whether the overflow rule drops a new message of this mode."""
        if not self.is_full or (mode is WhenBusy.REPLACE and self.has_replaceable):
            return False
        return self._options.overflow is Overflow.DROP_NEWEST or not self._line

    # ---- due times

    @property
    def due(self) -> float:
        """The time at which the head is due. The queue must not be empty."""
        if self._interrupts or self._line[0].unit is not self._line[-1].unit:
            return NOW
        return self._due(self._line[-1], self._line[-1].unit)

    def due_with(self, entry: Entry[T]) -> float:
        """Return when the head would be due after ``entry`` was added and an overflow resolved."""
        unit, first = self._unit_with(entry), int(self.is_full)
        rest = self._line[first : first + 1]
        if self._interrupts or (rest and rest[0].unit is not unit):
            return NOW
        return self._due(entry, unit)

    def _due(self, last: Entry[T], unit: Unit) -> float:
        """Return when ``unit`` is due, which ends the queue with ``last``."""
        if not last.is_collected:
            return NOW
        options = self._options
        return min(last.posted_at + options.debounce, unit.oldest_at + options.max_wait)

    # ---- adding

    def _unit_with(self, entry: Entry[T]) -> Unit:
        """Return the unit of which ``entry`` is a part if it is added now."""
        joins = bool(self._line) and self._line[-1].is_joined_by(entry)
        return self._line[-1].unit if joins else entry.unit

    def add(self, entry: Entry[T]) -> None:
        """Add ``entry``: interrupts before the units, all other messages at the tail.

        Add it before an overflow is resolved: its unit is as old as the message that leaves.
        """
        self._by_item[entry.item] = entry
        if entry.goes_first:
            self._interrupts.append(entry)
            return
        if entry.mode is WhenBusy.REPLACE:
            self._replaceable = entry
        entry.place = self._next_place()
        entry.unit = self._unit_with(entry)
        self._line.append(entry)
        if entry.mode is WhenBusy.STEER:
            self._steers[entry.item] = entry

    # ---- removing

    def take_unit(self) -> list[Entry[T]]:
        """Remove and return the messages of the next turn. The queue must not be empty."""
        if self._interrupts:
            taken = [self._interrupts.popleft()]
            self._taken(taken)
            return taken
        unit = self._line[0].unit
        taken = list(takewhile(lambda one: one.unit is unit, self._line))
        del self._line[: len(taken)]
        self._taken(taken)
        return taken

    def steers_of(self, group: Hashable) -> list[Entry[T]]:
        """Return the steers that a turn of ``group`` takes now: no steer overtakes another."""
        if self._steers_first:
            steers: Iterable[Entry[T]] = self._steers.values()
        else:
            steers = takewhile(lambda one: one.mode is WhenBusy.STEER, self)
        return list(takewhile(lambda one: one.group == group, steers))

    def take_steers(self, group: Hashable) -> list[Entry[T]]:
        """Remove and return the `steers_of` a group."""
        taken = self.steers_of(group)
        for steer in taken:
            self.take(steer)
        return taken

    def take_victim(self) -> Entry[T]:
        """Remove and return the first message that is not an interrupt; there must be one."""
        victim = self._line.pop(0)
        self._taken([victim])
        return victim

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
        del line[at]
        if 0 < at < len(line) and line[at - 1].is_joined_by(line[at]):
            before, behind = line[at - 1].unit, line[at].unit
            while before is not behind and at < len(line) and line[at].unit is behind:
                line[at].unit = before
                at += 1

    def take_all(self) -> list[Entry[T]]:
        """Remove and return all messages."""
        taken = [*self]
        self._interrupts.clear()
        self._line.clear()
        self._taken(taken)
        return taken

    def _taken(self, entries: list[Entry[T]]) -> None:
        for entry in entries:
            del self._by_item[entry.item]
            self._steers.pop(entry.item, None)
            if entry is self._replaceable:
                self._replaceable = None


def _place(entry: Entry[Any]) -> int:
    return entry.place
