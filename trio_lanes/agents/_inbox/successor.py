"""The one job that an inbox has queued while anything waits in it.

It is delayed while the head of the line is not due. One that would find nothing, or come at the
wrong time, is withdrawn: when another is accepted, or none is needed. But only while it has not
been granted its slots; once it has, its body looks for itself, and whatever is posted before that
begins needs no other. When one has settled, the inbox looks: it may have been reset, or cleared.

A lane that is full may refuse it. Then `Inbox.post` raises, and has changed nothing; unless there
is one already that comes too early, for that looks again when it begins, or a turn, for its end
looks again. A turn that leaves messages behind, for which no job fits, has its own job run them,
also those that are not due yet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, Final, final

import trio

from trio_lanes import Job, JobState, LaneError, Lanes

from .queue import AT_ONCE


@final
class Successor:
    """The job that comes next, if there is one: queued, or granted its slots and not begun."""

    def __init__(
        self,
        lanes: Lanes,
        session: str,
        lane: str,
        serve: Callable[[float], Awaitable[None]],
        update: Callable[[], None],
        handler: object,
    ) -> None:
        self.job: Job[None] | None = None
        self._due = AT_ONCE
        self._lanes: Final = lanes
        self._session: Final = session
        self._lane: Final = lane
        self._serve: Final = serve
        self._update: Final = update
        self._name: Final = getattr(handler, "__qualname__", repr(handler))

    def secure(self, due: float, context: Context, in_turn: bool) -> None:
        """Have a job come when the head of the line is due.

        Args:
          due: when that is.
          context: what the job is to run in a copy of.
          in_turn: whether there is a turn, whose end looks again.

        Raises:
          LaneError: if there would be nobody to see to it in time; then nothing has changed.
        """
        now = trio.current_time()
        job = self.job
        if job is not None and (
            job.state is not JobState.WAITING or max(due, now) == max(self._due, now)
        ):
            return
        try:
            new = context.copy().run(self._submit, due, now)
        except LaneError:
            if self.job is not None and (due > now or in_turn):
                return
            raise
        old = self.job  # looked at now: an instrument may have posted meanwhile
        self.job, self._due = new, due
        _take_back(old)

    def withdraw(self) -> None:
        """Nothing waits any more."""
        job = self.job
        if job is not None and job.state is JobState.WAITING:
            self.job = None  # first, for what an instrument does when it is told
            _take_back(job)

    def begins(self, job: Job[Any]) -> None:
        """The body of ``job`` begins."""
        if self.job is job:
            self.job = None

    def _submit(self, due: float, now: float) -> Job[None]:
        job = self._lanes.submit_nowait(
            self._serve,
            due,
            session=self._session,
            lane=self._lane,
            delay=max(0.0, due - now),
            name=self._name,
        )
        if not job.done:  # else the inbox, which posts now, updates itself afterwards
            job.on_settled(lambda job: self._update())
        return job


def _take_back(job: Job[None] | None) -> None:
    if job is not None and job.state is JobState.WAITING:
        job.cancel("it would find nothing")
