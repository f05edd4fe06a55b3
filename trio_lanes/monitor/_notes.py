"""What an operator should notice: events of lanes that no number shows, newest last.

The hooks here are called for rare events only, so a monitor keeps them while no viewer looks.
"""

from __future__ import annotations

import time
from collections import deque
from contextvars import ContextVar
from itertools import islice
from typing import Any, Final, Literal, TypedDict, final

import trio

from trio_lanes import Job, Lane, LaneDeadlockError, LaneInstrument, Lanes, SessionLane

from ._shown import clipped

MAX_NOTES: Final = 400
_MAX_SHOWN: Final = 60  # in a frame
MAX_NOTE_LENGTH: Final = 400  # characters of a text
_TOGETHER: Final = 10.0  # seconds in which equal refusals are one note

actor: Final[ContextVar[str]] = ContextVar("actor", default="")
"""Who acts by the page, while that is done."""

Level = Literal["info", "warning", "error"]


class Note(TypedDict):
    """One line of the list."""

    seq: int
    at: float
    """On Trio's clock."""
    wall: float
    """On the clock of the machine, in seconds since 1970."""
    level: Level
    kind: str
    lane: str
    """The name of a lane, or an empty string."""
    job: int | None
    text: str
    count: int


@final
class Notes(LaneInstrument):
    """An instrument that keeps the last notes."""

    def __init__(self, lanes: Lanes) -> None:
        self.notes: Final[deque[Note]] = deque(maxlen=MAX_NOTES)
        self.closing = False
        """Whether the lanes take no new work."""
        self._seq = 0
        self._limits: Final[dict[str, float]] = {
            name: lane.concurrency for name, lane in lanes.statistics().lanes.items()
        }

    def last(self) -> list[Note]:
        """Return the notes of a frame."""
        return [*islice(reversed(self.notes), _MAX_SHOWN)][::-1]

    def add(self, level: Level, kind: str, lane: str, text: str, job: int | None = None) -> None:
        """Add a note, or count it with the last if it says the same. It says who has acted."""
        by = f" (by {actor.get()})" if actor.get() else ""
        now, text = trio.current_time(), clipped(text, MAX_NOTE_LENGTH) + by
        self._seq += 1
        if self.notes:
            last = self.notes[-1]
            same = (last["kind"], last["lane"], last["text"]) == (kind, lane, text)
            if same and now - last["at"] < _TOGETHER:
                last["count"] += 1
                last["seq"] = self._seq
                return
        self.notes.append(
            Note(
                seq=self._seq,
                at=now,
                wall=time.time(),
                level=level,
                kind=kind,
                lane=clipped(lane),
                job=job,
                text=text,
                count=1,
            )
        )

    # ---- hooks

    def job_overdue(self, job: Job[Any], since: float) -> None:
        text = f"job {job.id} {clipped(job.name)} still runs {since:.0f} s after it was to end"
        self.add("error", "overdue", job.lane, text, job.id)

    def lane_paused(self, lane: Lane | SessionLane) -> None:
        until = lane.statistics().paused_until
        what = "is paused until it is resumed"
        if until is not None:
            what = f"is paused for {until - trio.current_time():.3g} s"
        self.add("warning", "paused", lane.name, f"{lane.name} {what}")

    def lane_resumed(self, lane: Lane | SessionLane) -> None:
        self.add("info", "resumed", lane.name, f"{lane.name} starts jobs again")

    def lane_cleared(self, lane: Lane | SessionLane, count: int, reason: str | None) -> None:
        why = "" if reason is None else f": {reason}"
        self.add("warning", "cleared", lane.name, f"{lane.name} was cleared of {count} jobs{why}")

    def lane_reset(self, lane: Lane | SessionLane, abandoned: int) -> None:
        text = f"{lane.name} was reset, and {abandoned} running jobs were given up"
        self.add("error", "reset", lane.name, text)

    def lane_configured(self, lane: Lane | SessionLane) -> None:
        if isinstance(lane, SessionLane):
            return
        limit, old = lane.concurrency, self._limits.get(lane.name)
        self._limits[lane.name] = limit
        if old is None:
            text = f"{lane.name} is new, limit {limit}"
        elif old == limit:
            text = f"{lane.name} has another configuration"
        else:
            text = f"{lane.name} {old} → {limit}"
        self.add("info", "limit", lane.name, text)

    def job_rejected(self, lane: Lane | SessionLane, reason: Literal["full", "closed"]) -> None:
        why = "it is full" if reason == "full" else "the lanes are closed"
        self.add("error", "rejected", lane.name, f"a submission to {lane.name} was refused: {why}")

    def deadlock_refused(self, error: LaneDeadlockError) -> None:
        self.add("error", "deadlock", "", f"deadlock refused: {error}")

    def lanes_closing(self, reason: str, retry_after: float | None) -> None:
        self.closing = True
        self.add("warning", "closing", "", f"the lanes take no new work: {reason}")
