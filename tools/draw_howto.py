"""Draw when the jobs of examples waited and ran, from recorded runs: `python -m tools.draw_howto`.

Each job of the run has a row: a pale bar while it waits, a full bar while it runs, in the colour
of its lane. The pictures stand on the how-to pages, beneath what the example prints.
"""

from __future__ import annotations

import contextlib
import io
import runpy
from html import escape
from pathlib import Path
from typing import Any, Final
from unittest import mock

import trio
from trio.testing import MockClock

import trio_lanes
from tools.pictures import DARK
from trio_lanes import Job, JobState, LaneInstrument

ROOT: Final = Path(__file__).parents[1]
PICTURES: Final = ROOT / "docs" / "howto"
DRAWN: Final = (
    "coalesce",
    "drain",
    "fairness",
    "groups",
    "rate_limits",
    "session_state",
    "templates",
    "tenants",
    "timeouts",
)

WIDTH, LABELS, ROW, TOP = 460, 120, 22, 12
BARS: Final = WIDTH - LABELS - 20
COLOURS: Final = ("#35618e", "#8e5a35", "#4d7d3b", "#79427f", "#9a3b4f", "#3b8a8a")
STYLE: Final = (
    "text { font: 12px system-ui, sans-serif; fill: #333; } .axis { fill: #666; } "
    ".line { stroke: #e2e2e2; }"
)


class Jobs(LaneInstrument):
    """Keeps the jobs that were submitted."""

    def __init__(self) -> None:
        self.submitted: list[Job[Any]] = []

    def job_submitted(self, job: Job[Any]) -> None:
        self.submitted.append(job)


def record(example: str) -> list[Job[Any]]:
    """Run an example on virtual time, and return its jobs in the order of their submission."""
    jobs, open_lanes = Jobs(), trio_lanes.open_lanes

    def open_recorded(*args: Any, instruments: Any = (), **options: Any) -> Any:
        return open_lanes(*args, instruments=[*instruments, jobs], **options)

    with mock.patch.object(trio_lanes, "open_lanes", open_recorded):
        program = runpy.run_path(str(ROOT / "examples" / "howto" / f"{example}.py"))
        with contextlib.redirect_stdout(io.StringIO()):
            trio.run(program["main"], clock=MockClock(autojump_threshold=0))
    return jobs.submitted


def draw(jobs: list[Job[Any]]) -> str:
    """The picture of ``jobs`` as SVG."""
    begin = min(job.submitted_at for job in jobs)
    length = max(job.finished_at or 0.0 for job in jobs) - begin
    lanes = list(dict.fromkeys(job.lane for job in jobs))
    bottom = TOP + ROW * len(jobs)
    scale = BARS / length
    parts = []
    for seconds in _ticks(length):
        x = LABELS + seconds * scale
        parts += [
            f'<path class="line" d="M{x:.1f},{TOP - 4} V{bottom}"/>',
            f'<text class="axis" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">'
            f"{seconds:g} s</text>",
        ]
    for row, job in enumerate(jobs):
        y = TOP + ROW * row
        colour = COLOURS[lanes.index(job.lane) % len(COLOURS)]
        began, started, ended = (
            LABELS + (moment - begin) * scale
            for moment in (
                job.submitted_at,
                job.started_at if job.started_at is not None else job.finished_at,
                job.finished_at,
            )
            if moment is not None
        )
        parts += [
            f'<text x="8" y="{y + 14}">{escape(_label(row + 1, job))}</text>',
            f'<rect x="{began:.1f}" y="{y + 5}" width="{started - began:.1f}" height="9" '
            f'fill="{colour}" opacity="0.3"><title>waits</title></rect>',
            f'<rect x="{started:.1f}" y="{y + 2}" width="{ended - started:.1f}" height="15" rx="2" '
            f'fill="{colour}"><title>runs in {escape(job.lane)}</title></rect>',
        ]
        if job.state is not JobState.SUCCEEDED:
            parts.append(f'<text x="{ended + 4:.1f}" y="{y + 14}">✗</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 26}" '
            f'width="{WIDTH}" height="{bottom + 26}" role="img">',
            "<title>When each job waited (pale) and ran (full)</title>",
            f"<style>{STYLE}{DARK}</style>",
            f'<rect width="{WIDTH}" height="{bottom + 26}" rx="8" fill="white"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _label(number: int, job: Job[Any]) -> str:
    whose = job.session or (job.owner if isinstance(job.owner, str) else None) or job.lane
    return f"{number}  {whose}"


def _ticks(length: float) -> list[float]:
    step = next(step for step in (0.5, 1, 2, 5, 10, 20, 60, 600) if length / step <= 10)
    return [step * n for n in range(int(length / step) + 1)]


if __name__ == "__main__":
    for example in DRAWN:
        picture = PICTURES / f"{example}.svg"
        picture.write_text(draw(record(example)), encoding="utf-8")
        print(picture.name)
