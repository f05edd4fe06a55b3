"""The figures of the metrics instruments: numbers of jobs, and durations of waits and runs.

Each figure has the label of a lane and, for finished jobs, an outcome. Both labels come from
bounded sets, so the number of time series does not grow with sessions, users or errors.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Final, Literal, NamedTuple

import outcome

from trio_lanes import (
    Job,
    JobState,
    JobTimeoutError,
    Lane,
    LaneClearedError,
    LaneInstrument,
    LaneResetError,
    LanesClosedError,
    QueueTimeoutError,
    SessionLane,
)

from .._config.names import ALL_SESSIONS


class Figure(NamedTuple):
    """A count, a level or a duration that an instrument reports."""

    name: str
    kind: Literal["level", "count", "seconds"]
    says: str
    labels: tuple[str, ...] = ("lane",)
    unit: str = "{job}"
    """Of a level or a count of a store: a unit of OpenTelemetry; seconds and shares of 1 are in the
    names for Prometheus."""


JOBS_WAITING: Final = Figure("jobs.waiting", "level", "Jobs that have not started.")
JOBS_RUNNING: Final = Figure("jobs.running", "level", "Running jobs.")
SUBMITTED: Final = Figure("jobs.submitted", "count", "Jobs that were submitted.")
FINISHED: Final = Figure("jobs.finished", "count", "Jobs that have settled.", ("lane", "outcome"))
WAIT: Final = Figure("job.wait", "seconds", "How long jobs waited for their start.")
WAIT_BY_CAUSE: Final = Figure(
    "job.wait.cause", "seconds", "What jobs waited for, by cause.", ("lane", "cause")
)
RUN: Final = Figure("job.run", "seconds", "How long jobs ran until they settled.")
WAITING_LONG: Final = Figure("jobs.waiting_long", "count", "Jobs that waited beyond warn_after.")
OVERDUE: Final = Figure("jobs.overdue", "count", "Bodies that outlived their cancellation.")
ABANDONED: Final = Figure("jobs.abandoned", "count", "Running jobs that a reset abandoned.")
PAUSED: Final = Figure("lanes.paused", "count", "How often a lane was paused.")
RATE_LIMITED: Final = Figure(
    "lanes.rate_limited", "count", "How often a rate limit held a lane back."
)

BODIES_OVERDUE: Final = Figure("bodies.overdue", "level", "Bodies that are overdue now.")
PROBLEMS: Final = Figure("problems", "level", "What `Lanes.health` finds wrong now.", ("kind",))

FIGURES: Final = (
    JOBS_WAITING,
    JOBS_RUNNING,
    SUBMITTED,
    FINISHED,
    WAIT,
    WAIT_BY_CAUSE,
    RUN,
    WAITING_LONG,
    OVERDUE,
    ABANDONED,
    PAUSED,
    RATE_LIMITED,
)
"""What hooks report."""

_CANCELLED_BY: Final = (
    (LaneClearedError, "cleared"),
    (LaneResetError, "reset"),
    (QueueTimeoutError, "queue_timeout"),
    (LanesClosedError, "closed"),
)


def lane_label(lane: Lane | SessionLane) -> str:
    """Return the label of a lane in a metric or a log record: one for all sessions."""
    return ALL_SESSIONS if isinstance(lane, SessionLane) else lane.label


def error_of(job: Job[Any]) -> BaseException | None:
    """Return the error of a job that has settled. It does not count as retrieving a failure."""
    return job.outcome.error if isinstance(job.outcome, outcome.Error) else None


def outcome_label(job: Job[Any]) -> str:
    """Return the label for how a job ended that has just settled.

    It does not count as retrieving a failure.
    """
    error = error_of(job)
    if job.state is JobState.SUCCEEDED:
        return "succeeded"
    if job.state is JobState.CANCELLED:
        return next((word for kind, word in _CANCELLED_BY if isinstance(error, kind)), "cancelled")
    # The timeout of this job has not been raised yet. The body may have raised the timeout of
    # another job; then the error has a traceback.
    if isinstance(error, JobTimeoutError) and error.__traceback__ is None:
        return error.kind
    return "failed"


class RareFigures(LaneInstrument):
    """The hooks that count what few jobs meet. A subclass reports the figures by `_tell`."""

    @abstractmethod
    def _tell(self, figure: Figure, amount: float, *labels: str) -> None:
        """Report that ``figure`` with these labels changed by ``amount``, or record a duration."""

    def job_waiting_long(self, job: Job[Any], waited: float) -> None:
        self._tell(WAITING_LONG, 1, job.lane_label)

    def job_overdue(self, job: Job[Any], since: float) -> None:
        self._tell(OVERDUE, 1, job.lane_label)

    def lane_reset(self, lane: Lane | SessionLane, abandoned: int) -> None:
        self._tell(ABANDONED, abandoned, lane_label(lane))

    def lane_paused(self, lane: Lane | SessionLane) -> None:
        self._tell(PAUSED, 1, lane_label(lane))

    def lane_rate_limited(self, lane: Lane | SessionLane, until: float) -> None:
        self._tell(RATE_LIMITED, 1, lane_label(lane))
