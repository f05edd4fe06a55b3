"""A ring of records of ended jobs, and the times at which running jobs lost or regained a slot.

A record is a tuple, never a job: a job that has ended is not kept alive. Between two frames the
ring takes at most `MAX_NEW` records; then its hook is removed until the next frame, so that a burst
of short jobs pays for it no longer. What was left out is in the statistics of the lanes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from itertools import takewhile
from typing import Any, Final, NamedTuple, final

import trio

from trio_lanes import Job, LaneInstrument, Lanes, context_free

from ..replay._capture import RunFacts, facts_of

MAX_NEW: Final = 100
MAX_RECORDS: Final = 4000
_MAX_TRACKED: Final = 2000

Step = tuple[float, str]
"""A time, and the state that began: ``lent``, ``wanted``, ``held`` or ``cancelling``."""


class EndedRun(NamedTuple):
    """A job that has ended."""

    seq: int
    run: RunFacts
    steps: tuple[Step, ...]
    """Also its cancellation, which is no state of its slot."""

    @property
    def waited(self) -> float:
        """Seconds from its submission to its start."""
        return 0.0 if self.run.started is None else self.run.started - self.run.submitted


@final
class Records:
    """The ring, and the instruments that fill it while viewers look."""

    def __init__(self, lanes: Lanes) -> None:
        self.ring: Final[deque[EndedRun]] = deque(maxlen=MAX_RECORDS)
        self.last = 0
        """The number of the last record."""
        self.steps: Final[dict[int, list[Step]]] = {}
        """{id of a job that has not ended: its steps}"""
        self.since = math.inf
        """Since when each job that has ended is in the ring, or has left it for a later one."""
        self._lanes: Final = lanes
        self._left = MAX_NEW
        self._ends: Final = _Ends(self)
        self._slots: Final = _Slots(self)
        self._listens = self._looks = False

    def look(self) -> None:
        """Begin to record: a viewer looks."""
        if not self._looks:
            self._looks = True
            self._lanes.add_instrument(self._slots)
            self.next_frame()

    def look_away(self) -> None:
        """Record nothing: no viewer looks."""
        self._looks = False
        self._mute()
        _remove(self._lanes, self._slots)
        self.steps.clear()

    def next_frame(self) -> None:
        """Take up to `MAX_NEW` records again."""
        self._left = MAX_NEW
        if self._looks and not self._listens:
            self._listens = True
            self.since = trio.current_time()
            self._lanes.add_instrument(self._ends)

    def after(self, seq: int) -> Iterable[EndedRun]:
        """Return the records that came after number ``seq``, the newest first."""
        return takewhile(lambda record: record.seq > seq, reversed(self.ring))

    def _mute(self) -> None:
        self.since = math.inf
        if self._listens:
            self._listens = False
            _remove(self._lanes, self._ends)

    def add(self, job: Job[Any]) -> None:
        """Record ``job``, which has ended."""
        run = facts_of(job, _parent(job), tuple(self.slots(job.id)))
        steps = self.steps.pop(job.id, ())
        self.last += 1
        self.ring.append(EndedRun(self.last, run, tuple(steps)))
        self._left -= 1
        if self._left <= 0:
            self._mute()

    def slots(self, id: int) -> Iterable[Step]:
        """Yield the states of the slot of a job that has not ended."""
        return [step for step in self.steps.get(id, ()) if step[1] != "cancelling"]

    def see(self, job: Job[Any]) -> None:
        """A frame shows ``job``, which runs. No hook tells when a job wants a lent slot back."""
        if job.slot == "wanted":
            steps = [*self.slots(job.id)]
            if not steps or steps[-1][1] != "wanted":
                self.step(job, "wanted")

    def step(self, job: Job[Any], state: str) -> None:
        """``job``, which runs, is in ``state`` from now on."""
        if job.id not in self.steps and len(self.steps) >= _MAX_TRACKED:
            self.steps.pop(next(iter(self.steps)))
        self.steps.setdefault(job.id, []).append((trio.current_time(), state))


def _parent(job: Job[Any]) -> int | None:
    parent = job.parent
    return None if parent is None else parent.id


def _remove(lanes: Lanes, instrument: LaneInstrument) -> None:
    try:
        lanes.remove_instrument(instrument)
    except KeyError:  # a hook of it has raised, which was logged
        pass


@final
class _Ends(LaneInstrument):
    def __init__(self, records: Records) -> None:
        self._records: Final = records

    @context_free
    def job_finished(self, job: Job[Any]) -> None:
        self._records.add(job)


@final
class _Slots(LaneInstrument):
    def __init__(self, records: Records) -> None:
        self._records: Final = records

    def job_lent(self, job: Job[Any]) -> None:
        self._records.step(job, "lent")

    def job_readmitted(self, job: Job[Any]) -> None:
        self._records.step(job, "wanted")

    def job_regained(self, job: Job[Any]) -> None:
        self._records.step(job, "held")

    def job_cancel_called(self, job: Job[Any], reason: str | None) -> None:
        self._records.step(job, "cancelling")
