"""Put the figures of the benchmark into the docs: `python -m tools.draw_performance`.

They are read from `benchmarks/results/`, the tables that `make bench` has made. Eleven rows are in
`docs/performance.md` as a table and in `docs/performance.svg` as a chart, and five of them in
README.md. What it costs to be watched is on the pages of the monitor and of the instruments.
"""

from __future__ import annotations

import math
import re
from html import escape
from pathlib import Path
from typing import Final

import attrs

from tools.pictures import DARK

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
PICTURE: Final = ROOT / "docs" / "performance.svg"

BARE, LOCK = "Trio: bare start_soon", "Trio by hand: keyed Lock + limiter"
DRAINER, P_QUEUE = "Trio by hand: a drainer per live key", "p-queue 10"
SEMAPHORE, AIOJOBS = "asyncio by hand: keyed Lock + Semaphore", "aiojobs + keyed Lock"
SPAWNED, HEAP = "Trio: limiter in a spawned task", "Trio by hand: heap + one task"
SPAWNED_AIO = "asyncio: Semaphore in a spawned task"
CORE: Final = "trio-lanes"
AIO: Final = "trio-lanes on asyncio: trio_lanes.aio"
VALKEY = ", Valkey, appendfsync everysec"

ROWS: Final = (  # row, what is measured, lanes, peers
    ("a", "100,000 no-op jobs at once, µs", CORE, (BARE, LOCK, DRAINER, P_QUEUE)),
    ("a.gap", "longest gap for other tasks meanwhile, ms", CORE, (BARE, LOCK, DRAINER)),
    ("b", "steady load, µs", CORE, (BARE, LOCK, DRAINER, P_QUEUE)),
    ("c", "`await run()`, one after the other, µs", CORE, (SPAWNED, AIOJOBS, P_QUEUE)),
    ("d", "distinct priorities, µs", CORE, (HEAP, P_QUEUE)),
    ("e.waiting", "a waiting job, bytes", CORE, (LOCK, SEMAPHORE, P_QUEUE)),
    ("f", "10^6 sessions that come and go, µs", CORE, (DRAINER, SEMAPHORE, P_QUEUE)),
    ("h", "jobs that block once, µs", CORE, (BARE, LOCK, DRAINER, P_QUEUE)),
    ("l.burst", "100,000 no-op jobs on asyncio, µs", AIO, (SEMAPHORE, AIOJOBS)),
    ("l.one", "`await run()` on asyncio, µs", AIO, (SPAWNED_AIO, AIOJOBS)),
    (
        "j.10",
        "durable jobs on Valkey, 10 in flight, µs",
        f"durable lanes{VALKEY}",
        (f"BullMQ{VALKEY}", f"GroupMQ{VALKEY}"),
    ),
)
OURS: Final = ("trio-lanes", "durable lanes")
"""How the names of contenders begin that are no peers."""
MICROTASK: Final = "(microtask)"
"""What marks a contender whose jobs let no others run, and so are not those of the row."""

PRICES: Final = ("h", "a", "b", "c", "f")
"""The rows of README."""
BY_HAND: Final = (BARE, LOCK, DRAINER, SPAWNED)

WATCHED: Final = ("k.burst", "k.frame", "k.memory")
"""The rows of what it costs to be watched."""
MOUNTED: Final = "trio-lanes under a monitor, no page open"
VIEWED: Final = "trio-lanes under a monitor, one page open"
METRICS: Final = "trio-lanes with PrometheusInstrument"
WANTED: Final = {MOUNTED: "no page open", VIEWED: "one page open", METRICS: "Prometheus"}
"""How the target of a watched burst begins."""

NAMES: Final = {
    BARE: "bare `start_soon`",
    LOCK: "keyed lock",
    DRAINER: "task per key",
    SEMAPHORE: "keyed lock on asyncio",
    AIOJOBS: "aiojobs with a keyed lock",
    P_QUEUE: "p-queue",
    SPAWNED: "limiter in a spawned task",
    SPAWNED_AIO: "semaphore in a task",
    HEAP: "heap and a task",
    "asyncio by hand: a drainer per live key": "task per key on asyncio",
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
class Line:
    """What one contender took in a row of the benchmark."""

    median: str
    spread: str
    over: str
    """The spread of the time of lanes divided by its own, over the rounds."""


@attrs.frozen
class Target:
    """What was wanted of a row, and what was measured."""

    measured: float
    limit: float
    said: str


@attrs.frozen
class Run:
    """One run of the benchmark: its machine, its tables by their rows, its targets."""

    head: dict[str, str]
    lines: dict[str, dict[str, Line]]
    targets: dict[tuple[str, str], Target]


@attrs.frozen
class Row:
    """A row with the medians of lanes and of its peers."""

    name: str
    what: str
    lanes: str
    peers: dict[str, str]
    cheapest: tuple[str, str]
    """The peer that takes the least of all in the table, and its median."""

    def of_lanes(self, median: str) -> str:
        """A median as a multiple of that of lanes."""
        return f"{_number(median) / _number(self.lanes):.2g}"


def runs() -> list[Run]:
    """The runs that the tables are of."""
    return [_run(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.md"))]


def _run(text: str) -> Run:
    head, *tables = text.split("\n## ")
    lines = {}
    for table in tables:
        if name := re.match(r"\((.+?)\)", table):
            cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.split("\n")]
            lines[name[1]] = {
                line[0]: Line(line[1], line[2], line[4])
                for line in cells
                if len(line) == 6 and re.match(r"[\d.,]+$", line[1])
            }
    targets = re.findall(r"^\| \((\S+)\) +\| (.*?) +\| (\S+) +\| (\S+) +\| (.*?) *\|$", text, re.M)
    return Run(
        dict(re.findall(r"^- (\w+): (.*)$", head, re.M)),
        lines,
        {
            (row, wanted): Target(float(measured), float(limit), said)
            for row, wanted, measured, limit, said in targets
        },
    )


def run_of(row: str) -> Run:
    """The run that has this row, of which there is one."""
    (run,) = [run for run in runs() if row in run.lines]
    return run


def read() -> list[Row]:
    """The eleven rows, as the tables have them."""
    rows = []
    for name, what, lanes, peers in ROWS:
        lines = run_of(name).lines[name]
        others = {
            peer: line.median
            for peer, line in lines.items()
            if not peer.startswith(OURS) and MICROTASK not in peer
        }
        least = min(others, key=lambda peer: _number(others[peer]))
        found = {NAMES[peer]: others[peer] for peer in peers}
        cheapest = NAMES.get(least, least), others[least]
        rows.append(Row(name, what, lines[lanes].median, found, cheapest))
    return rows


# ---- in Markdown


def rows_of(rows: list[Row]) -> str:
    """The table of the page on performance."""
    lines = ["| | | trio-lanes | others | the cheapest peer |", "|---|---|---|---|---|"]
    for row in rows:
        peers = ", ".join(f"{name} {median}" for name, median in row.peers.items())
        name, median = row.cheapest
        cheapest = f"{name}: {median}, {row.of_lanes(median)} of lanes"
        lines.append(f"| {row.name} | {row.what} | **{row.lanes}** | {peers} | {cheapest} |")
    return "\n".join(lines)


def runs_of(rows: list[Row]) -> str:
    """Which rows are of which run, and what it was measured on."""
    rows_by_run: dict[str, list[str]] = {}
    for name in [*(row.name for row in rows), *WATCHED]:
        head = run_of(name).head
        run = (
            f"{head['cpu']}, {head['cores']} cores, {head['python']}, commit {head['commit']}, "
            f"load at the start {head['load'].strip('[]').split(',')[0]}"
        )
        rows_by_run.setdefault(run, []).append(name)
    return "\n".join(f"* {', '.join(names)}: {run}." for run, names in rows_by_run.items())


def prices_of(rows: list[Row]) -> str:
    """The table of README."""
    by_hand = {NAMES[peer] for peer in BY_HAND}
    lines = [
        "| | trio-lanes | p-queue (Node) | by hand in Trio | the cheapest peer |",
        "|---|---|---|---|---|",
    ]
    for row in sorted(
        (row for row in rows if row.name in PRICES), key=lambda x: PRICES.index(x.name)
    ):
        hand = [f"{x} {row.of_lanes(row.peers[x])}" for x in row.peers if x in by_hand]
        name, median = row.cheapest
        lines.append(
            f"| {row.what.removesuffix(', µs')} | 1 ({row.lanes} µs) "
            f"| {row.of_lanes(row.peers[NAMES[P_QUEUE]])} | {', '.join(hand)} "
            f"| {name}: {row.of_lanes(median)} |"
        )
    return "\n".join(lines)


def burst(contender: str) -> tuple[str, str]:
    """What a watched burst takes, as a multiple of that without, and what was wanted."""
    run = run_of("k.burst")
    least, most = run.lines["k.burst"][contender].over.split("-")  # of lanes over it
    (target,) = [
        target for (_, text), target in run.targets.items() if text.startswith(WANTED[contender])
    ]
    measured = f"{target.measured:.2f} ({1 / float(most):.2f} to {1 / float(least):.2f})"
    return measured, f"at most {target.limit:.2f}{missed(target)}"


def missed(target: Target) -> str:
    """What is to be said of a target that was not met, or not in every round."""
    said = {
        "met": "",
        "NOT MET": "; not met",
        "met (but not in every round)": "; not in every round",
    }
    return said.get(target.said, "; not met, but in some rounds")


def watched() -> str:
    """What the monitor costs, in a table."""
    frame, memory = run_of("k.frame").lines["k.frame"], run_of("k.memory").lines["k.memory"]
    mounted, of_mounted = burst(MOUNTED)
    viewed, of_viewed = burst(VIEWED)
    return "\n".join(
        [
            "| | measured | wanted |",
            "|---|---|---|",
            "| a burst of 100,000 no-op jobs with the monitor mounted, no page open "
            f"| {mounted} of the time without | {of_mounted} |",
            f"| the same with one page open | {viewed} | {of_viewed} |",
            "| time for which a frame holds the loop, 100,000 jobs of 10,000 sessions waiting "
            f"| {frame[VIEWED].median} ms ({frame[VIEWED].spread.replace('-', ' to ')}) "
            f"| at most 3 ms{missed(run_of('k.frame').targets['k.frame', 'at most 3 ms'])} |",
            f"| memory that the monitor keeps then | {memory[VIEWED].median} MB "
            f"| at most 8 MB{missed(run_of('k.memory').targets['k.memory', 'at most 8 MB'])} |",
        ]
    )


def measured() -> str:
    """What the instrument for Prometheus costs, in a sentence."""
    return (
        f"A burst of no-op jobs takes {burst(METRICS)[0].replace(' (', ' of the time without (')}, "
        "by the [benchmark](../performance.md)."
    )


def pages(rows: list[Row]) -> dict[Path, str]:
    """The pages with figures, as they should be."""
    docs = ROOT / "docs"
    blocks = {
        docs / "performance.md": {"the rows": rows_of(rows), "the runs": runs_of(rows)},
        docs / "howto" / "monitor.md": {"the costs": watched()},
        docs / "howto" / "instruments.md": {"the costs": measured()},
        ROOT / "README.md": {"the price": prices_of(rows)},
    }
    found = {}
    for path, by_name in blocks.items():
        text = path.read_text("utf-8")
        for name, block in by_name.items():
            before, rest = text.split(f"<!-- {name} -->\n")
            text = f"{before}<!-- {name} -->\n{block}{rest[rest.index(chr(10) * 2) :]}"
        found[path] = text
    return found


# ---- in the picture


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
            f"<style>{STYLE}{DARK}</style>",
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
    for PAGE, TEXT in pages(ROWS_READ).items():
        PAGE.write_text(TEXT, encoding="utf-8")
