"""The successor: the one job that an inbox keeps submitted while messages wait in it.

* While the head of the queue is not due, the successor is delayed until then.
* While the inbox is held, it is delayed without an end. A job that waits is put off, and keeps its
  room: in a full lane a new one would find none.
* If the due time changes otherwise, a new job is submitted first, and then the old is cancelled. If
  none fits at the end of a hold, the old one is put off once more, until the head is due.
* If no message waits any more, the job is cancelled. A job that was granted its slots is never
  cancelled here: its body reads the queue when it begins, so it also handles messages that are
  posted until then.
* When the successor has settled, the inbox updates itself: the job may have been reset or cleared.

A full lane may refuse a new successor. Then `Inbox.post` raises, and has changed nothing. There are
two exceptions: a queued successor that begins too early checks the queue again, and so does the
end of an active turn. If messages wait at the end of a turn and no job fits, the job of the turn
runs them itself, even messages that are not due yet.
"""

from __future__ import annotations

import math
from contextvars import Context
from typing import Any, Final, Protocol, final

import trio

from trio_lanes import Job, JobState, LaneError, Lanes

from ..._config.reasons import ENDLESS
from .queue import NOW


class InboxOfSuccessor(Protocol):
    """The inbox of a successor, as far as the successor knows it."""

    @property
    def session(self) -> str: ...
    @property
    def lane(self) -> str: ...
    @property
    def _lanes(self) -> Lanes: ...
    @property
    def _turn(self) -> object | None: ...
    @property
    def _turn_name(self) -> str: ...
    @property
    def _due(self) -> float: ...
    async def _serve(self, due: float) -> None: ...
    def _sync(self, settled: Job[None], /) -> None: ...


@final
class Successor:
    """The next job of an inbox, if there is one: queued, or started with its body not begun."""

    def __init__(self, inbox: InboxOfSuccessor) -> None:
        self.job: Job[None] | None = None
        self.is_unheard: bool = False  # whether a hook has settled a job before it was `job`
        self._due = NOW
        self._inbox: Final = inbox

    def secure(self, due: float, context: Context) -> None:
        """Ensure that a job starts when the head of the queue is due.

        Args:
          due: the time at which the head is due; `math.inf` while the inbox is held.
          context: the context whose copy the job runs in.

        Raises:
          LaneError: if the lanes refuse the job and nothing else would handle the head in time;
            then nothing has changed.
        """
        now = trio.current_time()
        job = self.job
        if job is not None and (
            job.state is not JobState.WAITING or max(due, now) == max(self._due, now)
        ):
            return
        if job is not None and due == math.inf:
            self._put_off(job, due, ENDLESS)
            return
        try:
            new = context.copy().run(self._submit, due, now)
        except LaneError:
            held = self._due == math.inf and self.job is job
            if job is not None and held and job.state is JobState.WAITING:
                due = self._inbox._due  # the job has room; a hook may hold it again
                self._put_off(job, due, min(max(0.0, due - now), ENDLESS))
                return
            # the end of an active turn checks the queue again
            if self.job is not None and (due > now or self._inbox._turn is not None):
                return
            raise
        old = self.job  # read only now: an instrument may have posted during the submission
        self.job, self._due = new, due
        _cancel(old)

    def _put_off(self, job: Job[None], due: float, delay: float) -> None:
        self._due = due  # first: a hook may hold the inbox, or end the hold
        job.put_off(delay)

    def withdraw(self) -> None:
        """Cancel the job: no message waits any more."""
        job = self.job
        if job is not None and job.state is JobState.WAITING:
            self.job = None  # first, because an instrument may post when the job is cancelled
            _cancel(job)

    def begins(self, job: Job[Any]) -> None:
        """Record that the body of ``job`` begins."""
        if self.job is job:
            self.job = None

    def _submit(self, due: float, now: float) -> Job[None]:
        inbox = self._inbox
        job = inbox._lanes.submit_nowait(
            inbox._serve,
            due if due < math.inf else NOW,  # it begins when it has been put off until then
            session=inbox.session,
            lane=inbox.lane,
            delay=min(max(0.0, due - now), ENDLESS),
            name=inbox._turn_name,
        )
        if job.done:  # a hook has settled it
            self.is_unheard = True
        else:
            job.on_settled(inbox._sync)
        return job


def _cancel(job: Job[None] | None) -> None:
    if job is not None and job.state is JobState.WAITING:
        job.cancel("no message of the inbox needs it")
