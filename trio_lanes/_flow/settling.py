"""How a job settles: what the end of its body makes of it.

==================================================  =========  =================================
what happened                                       state      what waiters get
==================================================  =========  =================================
the body returned, also after a cancel or deadline  SUCCEEDED  the value
the body raised, also besides a cancel or deadline  FAILED     that very exception
ended by ``timeout`` or ``idle_timeout``            FAILED     `JobTimeoutError`
ended by ``cancel()``                               CANCELLED  `JobCancelledError`
ended by the cancellation of the lanes              CANCELLED  `JobCancelledError`
raised a BaseException that is no Exception         FAILED     `JobCancelledError` from it
==================================================  =========  =================================

A job that never starts, and one that is reset, settle with an error of their own and need no verdict.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import trio

from .._actors.job import AnyJob, UnretrievedError
from .._actors.state import CANCELLED, FAILED, JobState
from .._config.errors import JobCancelledError, JobTimeoutError
from .._config.names import is_probe_lane

LANES_CANCELLED: Final = "the lanes were cancelled"
"""The reason in the error of a job that was cancelled by no name, but with the lanes."""


class Verdict(NamedTuple):
    """What the end of a body that did not return makes of its job."""

    state: JobState
    error: BaseException
    """What waiters get."""
    leaves: BaseException | None = None
    """What the job does not keep: it leaves the task that ran the body."""


def raised(error: BaseException) -> Verdict:
    """``error`` left the body, and the scope around it."""
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
    told = JobCancelledError(f"its body raised {type(rest).__name__}")
    told.__cause__ = rest
    return Verdict(FAILED, told, error)


def _split(
    error: BaseExceptionGroup[Any],
) -> tuple[BaseExceptionGroup[trio.Cancelled] | None, BaseException | None]:
    """The cancellation in ``error``, and the rest."""
    try:
        return error.split(trio.Cancelled)
    except Exception:  # its class has a `derive` of its own, which fails: it is taken as a whole
        return None, error


def interrupted(job: AnyJob) -> Verdict:
    """The job's own scope ended the body: it was cancelled, or its deadline was over."""
    if job._interruption is not None:
        return Verdict(CANCELLED, job._interruption)
    options = job._options
    assert job.started_at is not None
    if job.started_at + options.timeout <= job._progress_at + options.idle_timeout:
        return Verdict(FAILED, JobTimeoutError("timeout", options.timeout))
    return Verdict(FAILED, JobTimeoutError("idle_timeout", options.idle_timeout))


def watch_failure(job: AnyJob) -> UnretrievedError | None:
    """Have the failure of ``job`` logged unless it is retrieved; None where none is logged."""
    if is_probe_lane(job.lane) or not job._lane.config.log_failures:
        return None
    if job.session is not None and is_probe_lane(f"session:{job.session}"):
        return None
    assert job._error is not None
    job._unretrieved = UnretrievedError(repr(job), job._error)
    return job._unretrieved
