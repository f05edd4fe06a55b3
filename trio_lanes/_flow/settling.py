"""How a job settles: its state and its outcome, by the end of its body.

==================================================  =========  =================================
event                                               state      waiters get
==================================================  =========  =================================
the body returned, also after a cancel or deadline  SUCCEEDED  the value
the body raised, also besides a cancel or deadline  FAILED     that exception itself
ended by ``timeout`` or ``idle_timeout``            FAILED     `JobTimeoutError`
ended by ``cancel()``                               CANCELLED  `JobCancelledError`
ended by the cancellation of the lanes              CANCELLED  `JobCancelledError`
raised a BaseException that is no Exception         FAILED     `JobCancelledError` from it
==================================================  =========  =================================

A group that also holds cancellations is given without them, as a copy that its `derive` has made.
A job that never starts, or is reset, settles with an error of its own and needs no verdict.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, final
from weakref import WeakSet

import trio

from .._actors.job import AnyJob, UnretrievedError
from .._actors.state import CANCELLED, FAILED, JobState
from .._config.errors import JobCancelledError, JobTimeoutError
from .._config.names import is_probe_lane

LANES_CANCELLED: Final = "the lanes were cancelled"
"""The reason in the error of a job that was cancelled by no name, but with the lanes."""


class Verdict(NamedTuple):
    """The state and the errors of a job whose body did not return."""

    state: JobState
    error: BaseException
    """The error that waiters get."""
    leaves: BaseException | None = None
    """The error that leaves the task of the body, if any."""


def raised(error: BaseException) -> Verdict:
    """Judge an ``error`` that left the body, and the scope around it."""
    outside: BaseException | None = None  # cancellation from outside of the job's own scope
    rest: BaseException | None = error
    if isinstance(error, trio.Cancelled):
        outside, rest = error, None
    elif isinstance(error, BaseExceptionGroup):
        matched, unmatched = _split(error)
        if matched is not None:  # else `error` itself, not a copy of it
            outside, rest = matched, unmatched
    if rest is None:
        return Verdict(CANCELLED, JobCancelledError(LANES_CANCELLED), outside)
    if isinstance(rest, Exception):
        return Verdict(FAILED, rest, outside)
    failure = JobCancelledError(f"its body raised {type(rest).__name__}")
    failure.__cause__ = rest
    return Verdict(FAILED, failure, error)


def _split(
    error: BaseExceptionGroup[Any],
) -> tuple[BaseExceptionGroup[trio.Cancelled] | None, BaseException | None]:
    """Split ``error`` into its cancellations and the rest."""
    try:
        return error.split(trio.Cancelled)
    except Exception:  # its class has a `derive` of its own, which fails: it is not split
        return None, error


def interrupted(job: AnyJob) -> Verdict:
    """Judge a body that its own scope ended: ``job`` was cancelled, or its deadline was over."""
    if job._interruption is not None:
        return Verdict(CANCELLED, job._interruption)
    options = job._options
    assert job.started_at is not None
    if job.started_at + options.timeout <= job._progress_at + options.idle_timeout:
        return Verdict(FAILED, JobTimeoutError("timeout", options.timeout))
    return Verdict(FAILED, JobTimeoutError("idle_timeout", options.idle_timeout))


@final
class Ends:
    """What stays of the ends of the jobs of one `open_lanes`."""

    __slots__ = ("by_themselves", "given_up", "unretrieved")

    def __init__(self) -> None:
        self.given_up = 0  # bodies that were given up by a reset, and have not ended
        self.by_themselves = 0  # jobs whose bodies have ended by themselves, ever
        self.unretrieved: Final[WeakSet[UnretrievedError]] = WeakSet()

    def watch_failure(self, job: AnyJob) -> None:
        """Log the failure of ``job`` unless it is retrieved, or is not to be logged."""
        if is_probe_lane(job.lane) or not job._lane.config.log_failures:
            return
        if job.session is not None and is_probe_lane(f"session:{job.session}"):
            return
        job._unretrieved = UnretrievedError(repr(job), job._ended_with)
        self.unretrieved.add(job._unretrieved)
