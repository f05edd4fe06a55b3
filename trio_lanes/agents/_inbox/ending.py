"""Waiting for something inside a job: until it comes, or the job has ended.

Such a wait is a wait for the job. So lanes know what whoever waits depends on, and a wait inside
another job that would never end is found as any other is; and the end of a job that nobody was
told of, as that by a clear or a reset, ends the wait as well. What came earlier than the end of
the job cancels the scope in which that is waited for.
"""

from __future__ import annotations

from typing import Any, final

import trio

from trio_lanes import Job


@final
class Ending:
    """Something that comes once, and those who wait for it."""

    __slots__ = ("_scopes", "come")

    def __init__(self) -> None:
        self.come = False
        self._scopes: set[trio.CancelScope] = set()

    def tell(self) -> None:
        """It has come."""
        self.come = True
        for scope in self._scopes:
            scope.cancel()

    async def wait_while(self, job: Job[Any]) -> None:
        """Return when it has come, or ``job`` has settled. A checkpoint.

        Raises:
          LaneDeadlockError: inside a job, if ``job`` would never end.
        """
        with trio.CancelScope() as scope:
            try:
                self._scopes.add(scope)
                await job.wait_done()
            finally:
                self._scopes.discard(scope)
