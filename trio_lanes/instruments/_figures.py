"""What lanes do, in figures: how many jobs wait, run and end in which way, and how long it takes.

They are kept apart by the label of a lane and, where jobs end, by how they do. Both come from a
bounded set, so that nobody's metrics grow with sessions, users or errors.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final, Literal, NamedTuple

from .._actors.job import AnyJob
from .._actors.state import CANCELLED, SUCCEEDED
from .._config.errors import (
    JobTimeoutError,
    LaneClearedError,
    LaneResetError,
    LanesClosedError,
    QueueTimeoutError,
)
from .._instrument import LaneInstrument
from .._views import Lane, SessionLane
from ._labels import job_label, lane_label


class Figure(NamedTuple):
    """One thing that is counted or measured."""

    name: str
    kind: Literal["level", "count", "seconds"]
    says: str
    by_outcome: bool = False


WAITING: Final = Figure("jobs.waiting", "level", "Jobs that have not started.")
RUNNING: Final = Figure("jobs.running", "level", "Jobs that run.")
SUBMITTED: Final = Figure("jobs.submitted", "count", "Jobs that were submitted.")
FINISHED: Final = Figure("jobs.finished", "count", "Jobs that have settled.", by_outcome=True)
WAIT: Final = Figure("job.wait", "seconds", "How long jobs waited for their start.")
RUN: Final = Figure("job.run", "seconds", "How long jobs ran until they settled.")
WAITING_LONG: Final = Figure("jobs.waiting_long", "count", "Jobs that waited beyond warn_after.")
OVERDUE: Final = Figure("jobs.overdue", "count", "Bodies that outlived their cancellation.")
ABANDONED: Final = Figure("jobs.abandoned", "count", "Running jobs that were given up by a reset.")
PAUSED: Final = Figure("lanes.paused", "count", "How often a lane was paused.")
RATE_LIMITED: Final = Figure("lanes.rate_limited", "count", "How often a rate was waited for.")

FIGURES: Final = (
    WAITING,
    RUNNING,
    SUBMITTED,
    FINISHED,
    WAIT,
    RUN,
    WAITING_LONG,
    OVERDUE,
    ABANDONED,
    PAUSED,
    RATE_LIMITED,
)

_CANCELLED_BY: Final = (
    (LaneClearedError, "cleared"),
    (LaneResetError, "reset"),
    (QueueTimeoutError, "queue_timeout"),
    (LanesClosedError, "closed"),
)


def outcome(job: AnyJob) -> str:
    """How ``job``, which has settled, has ended, in a word. It does not count as looking."""
    error = job._error
    if job._state is SUCCEEDED:
        return "succeeded"
    if job._state is CANCELLED:
        return next((word for kind, word in _CANCELLED_BY if isinstance(error, kind)), "cancelled")
    # Only a body leaves a traceback: it may have raised such an error of another job's.
    if isinstance(error, JobTimeoutError) and job._traceback is None:
        return error.kind
    return "failed"


class LaneFigures(LaneInstrument):
    """Tells each figure when it changes; whoever inherits from this says where to."""

    def __init__(self) -> None:
        # Until they have settled. A lane's label changes if it gets a configuration of its own,
        # and what went up under one must not go down under another.
        self._labels: Final[dict[AnyJob, str]] = {}

    @abstractmethod
    def _tell(self, figure: Figure, amount: float, lane: str, outcome: str | None = None) -> None:
        """``figure`` of ``lane`` has changed by, or has one more of, ``amount``."""

    def job_submitted(self, job: AnyJob) -> None:
        """A hook; see `LaneInstrument`."""
        lane = self._label(job)
        self._tell(SUBMITTED, 1, lane)
        self._tell(WAITING, 1, lane)

    def job_started(self, job: AnyJob) -> None:
        """A hook; see `LaneInstrument`."""
        lane = self._label(job)
        assert job.started_at is not None
        self._tell(WAITING, -1, lane)
        self._tell(RUNNING, 1, lane)
        self._tell(WAIT, job.started_at - job._waiting_since, lane)

    def job_finished(self, job: AnyJob) -> None:
        """A hook; see `LaneInstrument`."""
        lane = self._label(job)
        if job.started_at is None:
            self._tell(WAITING, -1, lane)
        else:
            assert job.finished_at is not None
            self._tell(RUNNING, -1, lane)
            self._tell(RUN, job.finished_at - job.started_at, lane)
        self._tell(FINISHED, 1, lane, outcome(job))

    def job_waiting_long(self, job: AnyJob, waited: float) -> None:
        """A hook; see `LaneInstrument`."""
        self._tell(WAITING_LONG, 1, job_label(job))

    def job_overdue(self, job: AnyJob, since: float) -> None:
        """A hook; see `LaneInstrument`."""
        self._tell(OVERDUE, 1, job_label(job))

    def lane_reset(self, lane: Lane | SessionLane, abandoned: int) -> None:
        """A hook; see `LaneInstrument`."""
        self._tell(ABANDONED, abandoned, lane_label(lane))

    def lane_paused(self, lane: Lane | SessionLane) -> None:
        """A hook; see `LaneInstrument`."""
        self._tell(PAUSED, 1, lane_label(lane))

    def lane_rate_limited(self, lane: Lane | SessionLane, until: float) -> None:
        """A hook; see `LaneInstrument`."""
        self._tell(RATE_LIMITED, 1, lane_label(lane))

    def _label(self, job: AnyJob) -> str:
        lane = self._labels.pop(job, None) or job_label(job)
        if not job.done:  # another instrument may have ended it before this one is told of it
            self._labels[job] = lane
        return lane
