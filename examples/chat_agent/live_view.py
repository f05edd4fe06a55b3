"""A live view of the lanes and sessions: drawn by rich, refreshed by a Trio task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from trio_lanes import Lanes

from .overview import LANE_HEADER, SESSION_HEADER, lane_rows, session_rows
from .sessions import Sessions

REFRESH_SECONDS: Final = 0.1


async def live_view(lanes: Lanes, sessions: Sessions, console: Console | None = None) -> None:
    """Show lanes and sessions until cancelled. Lines that are printed meanwhile appear above."""
    console = Console() if console is None else console
    # Without `auto_refresh`: the thread of rich would read the lanes while they change.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            live.update(render(lanes, sessions, console.height), refresh=True)
            await trio.sleep(REFRESH_SECONDS)


def render(lanes: Lanes, sessions: Sessions, height: int) -> RenderableType:
    """Return the present state, in at most `height` lines."""
    lane_table = _table("lanes", LANE_HEADER)
    for lane in lane_rows(lanes):
        lane_table.add_row(*lane, style="yellow" if lane[-1] else "")
    rows = sorted(session_rows(lanes, sessions), key=lambda row: (row.running == "-", row.key))
    room = max(height - lane_table.row_count - 12, 3)
    session_table = _table("sessions", SESSION_HEADER)
    for row in rows[:room]:
        # A row is one line: a text that is too long for its column is cut.
        cells = [Text(cell, no_wrap=True, overflow="ellipsis") for cell in row.cells()]
        session_table.add_row(*cells)
    more = len(rows) - room
    return Group(lane_table, session_table, Text(f"and {more} more" if more > 0 else ""))


def _table(title: str, header: Sequence[str]) -> Table:
    columns = [Column(name, min_width=8) for name in header]
    return Table(*columns, title=title, title_justify="left", expand=True)
