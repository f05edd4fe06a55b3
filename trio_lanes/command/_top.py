"""The command ``top``: the frames of a monitor in a terminal, redrawn as they come."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import httpx2
import trio
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .._config.names import MONITOR_KEY
from .._config.problems import verdict_on
from ..durable._runs.events import one_line as visible
from ._exits import DONE, STORE_UNAVAILABLE, CommandError, one_line

Frame = Mapping[str, Any]

AGAIN: Final = 1.0  # seconds from a lost connection to the next attempt
SILENCE: Final = 15.0  # seconds without a frame after which a connection is lost
_NOTES: Final = 6
_MAX_PROBLEMS: Final = 5
_MAX_LISTED: Final = 8
_BAR: Final = 16  # characters
_STYLES: Final = {"info": "", "warning": "yellow", "error": "red"}
MOST_FRAMES: Final = 40
"""Of how many frames one is to have a store that is slow: of some ten seconds."""
PLAIN: Final = 120
"""Columns of a standard output that is not a terminal."""


def check_url(url: str) -> str:
    """Return the address of the frames of the page at ``url``.

    Raises:
      CommandError: if it is no address of a page.
    """
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one:
        raise CommandError(f"{url!r} is no URL of a monitor, such as http://127.0.0.1:8765/")
    return f"{url.partition('?')[0].rstrip('/')}/frames"


def page_client(url: str, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    """Return a client for the page at ``url``, with headers for each request.

    It sends the key that ``url`` has, or else the environment.
    """
    asked = dict(parse_qsl(urlsplit(url).query))
    key = asked.get("key") or os.environ.get(MONITOR_KEY, "").strip()
    return httpx2.AsyncClient(
        headers=dict(headers),
        params={"key": key} if key else None,
        timeout=httpx2.Timeout(SILENCE),
    )


async def top(url: str, headers: Mapping[str, str], console: Console) -> int:
    """Show the frames of the page at ``url`` until Ctrl-C; one frame if there is no terminal.

    Raises:
      CommandError: if there is no monitor at ``url``, or it refuses.
    """
    frames = check_url(url)
    async with page_client(url, headers) as client:
        if not console.is_terminal:
            console.width = PLAIN

            seen: list[Frame] = []

            await follow(client, frames, until_whole(seen))
            console.print(drawn(seen[-1], ""))
            return DONE
        with Live(console=console, screen=True, auto_refresh=False) as live:
            last: Frame = {}

            def show(frame: Frame | None) -> bool:
                nonlocal last
                last = last if frame is None else frame
                link = "reconnecting" if frame is None else "live"
                live.update(drawn(last, link), refresh=True)
                return True

            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_signal, nursery.cancel_scope)
                await follow(client, frames, show)
    return DONE


def until_whole(seen: list[Frame]) -> Callable[[Frame | None], bool]:
    """Return what keeps the frames until one has the store of its page, or says why not."""

    def show(frame: Frame | None) -> bool:
        if frame is not None:  # else the connection is lost, and made again
            seen.append(frame)
        last = seen[-1]
        is_whole = last["looked"] or "store" in [one["kind"] for one in last["health"]]
        return not is_whole and len(seen) < MOST_FRAMES

    return show


async def _until_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


async def follow(
    client: httpx2.AsyncClient, url: str, show: Callable[[Frame | None], bool]
) -> None:
    """Call ``show`` with each frame, and with None when the connection is lost, until it is false.

    Raises:
      CommandError: if there is no monitor, or it refuses. A connection that is lost after the first
        frame is made again.
    """
    came = False
    while True:
        try:
            async with client.sse(url) as source:
                await check_answer(source.response)
                async with _reading(source) as events:
                    async for event in events:
                        if event.data:
                            came = True
                            if not show(_frame(event.data)):
                                return
        except BusyError as error:
            if not came:
                raise CommandError(one_line(error), STORE_UNAVAILABLE) from error
        except httpx2.SSEError as error:
            raise CommandError(f"{url} is no monitor of trio-lanes") from error
        except httpx2.TransportError as error:
            if not came:
                why = one_line(error)
                raise CommandError(f"{url} cannot be reached: {why}", STORE_UNAVAILABLE) from error
        if not came:
            raise CommandError(f"{url} has ended without a frame", STORE_UNAVAILABLE)
        show(None)
        await trio.sleep(AGAIN)


@asynccontextmanager
async def _reading(
    source: httpx2.EventSource,
) -> AsyncIterator[AsyncIterator[httpx2.ServerSentEvent]]:
    """Iterate over the events, and end all generators through which httpx2 reads them.

    Closing the first would leave the others to the garbage collector; to read on from a response
    that is closed ends them all.
    """
    events = aiter(source)
    try:
        yield events
    finally:
        await source.response.aclose()
        with suppress(httpx2.HTTPError, httpx2.StreamError):
            [event async for event in events]


class BusyError(Exception):
    """The page has too many viewers now, or its server is about to come back."""


async def check_answer(response: httpx2.Response) -> None:
    """Refuse an answer that is an error; its URL, which may have a key, is not said.

    Raises:
      BusyError: if the server has failed, or has no place.
      CommandError: if it refuses.
    """
    if response.status_code == 200:
        return
    try:
        said = json.loads(await response.aread())["error"]
    except (ValueError, LookupError, TypeError):
        said = "no monitor of trio-lanes is there"
    text = f"status {response.status_code}: {visible(str(said))[:200]}"
    if response.status_code >= 500:
        raise BusyError(text)
    raise CommandError(text)


def _frame(data: str) -> Frame:
    try:
        frame: Frame = json.loads(data)
        frame["n"], drawn(frame, "")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CommandError("the monitor is of another version of trio-lanes") from error
    return frame


# ---- the picture


def drawn(frame: Frame, link: str) -> RenderableType:
    """Return the picture of a frame."""
    totals = frame["totals"]
    style = "yellow" if link == "reconnecting" else "green"
    head = Text.assemble(
        ("lanes  ", "bold"), f"pid {frame['pid']}  frame {frame['n']}  ", (link, style)
    )
    waits = totals["quantiles"]
    numbers = [
        f"running {totals['active']}",
        f"slots {totals['slots']} of {_limit(totals['limit'])}, {totals['lent']} lent",
        f"waiting {totals['waiting']} in {totals['sessions']} sessions",
        f"oldest {_seconds(totals['oldest'])} {visible(totals['oldest_lane'])}".rstrip(),
        f"wait p50 {_seconds(waits[0])} p95 {_seconds(waits[1])}" if waits else "",
        f"finished {totals['finished']}",
        f"failed {totals['failed']}",
        f"given up {totals['abandoned']}" if totals["abandoned"] else "",
    ]
    text = Text(" · ".join(number for number in numbers if number))
    parts: list[RenderableType] = [head, *_verdict(frame), text, _lanes(frame)]
    if frame["more_lanes"]:
        parts.append(Text(f"and {frame['more_lanes']} more lanes"))
    if frame["sessions"]:
        parts.append(_sessions(frame))
    if frame["notes"]:
        parts.append(Text("noticed", "bold"))
    for note in reversed(frame["notes"][-_NOTES:]):
        times = f" ({note['count']} times)" if note["count"] > 1 else ""
        ago = _seconds(frame["at"] - note["at"])
        parts.append(
            Text(f"  {ago} ago  {visible(note['text'])}{times}", _STYLES.get(note["level"], ""))
        )
    return Group(*parts)


def _verdict(frame: Frame) -> Iterator[Text]:
    """Give the lines of what is wrong, each with what to do, and of what else is told."""
    problems = frame["health"]
    count = len(problems) + frame["more_problems"]
    yield Text(visible(verdict_on(count, frame["left_out"])), "red" if count else "green")
    for one in problems[:_MAX_PROBLEMS]:
        yield Text(f"  {visible(one['text'])}: {visible(one['advice'])}", "red")
    if count > _MAX_PROBLEMS:
        yield Text(f"  and {count - _MAX_PROBLEMS} more", "red")
    for one in frame["told"]:
        yield Text(
            f"  {visible(one['text'])}" + (f": {visible(one['advice'])}" if one["advice"] else "")
        )


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        words = column in ("lane", "session", "", "rate left")
        table.add_column(column, justify="left" if words else "right", no_wrap=not words)
    return table


def _lanes(frame: Frame) -> RenderableType:
    table = _table("lane", "slots", "", "lent", "waiting", "in lane", "oldest", "p95", "rate left")
    for row in frame["lanes"]:
        notes = []
        if row["paused"]:
            until = row["paused_until"]
            notes.append("paused" if until is None else f"paused {_seconds(until - frame['at'])}")
        if row["cancelling"]:
            notes.append(f"{row['cancelling']} cancelling")
        if row["abandoned"]:
            notes.append(f"{row['abandoned']} given up")
        rates = [f"{rate['unit']} {rate['left'] / rate['most']:.0%}" for rate in row["rates"]]
        if row["rate_until"] is not None:
            rates.append(f"waits {_seconds(row['rate_until'] - frame['at'])}")
        waits = row["quantiles"]
        table.add_row(
            Text(visible(row["name"]) + (f" ({', '.join(notes)})" if notes else "")),
            f"{row['slots']}/{_limit(row['limit'])}",
            _bar(row["slots"], row["limit"]),
            str(row["lent"]),
            str(row["waiting"]),
            str(row["in_lane"]),
            _seconds(row["oldest"]) if row["waiting"] else "–",
            _seconds(waits[1]) if waits else "–",
            Text(visible(", ".join(rates)) or "–"),
        )
    return table


def _sessions(frame: Frame) -> RenderableType:
    table = _table("session", "waiting", "running", "oldest")
    for one in frame["sessions"][:_MAX_LISTED]:
        name = visible(one["key"]) + (" (paused)" if one["paused"] else "")
        oldest = "–" if one["oldest"] is None else _seconds(frame["at"] - one["oldest"])
        table.add_row(Text(name), str(one["waiting"]), str(one["active"]), oldest)
    return table


def _bar(used: int, limit: float | None) -> Text:
    """Draw slots: one character each, or a part of the whole if there are many."""
    if limit is None:
        return Text("■" * min(used, _BAR), "blue")
    width = int(min(limit, _BAR))
    full = min(width, round(width * used / limit)) if limit else 0
    return Text("■" * full + "·" * (width - full), "blue")


def _limit(limit: float | None) -> str:
    return "∞" if limit is None else f"{limit:.0f}"


def _seconds(value: float) -> str:
    if value >= 3600:
        return f"{value / 3600:.1f} h"
    if value >= 100:
        return f"{value / 60:.1f} min"
    return f"{max(value, 0):.0f} s" if value >= 10 else f"{max(value, 0):.1f} s"
