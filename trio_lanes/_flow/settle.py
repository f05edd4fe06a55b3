"""Where a job settles: how its body ended, what that makes of the job, and who is told.

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

Whatever ends a job that has not started, and a reset, settle it with an error of their own and
need no verdict.
"""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple, final

import trio
from trio.lowlevel import enable_ki_protection

from .._config.errors import JobCancelledError, JobTimeoutError
from .._actors.job import AnyJob
from .._config.names import is_probe_lane
from .._actors.state import CANCELLED, FAILED, JobState, advance

logger: Final = logging.getLogger("trio_lanes")

LANES_CANCELLED: Final = "the lanes were cancelled"
"""The reason in the error of a job that was cancelled by no name, but with the lanes."""


class Verdict(NamedTuple):
    """What the end of a body that did not return makes of its job."""

    state: JobState
    error: BaseException
    """What waiters get."""
    leaves: BaseException | None = None
    """What is not the job's to keep: it goes on, out of the task that ran the body."""


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


def settle(
    job: AnyJob, now: float, state: JobState, value: Any = None, error: BaseException | None = None
) -> None:
    """Record how ``job`` ended, and let go of what it needed only until then."""
    advance(job, state)
    job.finished_at = now
    job._value = value
    job._fn = None
    job._args = ()
    job._task = None
    job._scope = None
    if error is not None:
        job._error = error
        job._traceback = error.__traceback__


def watch_failure(job: AnyJob) -> Unseen | None:
    """Have the failure of ``job`` logged unless somebody looks at it; None if it has none."""
    if job._state is not FAILED or is_probe_lane(job.lane):
        return None
    if job.session is not None and is_probe_lane(f"session:{job.session}"):
        return None
    assert job._error is not None
    job._unseen = Unseen(repr(job), job._error)
    return job._unseen


@final
class Unseen:
    """The failure of a job that nobody has looked at: logged when the job's last holder is gone.

    Only a failed job has one, so the jobs that do not fail pay nothing for it.
    """

    __slots__ = ("__weakref__", "_error", "_job")

    def __init__(self, job: str, error: BaseException) -> None:
        self._job = job
        self._error: BaseException | None = error

    def seen(self) -> None:
        """Somebody has looked: there is nothing to report any more."""
        self._error = None

    @enable_ki_protection  # or a Ctrl-C in here would be lost, as is whatever `__del__` raises
    def report(self) -> None:
        """Log it, once."""
        error, self._error = self._error, None
        if error is not None:
            logger.error("%s failed, and nobody looked", self._job, exc_info=error)

    __del__ = report
