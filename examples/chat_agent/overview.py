"""The present state of the lanes as table rows, for `/sessions` and the live view."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import attrs
import trio

from trio_lanes import Lanes

from .screen import shorten
from .sessions import Sessions

LANE_HEADER: Final = ("lane", "limit", "running", "waiting", "oldest wait", "")
MAX_TEXT: Final = 24  # characters of a message
SESSION_HEADER: Final = (" session", "running", "waiting", "next")


@attrs.define
class SessionRow:
    """The jobs and messages of one session lane."""

    key: str
    running: str = "-"  # the message that is being answered, and for how long
    waiting: int = 0
    next: str = ""  # the next message
    paused: bool = False
    held: bool = False

    def cells(self, current: str | None = None) -> tuple[str, ...]:
        """Return the row, in the order of `SESSION_HEADER`, with a mark at the current session."""
        mark = "*" if self.key == current else " "
        state = self.running
        if state == "-" and (self.held or self.paused):
            state = "held" if self.held else "paused"
        return (mark + self.key, state, str(self.waiting), self.next)


def lane_rows(lanes: Lanes) -> list[tuple[str, ...]]:
    """Return a row for each global lane, in the columns of `LANE_HEADER`."""
    return [
        (
            name,
            str(lane.concurrency),
            str(lane.active),
            str(lane.waiting),
            f"{lane.oldest_wait:.1f} s" if lane.waiting else "-",
            "paused" if lane.paused else "",
        )
        for name, lane in lanes.statistics().lanes.items()
    ]


def session_rows(lanes: Lanes, sessions: Sessions) -> list[SessionRow]:
    """Return a row for each session that has work, or is paused or held."""
    rows = []
    for key in dict.fromkeys([*lanes.sessions(), *sessions.held]):
        row = SessionRow(key, paused=lanes.session(key).paused, held=sessions.is_held(key))
        turn = sessions.turn(key)
        if turn is not None:
            ran = trio.current_time() - (turn.job.started_at or 0)
            row.running = f"{ran:.1f} s: {shorten(turn.messages[0], MAX_TEXT)!r}"
        waiting = sessions.waiting(key)
        row.waiting = len(waiting)
        row.next = repr(shorten(waiting[0], MAX_TEXT)) if waiting else ""
        rows.append(row)
    return rows


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return the rows as plain text in columns."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
