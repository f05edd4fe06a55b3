"""Rings of records of ended jobs, and the times at which running jobs lost or regained a slot.

A record is a tuple, never a job: a job that has ended is not kept alive. Between two frames, and in
a second without one, the ring takes at most `MAX_NEW` records; then its hook is removed until then,
so that a burst of short jobs pays for it no longer. What was left out is in the statistics of the
lanes. Jobs that failed have a ring of their own, so that they stay when many others succeed.
"""

from __future__ import annotations

import math
import traceback
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any, Final, NamedTuple, final

import outcome
import trio

from trio_lanes import Job, JobState, LaneInstrument, Lanes, context_free

from ..replay._capture import RunFacts, facts_of
from ._notes import clipped

MAX_NEW: Final = 100
MAX_RECORDS: Final = 4000
MAX_FAILURES: Final = 1000
_MAX_TRACES: Final = 60
_LONGEST_TRACE: Final = 6000  # characters, of the end
_DEEPEST_TRACE: Final = 20  # calls
_MAX_TRACKED: Final = 2000

Step = tuple[float, str]
"""A time, and the state that began: ``lent``, ``wanted``, ``held`` or ``cancelling``."""


class EndedRun(NamedTuple):
    """A job that has ended."""

    seq: int
    run: RunFacts
    steps: tuple[Step, ...]
    """Also its cancellation, which is no state of its slot."""
    error: str
    """The name of the type of its error, or an empty string."""
    text: str
    waits: Mapping[str, float]
    """`Job.waits`: seconds by cause, with ``wait_accounting``."""

    @property
    def waited(self) -> float:
        """Seconds from its submission to its start."""
        return 0.0 if self.run.started is None else self.run.started - self.run.submitted


@final
class Records:
    """The ring, and the instruments that fill it while viewers look."""

    def __init__(self, lanes: Lanes) -> None:
        self.ring: Final[deque[EndedRun]] = deque(maxlen=MAX_RECORDS)
        self.failures: Final[deque[EndedRun]] = deque(maxlen=MAX_FAILURES)
        self.traces: Final[dict[tuple[str, str], tuple[float, str]]] = {}
        """{(error, name of the job): (when, the last traceback)}"""
        self.last = 0
        """The number of the last record."""
        self.steps: Final[dict[int, list[Step]]] = {}
        """{id of a job that has not ended: its steps}"""
        self.since = math.inf
        """Since when each job that has ended is in the ring with all of its steps, or has left it
        for a later one; infinity while no viewer looks."""
        self._lanes: Final = lanes
        self._left = MAX_NEW
        self._ends: Final = _Ends(self)
        self._slots: Final = _Slots(self)
        self._listens = self._looks = False
        self.next_frame()

    def look(self) -> None:
        """Begin to record the steps of jobs as well: a viewer looks."""
        if not self._looks:
            self._looks = True
            self._lanes.add_instrument(self._slots)
            self.since = trio.current_time()
            self.next_frame()

    def look_away(self) -> None:
        """Record no steps: no viewer looks."""
        self._looks = False
        self.since = math.inf
        _remove(self._lanes, self._slots)
        self.steps.clear()

    def next_frame(self) -> None:
        """Take up to `MAX_NEW` records again."""
        self._left = MAX_NEW
        if not self._listens:
            self._listens = True
            if self._looks:
                self.since = trio.current_time()
            self._lanes.add_instrument(self._ends)

    def after(self, seq: int) -> Iterable[EndedRun]:
        """Return the records that came after number ``seq``, the newest first."""
        return takewhile(lambda record: record.seq > seq, reversed(self.ring))

    def _mute(self) -> None:
        self.since = math.inf
        self._listens = False
        _remove(self._lanes, self._ends)

    def add(self, job: Job[Any]) -> None:
        """Record ``job``, which has ended."""
        run = facts_of(job, _parent(job), tuple(self.slots(job.id)))
        steps = self.steps.pop(job.id, ())
        self.last += 1
        error = job.outcome.error if isinstance(job.outcome, outcome.Error) else None
        kind = "" if error is None else clipped(type(error).__name__)
        text = "" if error is None else _said(error)
        record = EndedRun(self.last, run, tuple(steps), kind, text, job.waits)
        self.ring.append(record)
        if error is not None and job.state is JobState.FAILED:
            self.failures.append(record)
            self._trace((kind, run.name), error)
        self._left -= 1
        if self._left <= 0:
            self._mute()

    def _trace(self, key: tuple[str, str], error: BaseException) -> None:
        """Keep the traceback of ``error``, unless there is one that is less than a second old."""
        now = trio.current_time()
        if key not in self.traces or self.traces[key][0] <= now - 1:
            self.traces.pop(key, None)
            lines = traceback.format_exception(error, limit=-_DEEPEST_TRACE)
            self.traces[key] = now, clipped("".join(lines)[-_LONGEST_TRACE:], _LONGEST_TRACE)
            if len(self.traces) > _MAX_TRACES:
                del self.traces[next(iter(self.traces))]

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


def _said(error: BaseException) -> str:
    try:
        return clipped(error)
    except Exception:
        return "its text cannot be had"


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
