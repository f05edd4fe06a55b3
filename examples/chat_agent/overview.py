"""What the lanes are doing now, as rows: for `/sessions` and for the live view."""

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
    """What one session's lane holds."""

    key: str
    running: str = "-"  # what is being answered, and for how long
    waiting: int = 0
    next: str = ""  # what is answered next
    paused: bool = False

    def cells(self, current: str | None = None) -> tuple[str, ...]:
        """The row as `SESSION_HEADER` says, with a mark at the current session."""
        mark = "*" if self.key == current else " "
        state = "paused" if self.paused and self.running == "-" else self.running
        return (mark + self.key, state, str(self.waiting), self.next)


def lane_rows(lanes: Lanes) -> list[tuple[str, ...]]:
    """A row for each global lane, as `LANE_HEADER` says."""
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
    """A row for each session that is alive: with work, or paused."""
    rows = []
    for key in lanes.sessions():
        row = SessionRow(key, paused=lanes.session(key).paused)
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
    """Plain text in columns."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
