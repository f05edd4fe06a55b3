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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any, Final, NamedTuple, final

import outcome
import trio

from trio_lanes import Job, JobState, LaneInstrument, Lanes, context_free

from ..replay._capture import RunFacts, facts_of
from ._shown import clipped

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
class SlotSteps(LaneInstrument):
    """The times at which running jobs lost or regained a slot, or were cancelled."""

    def __init__(self) -> None:
        self._steps: Final[dict[int, list[Step]]] = {}  # {id of a job that has not ended: steps}

    def of(self, id: int) -> Sequence[Step]:
        """Return the steps of a job that has not ended."""
        return self._steps.get(id, ())

    def of_slot(self, id: int) -> tuple[Step, ...]:
        """Return those that are states of its slot."""
        return tuple(step for step in self.of(id) if step[1] != "cancelling")

    def see(self, job: Job[Any]) -> None:
        """A frame shows ``job``, which runs. No hook tells when a job wants a lent slot back."""
        if job.slot == "wanted" and [state for _, state in self.of_slot(job.id)][-1:] != ["wanted"]:
            self._add(job, "wanted")

    def forget(self, id: int) -> None:
        """Forget a job, which has ended."""
        self._steps.pop(id, None)

    def clear(self) -> None:
        """Forget all jobs."""
        self._steps.clear()

    def _add(self, job: Job[Any], state: str) -> None:
        if job.id not in self._steps and len(self._steps) >= _MAX_TRACKED:
            self._steps.pop(next(iter(self._steps)))
        self._steps.setdefault(job.id, []).append((trio.current_time(), state))

    # ---- hooks

    def job_lent(self, job: Job[Any]) -> None:
        self._add(job, "lent")

    def job_readmitted(self, job: Job[Any]) -> None:
        self._add(job, "wanted")

    def job_regained(self, job: Job[Any]) -> None:
        self._add(job, "held")

    def job_cancel_called(self, job: Job[Any], reason: str | None) -> None:
        self._add(job, "cancelling")


@final
class Records(LaneInstrument):
    """The rings, and the hook that fills them while it is added to the lanes."""

    def __init__(self, lanes: Lanes) -> None:
        self.ring: Final[deque[EndedRun]] = deque(maxlen=MAX_RECORDS)
        self.failures: Final[deque[EndedRun]] = deque(maxlen=MAX_FAILURES)
        self.traces: Final[dict[tuple[str, str], tuple[float, str]]] = {}
        """{(error, name of the job): (when, the last traceback)}"""
        self.last = 0
        """The number of the last record."""
        self.steps: Final = SlotSteps()
        """Of jobs that have not ended, while a viewer looks."""
        self.since = math.inf
        """Since when each job that has ended is in the ring with all of its steps, or has left it
        for a later one; infinity while no viewer looks."""
        self._lanes: Final = lanes
        self._left = MAX_NEW
        self._listens = self._looks = False
        self.next_frame()

    def look(self) -> None:
        """Begin to record the steps of jobs as well: a viewer looks."""
        if not self._looks:
            self._looks = True
            self._lanes.add_instrument(self.steps)
            self.since = trio.current_time()
            self.next_frame()

    def look_away(self) -> None:
        """Record no steps: no viewer looks."""
        self._looks = False
        self.since = math.inf
        _remove(self._lanes, self.steps)
        self.steps.clear()

    def next_frame(self) -> None:
        """Take up to `MAX_NEW` records again."""
        self._left = MAX_NEW
        if not self._listens:
            self._listens = True
            if self._looks:
                self.since = trio.current_time()
            self._lanes.add_instrument(self)

    def after(self, seq: int) -> Iterable[EndedRun]:
        """Return the records that came after number ``seq``, the newest first."""
        return takewhile(lambda record: record.seq > seq, reversed(self.ring))

    @context_free
    def job_finished(self, job: Job[Any]) -> None:
        parent = None if job.parent is None else job.parent.id
        run = facts_of(job, parent, self.steps.of_slot(job.id))
        steps = tuple(self.steps.of(job.id))
        self.steps.forget(job.id)
        self.last += 1
        error = job.outcome.error if isinstance(job.outcome, outcome.Error) else None
        kind = "" if error is None else clipped(type(error).__name__)
        text = "" if error is None else _said(error)
        record = EndedRun(self.last, run, steps, kind, text, job.waits)
        self.ring.append(record)
        if error is not None and job.state is JobState.FAILED:
            self.failures.append(record)
            self._trace((kind, run.name), error)
        self._left -= 1
        if self._left <= 0:
            self.since = math.inf
            self._listens = False
            _remove(self._lanes, self)

    def _trace(self, key: tuple[str, str], error: BaseException) -> None:
        """Keep the traceback of ``error``, unless there is one that is less than a second old."""
        now = trio.current_time()
        if key not in self.traces or self.traces[key][0] <= now - 1:
            self.traces.pop(key, None)
            lines = traceback.format_exception(error, limit=-_DEEPEST_TRACE)
            self.traces[key] = now, clipped("".join(lines)[-_LONGEST_TRACE:], _LONGEST_TRACE)
            if len(self.traces) > _MAX_TRACES:
                del self.traces[next(iter(self.traces))]


def _said(error: BaseException) -> str:
    try:
        return clipped(error)
    except Exception:
        return "its text cannot be had"


def _remove(lanes: Lanes, instrument: LaneInstrument) -> None:
    with suppress(KeyError):  # a hook of it has raised, which was logged
        lanes.remove_instrument(instrument)
