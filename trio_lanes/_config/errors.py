"""The errors of this library. All are `LaneError`; some also are the error that Trio has for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import trio


class LaneError(Exception):
    """The base class of all errors of this library."""


class UnknownLaneError(LaneError, LookupError):
    """No global lane has the given name, or a template has it.

    Attributes:
      name: the name that was asked for.
      lanes: the names that exist.
    """

    def __init__(self, name: str, lanes: Iterable[str]) -> None:
        self.name: Final = name
        self.lanes: Final = tuple(lanes)
        super().__init__(name, self.lanes)

    def __str__(self) -> str:
        if self.name in self.lanes:
            return f"{self.name!r} is a template; the name of one of its lanes is needed here"
        known = ", ".join(map(repr, self.lanes)) or "none"
        error = f"there is no lane {self.name!r}; the lanes are: {known}"
        if self.name.startswith("session:") and not known.startswith("'session:"):
            error += "; a session is named by session="
        return error


class LaneFullError(LaneError, trio.WouldBlock):
    """``submit_nowait`` found no room: the lane is full, or other submissions wait for room in it.

    Attributes:
      lane: the name of the lane without room, a session's or a global one.
    """

    def __init__(self, lane: str, max_waiting: float) -> None:
        self.lane: Final = lane
        self.max_waiting: Final = max_waiting
        super().__init__(lane, max_waiting)

    def __str__(self) -> str:
        return f"lane {self.lane!r} is full (max_waiting={self.max_waiting})"


class LanesClosedError(LaneError, trio.ClosedResourceError):
    """The lanes take no new work, or ended before this job could start.

    Attributes:
      reason: why they were closed.
      retry_after: seconds after which the caller may try again, here or elsewhere; or None.
    """

    def __init__(self, reason: str = "closed", retry_after: float | None = None) -> None:
        self.reason: Final = reason
        self.retry_after: Final = retry_after
        super().__init__(reason, retry_after)

    def __str__(self) -> str:
        later = "" if self.retry_after is None else f"; retry after {self.retry_after} s"
        return f"the lanes are closed: {self.reason}{later}"


class LaneDeadlockError(LaneError):
    """This wait can never end: each job that could end it waits, directly or not, for this job.

    The message lists each job of the deadlock, what it holds and what it waits for, and the cure.
    """


class JobCancelledError(LaneError):
    """The job was cancelled, before or after it had started.

    Attributes:
      reason: the reason that was given, or None.
    """

    reason: str | None

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason
        super().__init__(reason)

    def __str__(self) -> str:
        return "the job was cancelled" + (f": {self.reason}" if self.reason else "")


class LaneClearedError(JobCancelledError):
    """The job's lane was cleared before the job had started.

    Attributes:
      lane: the name of the lane that was cleared.
      reason: the reason that was given, or None.
    """

    def __init__(self, lane: str, reason: str | None = None) -> None:
        self.lane: Final = lane
        self.reason = reason
        Exception.__init__(self, lane, reason)  # so that it can be pickled

    def __str__(self) -> str:
        return f"lane {self.lane!r} was cleared" + (f": {self.reason}" if self.reason else "")


class LaneResetError(JobCancelledError):
    """The job's lane was reset while the job ran: its slot is free although its body may go on.

    Attributes:
      lane: the name of the lane that was reset.
    """

    reason: str | None = "reset"

    def __init__(self, lane: str) -> None:
        self.lane: Final = lane
        Exception.__init__(self, lane)

    def __str__(self) -> str:
        return f"lane {self.lane!r} was reset"


class JobTimeoutError(LaneError, trio.TooSlowError):
    """The job ran for longer than its ``timeout``, or without progress for its ``idle_timeout``.

    Attributes:
      kind: the limit that ended it.
      seconds: the length of that limit.
    """

    def __init__(self, kind: Literal["timeout", "idle_timeout"], seconds: float) -> None:
        self.kind: Final = kind
        self.seconds: Final = seconds
        super().__init__(kind, seconds)

    def __str__(self) -> str:
        return f"the job was ended by its {self.kind} of {self.seconds} s"


class QueueTimeoutError(LaneError, trio.TooSlowError):
    """The job waited for longer than its ``queue_timeout`` and was never started.

    Attributes:
      seconds: the length of that ``queue_timeout``.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds: Final = seconds
        super().__init__(seconds)

    def __str__(self) -> str:
        return f"the job could not start within its queue_timeout of {self.seconds} s"
