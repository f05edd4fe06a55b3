"""`Waiter`: a task that waits for news of a job or request."""

from __future__ import annotations

import trio

from .records import Ended


class Waiter:
    """A task that waits for news. For one task it does what a `trio.Event` does, in fewer objects.

    Many tasks wait at the same time, and Python's collector goes through all their objects.

    Attributes:
      how: how the job has ended; None: its state must be read.
    """

    __slots__ = ("_seen", "_task", "how")

    def __init__(self) -> None:
        self._seen = False
        self._task: trio.lowlevel.Task | None = None
        self.how: Ended | None = None

    def see(self, how: Ended | None) -> None:
        """Give the news to the task."""
        self.how, self._seen = how, True
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def wait(self) -> None:
        """Wait for news. A checkpoint."""
        if self._seen:
            await trio.lowlevel.checkpoint()
        else:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
