"""Draw the statuses of a run for the docs, from the table: `python -m tools.draw_run_status`.

On top stand the statuses in which a run lives, with an arrow for each way between them. Below,
each end has a line, and each of the former a line down with a dot for every end that it may reach.
Every way has a title, by which the tests compare the picture with the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tools.pictures import DARK
from trio_lanes.agents import RUN_TRANSITIONS, RunStatus

PICTURE: Final = Path(__file__).parents[1] / "docs" / "agents" / "run-status.svg"

BOX: Final = (150, 40)  # width and height
STEP: Final = 190  # from one box to the next
TOP: Final = 96  # of the boxes
LEFT: Final = 30
FIRST_END: Final = TOP + BOX[1] + 78
LINE: Final = 34  # from one end to the next

STYLE: Final = """
  text { font: 15px sans-serif; fill: #222; }
  .box { fill: #eef4fb; stroke: #35618e; stroke-width: 1.5; }
  .end { stroke: #c9c9c9; stroke-width: 1.5; }
  .down { stroke: #35618e; stroke-width: 1.5; }
  .dot { fill: #35618e; }
  .way { fill: none; stroke: #35618e; stroke-width: 1.5; marker-end: url(#arrow); }
"""


def draw(table: Mapping[RunStatus, frozenset[RunStatus]]) -> str:
    """The picture of ``table`` as SVG."""
    alive = [status for status in RunStatus if table[status]]
    ends = [status for status in RunStatus if not table[status]]
    bottom = FIRST_END + LINE * len(ends)
    right = LEFT + STEP * len(alive)
    parts = [
        f'<rect width="{right + 110}" height="{bottom}" fill="white"/>',
        *(_end(end, n, right) for n, end in enumerate(ends)),
    ]
    for place, status in enumerate(alive):
        parts += [_way(status, to, place, alive.index(to)) for to in alive if to in table[status]]
        parts += _down(status, place, [to for to in ends if to in table[status]], ends)
        parts.append(_box(status, place))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + 110} {bottom}" '
            f'width="{right + 110}" height="{bottom}" role="img">',
            "<title>Where a run may go from each status</title>",
            f"<style>{STYLE}{DARK}</style>",
            '<marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
            'markerHeight="8" orient="auto"><path d="M0,1 L10,5 L0,9 z" fill="#35618e"/></marker>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _middle(place: int) -> int:
    return LEFT + STEP * place + BOX[0] // 2


def _box(status: RunStatus, place: int) -> str:
    x, (width, height) = LEFT + STEP * place, BOX
    return (
        f'<rect class="box" x="{x}" y="{TOP}" width="{width}" height="{height}" rx="8"/>'
        f'<text x="{_middle(place)}" y="{TOP + 25}" text-anchor="middle">{status}</text>'
    )


def _end(status: RunStatus, n: int, right: int) -> str:
    y = FIRST_END + LINE * n
    return (
        f'<path class="end" d="M{_middle(0)},{y} H{right}"/>'
        f'<text x="{right + 10}" y="{y + 5}">{status}</text>'
    )


def _way(old: RunStatus, new: RunStatus, start: int, end: int) -> str:
    """Ahead over the boxes, back below them; to the next box straight."""
    bow = 24 * abs(end - start)
    if end == start + 1:
        y = TOP + BOX[1] // 2
        path = f"M{LEFT + STEP * start + BOX[0]},{y} H{LEFT + STEP * end}"
    elif end > start:
        x, to = _middle(start) + 14, _middle(end) - 14
        path = f"M{x},{TOP} C{x + 20},{TOP - bow} {to - 20},{TOP - bow} {to},{TOP}"
    else:
        y = TOP + BOX[1]
        x, to = _middle(start) - 24, _middle(end) + 24
        path = f"M{x},{y} C{x - 20},{y + bow} {to + 20},{y + bow} {to},{y}"
    return f'<path class="way" d="{path}"><title>{old} to {new}</title></path>'


def _down(
    status: RunStatus, place: int, reached: list[RunStatus], ends: list[RunStatus]
) -> list[str]:
    x = _middle(place)
    lines = [FIRST_END + LINE * ends.index(end) for end in reached]
    return [
        f'<path class="down" d="M{x},{TOP + BOX[1]} V{max(lines)}"/>',
        *(
            f'<circle class="dot" cx="{x}" cy="{y}" r="5"><title>{status} to {end}</title></circle>'
            for y, end in zip(lines, reached, strict=True)
        ),
    ]


if __name__ == "__main__":
    PICTURE.write_text(draw(RUN_TRANSITIONS), "utf-8")
