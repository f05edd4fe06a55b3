"""What the lanes are doing now, as rows: for `/sessions` and for the live view."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import attrs
import trio

from trio_lanes import JobState, Lanes

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


def session_rows(lanes: Lanes) -> list[SessionRow]:
    """A row for each session that is alive: with work, or paused."""
    now = trio.current_time()
    rows = {key: SessionRow(key, paused=lanes.session(key).paused) for key in lanes.sessions()}
    for job in lanes.jobs():
        if job.session is None:  # a tool call
            continue
        row = rows[job.session]
        if job.state is JobState.RUNNING and job.started_at is not None:
            row.running = f"{now - job.started_at:.1f} s: {shorten(job.meta, MAX_TEXT)!r}"
        else:
            row.next = row.next or repr(shorten(job.meta, MAX_TEXT))
            row.waiting += 1
    return list(rows.values())


def shorten(text: str, length: int) -> str:
    """One line of at most so many characters, with a sign where some were left out."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Plain text in columns."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
