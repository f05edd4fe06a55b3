"""Waiting for an event inside a job: until the event is set, or the job has settled.

The task waits for the job, in a cancel scope that the event cancels. This has two consequences:

* The lanes know the dependency. A wait inside another job that would never end is found as any
  other deadlock.
* A job that a clear or a reset has settled ends the wait, although the inbox did not set the event.
"""

from __future__ import annotations

from typing import Any, final

import trio

from trio_lanes import Job


@final
class Ending:
    """An event that is set once, with the scopes of the tasks that wait for it."""

    __slots__ = ("_scopes", "come")

    def __init__(self) -> None:
        self.come = False
        self._scopes: set[trio.CancelScope] = set()

    def set(self) -> None:
        """Set the event, and wake the waiting tasks."""
        self.come = True
        for scope in self._scopes:
            scope.cancel()

    async def wait_while(self, job: Job[Any]) -> None:
        """Wait until the event is set or ``job`` has settled. A checkpoint.

        Raises:
          LaneDeadlockError: inside a job, if ``job`` would never end.
        """
        with trio.CancelScope() as scope:
            try:
                self._scopes.add(scope)
                await job.wait_done()
            finally:
                self._scopes.discard(scope)
