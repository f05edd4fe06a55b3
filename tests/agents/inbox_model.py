"""A small model of an inbox: one list, looked through anew for every question. Nothing runs."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import attrs

from trio_lanes.agents import Overflow, WhenBusy

COLLECT, FIRST = WhenBusy.COLLECT, (WhenBusy.INTERRUPT, WhenBusy.ROLLBACK)
ALWAYS = float("-inf")


@attrs.define(eq=False)
class Message:
    """One that waits."""

    key: int
    mode: WhenBusy
    group: Hashable
    alone: bool  # posted when not busy
    posted: float
    oldest: float

    def joins(self, other: Message) -> bool:
        """Whether both are of one run, if nothing is between them."""
        return (
            self.mode is other.mode is COLLECT
            and not self.alone
            and not other.alone
            and self.group == other.group
        )


@attrs.define(eq=False)
class Model:
    """What an inbox is to do, if every turn goes on until it is told to end."""

    cap: int
    overflow: Overflow
    debounce: float
    max_wait: float
    holds: bool = False
    steers_first: bool = True

    now: float = 0.0
    line: list[Message] = attrs.field(factory=list)
    turn: list[int] | None = None  # the keys that it was started with
    group: Hashable = None  # of the turn
    rolled_back: bool = False
    held: bool = False
    kept: bool = False  # whether it is held although nothing waits
    ending: str | None = None  # how the turn is about to end
    takes: bool = True  # whether it was not aborted
    compacting: bool = False
    granted: bool = False  # whether a job has its slots and has not begun
    summary: list[int] = attrs.field(factory=list)
    kinds: dict[int, str] = attrs.field(factory=dict)
    starts: list[tuple[float, list[int], list[int]]] = attrs.field(factory=list)
    ids: dict[Hashable, tuple[float, int]] = attrs.field(factory=dict)

    def post(
        self,
        key: int,
        mode: WhenBusy,
        group: Hashable,
        id: Hashable,
        expected: int | None = None,  # the number of a turn
    ) -> int:
        """The key of the message that this is."""
        known = self.ids.get(id)
        if id is not None and known is not None and self.now - known[0] < 300:
            return known[1]
        if id is not None:
            self.ids[id] = self.now, key
        busy = self.turn is not None or bool(self.line) or self.held
        is_meant = self.turn is not None and self.takes and expected == len(self.starts) - 1
        if (busy and mode is WhenBusy.REJECT) or (expected is not None and not is_meant):
            self.kinds[key] = "rejected"
            return key
        oldest = self.now
        if self.line and self.line[-1].joins(Message(key, mode, group, not busy, 0, 0)):
            oldest = self.line[-1].oldest
        replaced = [waiting for waiting in self.line if waiting.mode is mode is WhenBusy.REPLACE]
        if replaced:
            self.settle(replaced[0], "replaced")
        elif len(self.line) >= self.cap:
            victims = [waiting for waiting in self.line if waiting.mode not in FIRST]
            if self.overflow is Overflow.DROP_NEWEST or not victims:
                self.kinds[key] = "dropped"
                return key
            if self.overflow is Overflow.SUMMARIZE:
                self.summary.append(victims[0].key)
                self.settle(victims[0], "summarized")
            else:
                self.settle(victims[0], "dropped")
        self.kinds[key] = "waits"
        message = Message(key, mode, group, not busy, self.now, oldest)
        if mode in FIRST:
            place = sum(waiting.mode in FIRST for waiting in self.line)
            self.line.insert(place, message)
            if not self.held:
                self.abort()
                self.rolled_back |= self.turn is not None and mode is WhenBusy.ROLLBACK
        else:
            self.line.append(message)
        self.grant()
        return key

    def settle(self, message: Message, kind: str) -> None:
        self.line.remove(message)
        self.kinds[message.key] = kind

    def withdraw(self, place: int) -> None:
        """The message at this place is cancelled by its receipt."""
        self.settle(self.line[place], "cancelled")
        self.held &= self.kept or bool(self.line)
        if not self.line:  # the job that was granted its slots finds nothing
            return
        self.grant()

    def hold(self) -> None:
        self.held = self.kept = True

    def release(self) -> None:
        self.held = self.kept = False
        self.grant()

    def stop(self, then: str) -> None:
        """The turn is aborted, and what waits runs, is held, or is cancelled."""
        if then == "hold":
            self.hold()
        elif then == "clear":
            self.cancel_line()
        self.abort()

    @property
    def unit(self) -> list[Message]:
        unit = self.line[:1]
        for message in self.line[1:]:
            if not unit[-1].joins(message):
                break
            unit.append(message)
        return unit

    @property
    def due(self) -> float:
        if self.held:
            return float("inf")
        unit = self.unit
        if unit[0].mode is not COLLECT or unit[0].alone or len(unit) < len(self.line):
            return ALWAYS
        latest = min(message.oldest for message in unit) + self.max_wait
        return min(unit[-1].posted + self.debounce, latest)

    def grant(self) -> None:
        if self.turn is None and self.line and self.due <= self.now:
            self.granted = True

    def end(self, how: str) -> None:
        """The turn is about to end; what happens first counts."""
        if self.turn is not None and self.ending is None:
            self.ending = how

    @property
    def takeable(self) -> list[Message]:
        """What the turn takes, if it does so now and is not compacting."""
        line = self.line if self.turn is not None and self.takes else []
        if self.steers_first:
            line = [message for message in line if message.mode is WhenBusy.STEER]
        found: list[Message] = []
        for message in line:
            if message.mode is not WhenBusy.STEER or message.group != self.group:
                break
            found.append(message)
        return found

    @property
    def order(self) -> list[int]:
        """The order in which the messages are to be handled, as it is now."""
        first = [message.key for message in self.takeable]
        return first + [message.key for message in self.line if message.key not in first]

    def take(self) -> list[int]:
        taken = [] if self.compacting else self.takeable
        for message in taken:
            self.settle(message, "steered")
        return [message.key for message in taken]

    def abort(self) -> None:
        """The turn is aborted: it takes no more, at once."""
        if self.turn is not None:
            self.takes = False
        self.end("cancelled")

    def clear(self) -> None:
        """The job that waits is cleared; one that was granted its slots is not."""
        if not self.granted and self.line:  # without a message there is no job to clear
            self.cancel_line()

    def cancel_line(self) -> None:
        self.summary = []
        self.held = self.kept
        for message in [*self.line]:
            self.settle(message, "cancelled")

    def reset(self) -> None:
        if self.turn is not None:
            self.ending = "cancelled"
            self.turn_ends()
        self.granted = False
        self.grant()

    def turn_ends(self) -> None:
        assert self.turn is not None
        assert self.ending is not None
        kind = self.ending
        for key in self.turn:
            self.kinds[key] = kind
            kind = "merged" if kind == "ran" else kind
        self.turn = self.ending = None
        self.compacting = self.rolled_back = False
        self.takes = True
        self.held |= self.holds and kind == "failed" and bool(self.line)

    def rest(self) -> None:
        """Everything happens that can happen now."""
        if self.turn is not None and self.ending is not None:
            self.turn_ends()
        self.granted = False
        if self.turn is None and self.line and self.due <= self.now:
            unit = self.unit
            self.turn = [message.key for message in unit]
            self.group = unit[0].group
            for message in unit:
                self.settle(message, "in_turn")
            self.starts.append((self.now, self.summary, self.turn))
            self.summary = []

    def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        self.rest()
        if self.turn is None and self.line and self.due <= until:
            self.now = self.due
            self.rest()
        self.now = until

    def check(self, offered: int) -> None:
        assert offered == len(self.kinds)
        assert len(self.line) <= self.cap

    def seen(self) -> dict[str, Any]:
        return {
            "line": [message.key for message in self.line],
            "turn": self.turn,
            "kinds": self.kinds,
            "starts": self.starts,
        }
