"""The terminal: tables and JSON on standard output, progress on standard error."""

from __future__ import annotations

import io
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Literal

import click
import trio
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from ..durable._runs.events import one_line as visible
from ._answer import Answer, Table, to_json

SHOWN_AFTER: Final = 0.5
"""Seconds after which a progress bar appears."""
REDRAWN_EVERY: Final = 0.1

WIDE: Final = 10_000
"""Columns of a standard output that is not a terminal."""


def show(answer: Answer, *, as_json: bool) -> None:
    """Print an answer."""
    if as_json:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        click.echo(to_json(answer.document, encoding=encoding))
        return
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # not every locale has an ∞
    for shown in answer.shown:
        if isinstance(shown, str):
            click.echo(visible(shown))
        else:
            _show_table(shown)


def _show_table(table: Table) -> None:
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in table.columns:
        right = column in table.numbers
        justify: Literal["left", "right"] = "right" if right else "left"
        drawn.add_column(column, justify=justify, no_wrap=right, overflow="fold")
    for row in table.rows:
        drawn.add_row(*map(visible, row))
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = WIDE
    console.print(drawn)


@asynccontextmanager
async def progress(what: str, total: int | None = None) -> AsyncIterator[Callable[[int], None]]:
    """Show a progress bar, if the block takes long and standard error is a terminal.

    It gives a function that advances the bar by a number; without a ``total`` the bar shows only
    the elapsed time.
    """
    console = Console(stderr=True)
    columns = [TextColumn("{task.description}", markup=False), BarColumn()]
    if total is not None:
        columns.append(MofNCompleteColumn())
    bar = Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        auto_refresh=False,  # the task below refreshes it, not a thread
        disable=not console.is_terminal,
    )
    task = bar.add_task(what, total=total)

    async def draw() -> None:
        await trio.sleep(SHOWN_AFTER)
        with bar:
            while True:
                bar.refresh()
                await trio.sleep(REDRAWN_EVERY)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(draw)
        yield lambda done: bar.advance(task, done)
        nursery.cancel_scope.cancel()
