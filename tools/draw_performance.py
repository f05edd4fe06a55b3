"""Draw ten rows of the benchmark for the docs: `python -m tools.draw_performance`.

The rows are read from `benchmarks/results/`, the tables that `make bench` has made. They stand in
`docs/performance.md` as a table, and in `docs/performance.svg` as a chart.
"""

from __future__ import annotations

import math
import re
from html import escape
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
PAGE: Final = ROOT / "docs" / "performance.md"
PICTURE: Final = ROOT / "docs" / "performance.svg"

BARE, LOCK = "Trio: bare start_soon", "Trio by hand: keyed Lock + limiter"
DRAINER, P_QUEUE = "Trio by hand: a drainer per live key", "p-queue 10"
SEMAPHORE, AIOJOBS = "asyncio by hand: keyed Lock + Semaphore", "aiojobs + keyed Lock"
CORE: Final = "trio-lanes"
VALKEY = ", Valkey, appendfsync everysec"

ROWS: Final = (  # file, row, what is measured, lanes, peers
    ("core", "a", "100,000 no-op jobs at once, µs", CORE, (BARE, LOCK, DRAINER, P_QUEUE)),
    ("core", "a.gap", "longest gap for other tasks meanwhile, ms", CORE, (BARE, LOCK, DRAINER)),
    ("core", "b", "steady load, µs", CORE, (BARE, LOCK, DRAINER, P_QUEUE)),
    (
        "core",
        "c",
        "`await run()`, one after the other, µs",
        CORE,
        ("Trio: limiter in a spawned task", AIOJOBS, P_QUEUE),
    ),
    ("core", "d", "distinct priorities, µs", CORE, ("Trio by hand: heap + one task", P_QUEUE)),
    ("core", "e.waiting", "a waiting job, bytes", CORE, (LOCK, SEMAPHORE, P_QUEUE)),
    ("core", "f", "10^6 sessions that come and go, µs", CORE, (DRAINER, SEMAPHORE, P_QUEUE)),
    ("core", "h", "jobs that block once, µs", CORE, (BARE, LOCK, DRAINER, P_QUEUE)),
    (
        "asyncio",
        "l.burst",
        "100,000 no-op jobs on asyncio, µs",
        "trio-lanes on asyncio: trio_lanes.aio",
        (SEMAPHORE, AIOJOBS),
    ),
    (
        "durable",
        "j.10",
        "durable jobs on Valkey, 10 in flight, µs",
        f"durable lanes{VALKEY}",
        (f"BullMQ{VALKEY}", f"GroupMQ{VALKEY}"),
    ),
)
NAMES: Final = {
    BARE: "bare `start_soon`",
    LOCK: "keyed lock",
    DRAINER: "task per key",
    SEMAPHORE: "keyed lock on asyncio",
    AIOJOBS: "aiojobs with a keyed lock",
    P_QUEUE: "p-queue",
    "Trio: limiter in a spawned task": "limiter in a spawned task",
    "Trio by hand: heap + one task": "heap and a task",
    f"BullMQ{VALKEY}": "BullMQ",
    f"GroupMQ{VALKEY}": "GroupMQ",
}

COLOURS: Final = {
    "bare `start_soon`": "#777777",
    "keyed lock": "#8e5a35",
    "keyed lock on asyncio": "#8e5a35",
    "task per key": "#4d7d3b",
    "p-queue": "#79427f",
}
"""Of the peers that many rows have. The others have their names beside their dots."""
OTHER: Final = "#9a3b4f"

WIDTH, LABELS, ROW, TOP = 760, 290, 30, 40
LEAST, MOST = 0.1, 300.0
"""How many times as much as lanes the chart has room for."""
STYLE: Final = (
    "text { font: 12px system-ui, sans-serif; fill: #333; } .small { font-size: 10px; } "
    ".axis { fill: #666; } .line { stroke: #e2e2e2; } .lanes { stroke: #35618e; stroke-width: 2; }"
)


@attrs.frozen
class Row:
    """A row with the medians of lanes and of its peers."""

    name: str
    what: str
    lanes: str
    peers: dict[str, str]


def read() -> list[Row]:
    """The ten rows, as the tables have them."""
    rows = []
    for file, name, what, lanes, peers in ROWS:
        text = (RESULTS / f"{file}.md").read_text("utf-8")
        table = text.split(f"\n## ({name}) ")[1].partition("\n## ")[0]
        medians = dict(re.findall(r"^\| (\S.*?) +\| ([\d.,]+) ", table, re.M))
        found = {NAMES[peer]: medians[peer] for peer in peers}
        rows.append(Row(name, what, medians[lanes], found))
    return rows


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| | | trio-lanes | others |", "|---|---|---|---|"]
    for row in rows:
        peers = ", ".join(f"{name} {median}" for name, median in row.peers.items())
        lines.append(f"| {row.name} | {row.what} | **{row.lanes}** | {peers} |")
    return "\n".join(lines)


def page(text: str, rows: list[Row]) -> str:
    """The page ``text`` with these rows."""
    before, rest = text.split("<!-- the rows -->\n")
    return f"{before}<!-- the rows -->\n{table(rows)}\n\n{rest[rest.index('![') :]}"


def draw(rows: list[Row]) -> str:
    """The chart: a dot for each peer, by its median as a multiple of that of lanes."""
    bottom = TOP + ROW * len(rows)
    scale = (WIDTH - LABELS - 60) / math.log(MOST / LEAST)

    def across(ratio: float) -> float:
        return LABELS + math.log(min(max(ratio, LEAST), MOST) / LEAST) * scale

    parts = [
        f'<text x="{across(1):.0f}" y="14" text-anchor="middle">trio-lanes</text>',
        f'<text class="axis" x="{across(1) - 40:.0f}" y="14" text-anchor="end">less</text>',
        f'<text class="axis" x="{across(1) + 40:.0f}" y="14">takes more than lanes</text>',
    ]
    for ratio in (0.1, 0.3, 1, 3, 10, 30, 100, 300):
        x, line = across(ratio), "lanes" if ratio == 1 else "line"
        parts += [
            f'<path class="{line}" d="M{x:.1f},{TOP - 14} V{bottom}"/>',
            f'<text class="axis" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">'
            f"{ratio:g} x</text>",
        ]
    for place, row in enumerate(rows):
        y = TOP + ROW * place
        label = escape(f"({row.name}) {row.what}".replace("`", "").rpartition(",")[0])
        parts.append(f'<text x="8" y="{y + 4}">{label}</text>')
        above = True
        for peer, median in row.peers.items():
            ratio = _number(median) / _number(row.lanes)
            x, shown = across(ratio), escape(peer.replace("`", ""))
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y}" r="4.5" fill="{COLOURS.get(peer, OTHER)}">'
                f"<title>{shown}: {ratio:.2g} x</title></circle>"
            )
            if peer not in COLOURS:
                parts.append(
                    f'<text class="small" x="{x:.1f}" y="{y - 7 if above else y + 14}" '
                    f'text-anchor="middle">{shown}</text>'
                )
                above = not above
    named = {colour: peer for peer, colour in reversed(COLOURS.items())}
    for place, colour in enumerate(dict.fromkeys(COLOURS.values())):
        x, peer = 8 + 150 * place, named[colour].replace("`", "")
        parts += [
            f'<circle cx="{x + 5}" cy="{bottom + 36}" r="4.5" fill="{colour}"/>',
            f'<text x="{x + 16}" y="{bottom + 40}">{peer}</text>',
        ]
    height = bottom + 52
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img">',
            "<title>What others take, as multiples of what lanes take</title>",
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{height}" rx="8" fill="white"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _number(shown: str) -> float:
    return float(shown.replace(",", ""))


if __name__ == "__main__":
    ROWS_READ = read()
    PICTURE.write_text(draw(ROWS_READ), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text("utf-8"), ROWS_READ), encoding="utf-8")
