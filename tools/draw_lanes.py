"""Draw sessions and slots in motion, from a recorded run: `python -m tools.draw_lanes`.

Each job is a box that moves: it waits in the row of its session, is in a slot while it runs, and
leaves to the right. The picture is an SVG whose animation is CSS, so that it moves wherever an
image may, without a script.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs
import trio
from trio.testing import MockClock

from tools.pictures import DARK
from trio_lanes import Job, open_lanes

PICTURE: Final = Path(__file__).parents[1] / "docs" / "lanes.svg"

SLOTS: Final = 2
QUESTIONS: Final = (  # user, question, seconds
    ("ann", "one", 3),
    ("ann", "two", 3),
    ("ann", "three", 2),
    ("bob", "one", 4),
    ("bob", "two", 2),
    ("eve", "one", 3),
    ("kim", "one", 2),
)
COLOURS: Final = {"ann": "#35618e", "bob": "#8e5a35", "eve": "#4d7d3b", "kim": "#79427f"}

BEFORE, AFTER = 0.8, 1.2  # seconds in which nothing moves, at both ends of the loop
MOVE: Final = 0.35  # seconds of a move
BOX: Final = (62, 30)
ROW: Final = 46
TOP: Final = 62
WAIT_X: Final = 236  # of the first in the row of a session; the others stand to its left
SLOT_X: Final = 372
GONE_X: Final = 560
WIDTH: Final = 640

STYLE: Final = """
  text { font: 14px system-ui, sans-serif; fill: #333; }
  .in { fill: #fff; text-anchor: middle; }
  .small { font-size: 12px; fill: #666; }
  .slot { fill: none; stroke: #888; stroke-width: 1.5; stroke-dasharray: 5 4; }
  .row { stroke: #ddd; }
  @media (prefers-reduced-motion: reduce) { g { animation-play-state: paused; } }
"""


@attrs.frozen
class Drawn:
    """What a job did: when, and in which slot."""

    user: str
    question: str
    place: int
    """How many jobs of its session were submitted before it."""
    started: float
    ended: float
    slot: int


def record() -> list[Drawn]:
    """Run the questions through lanes on virtual time, and return what each job did."""

    async def main() -> list[Job[None]]:
        async with open_lanes({"main": SLOTS}) as lanes:
            return [
                lanes.submit_nowait(trio.sleep, seconds, session=user)
                for user, _, seconds in QUESTIONS
            ]

    jobs = trio.run(main, clock=MockClock(autojump_threshold=0))
    drawn: list[Drawn] = []
    for (user, question, _), job in sorted(
        zip(QUESTIONS, jobs, strict=True), key=lambda pair: pair[1].started_at or 0.0
    ):
        assert job.started_at is not None
        assert job.finished_at is not None
        started, ended = job.started_at - job.submitted_at, job.finished_at - job.submitted_at
        taken = {one.slot for one in drawn if one.ended > started}
        slot = next(slot for slot in range(SLOTS) if slot not in taken)
        place = sum(one.user == user for one in drawn)
        drawn.append(Drawn(user, question, place, started, ended, slot))
    return drawn


def draw(jobs: list[Drawn]) -> str:
    """The picture of ``jobs`` as SVG."""
    users = list(COLOURS)
    height = TOP + ROW * len(users) + 14
    length = BEFORE + max(job.ended for job in jobs) + AFTER
    parts = [f'<rect width="{WIDTH}" height="{height}" rx="8" fill="white"/>']
    parts += [
        '<text x="20" y="30">sessions: in order, one at a time</text>',
        f'<text x="{SLOT_X - 12}" y="30">lane "main": {SLOTS} slots</text>',
        f'<text class="small" x="{GONE_X + 8}" y="30">answered</text>',
    ]
    for row, user in enumerate(users):
        y = TOP + ROW * row
        parts.append(f'<text x="20" y="{y + 20}">{user}</text>')
        parts.append(f'<path class="row" d="M60,{y + 36} H{WAIT_X + BOX[0]}"/>')
    for slot in range(SLOTS):
        slot_y = _slot_y(slot, height)
        parts.append(
            f'<rect class="slot" x="{SLOT_X - 6}" y="{slot_y - 6:g}" width="{BOX[0] + 12}" '
            f'height="{BOX[1] + 12}" rx="8"/>'
        )
    rules = []
    for number, job in enumerate(jobs):
        rules.append(_keyframes(number, job, jobs, users.index(job.user), height, length))
        rules.append(f"  #j{number} {{ animation: m{number} {length:g}s linear infinite; }}")
        parts.append(
            f'<g id="j{number}"><title>{job.user}: {job.question}, from {job.started:g} s to '
            f'{job.ended:g} s</title><rect width="{BOX[0]}" height="{BOX[1]}" rx="6" '
            f'fill="{COLOURS[job.user]}"/><text class="in" x="{BOX[0] // 2}" y="20">'
            f"{job.question}</text></g>"
        )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img">',
            "<title>Jobs wait in the row of their session, and run in the slots of a lane</title>",
            f"<style>{STYLE}{DARK}{chr(10).join(rules)}</style>",
            *parts,
            "</svg>",
            "",
        ]
    )


def _slot_y(slot: int, height: int) -> float:
    middle = (TOP + height - 14) / 2
    return middle + (slot - SLOTS / 2) * (BOX[1] + 26) + 13


def _keyframes(
    number: int, job: Drawn, jobs: list[Drawn], row: int, height: int, length: float
) -> str:
    """The way of a job: towards the head of its session, to its slot, and out."""
    y = TOP + ROW * row
    stops: list[tuple[float, float, float, float]] = []  # seconds, x, y, opacity

    def stay(until: float) -> None:
        stops.append((until, *stops[-1][1:]))

    def move(at: float, x: float, to_y: float, opacity: float = 1) -> None:
        stay(BEFORE + at)
        stops.append((BEFORE + at + MOVE, x, to_y, opacity))

    stops.append((0, WAIT_X - job.place * (BOX[0] + 8), y, 1))
    before = sorted(one.started for one in jobs if one.user == job.user and one.place < job.place)
    for gone, started in enumerate(before, 1):
        move(started, WAIT_X - (job.place - gone) * (BOX[0] + 8), y)
    move(job.started, SLOT_X, _slot_y(job.slot, height))
    # it has left the slot when the next one comes
    stay(BEFORE + job.ended - MOVE / 2)
    stops.append((BEFORE + job.ended + MOVE / 2, GONE_X, _slot_y(job.slot, height), 0))
    stay(length)
    frames = " ".join(
        f"{100 * at / length:.2f}% "
        f"{{ transform: translate({x:g}px,{to_y:g}px); opacity: {opacity}; }}"
        for at, x, to_y, opacity in stops
    )
    return f"  @keyframes m{number} {{ {frames} }}"


if __name__ == "__main__":
    PICTURE.write_text(draw(record()), encoding="utf-8")
    print(PICTURE)
