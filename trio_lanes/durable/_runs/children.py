"""`Children`: jobs that a run submits and waits for, and that its next attempt finds again.

A child is a job like any other. That it belongs to a run is in its key alone, which is made of the
number of the run's job: so the store keeps nothing besides, and there is no tree to look after.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, final

import trio
from outcome import Error, Outcome, Value

from ... import JobCancelledError
from ..._config.names import session_key
from .._contract.errors import DurableJobError, JobExpiredError, ResultGoneError
from .._options.names import checked_name

if TYPE_CHECKING:
    from .job import DurableJob
    from .run import DurableRun


@final
class Children:
    """The jobs that a run has submitted in one block of `DurableRun.children`."""

    def __init__(self, run: DurableRun) -> None:
        self._run: Final = run
        self._jobs: Final[dict[int, DurableJob]] = {}
        self._ends: Final[dict[int, Outcome[Any]]] = {}
        self._returned: Final[set[int]] = set()  # by `wait_first`

    def __repr__(self) -> str:
        count = f"{len(self._ends)} of {len(self._jobs)} ended"
        return f"<trio_lanes.durable.Children of job {self._run.id}, {count}>"

    async def submit(
        self,
        name: str,
        payload: object = None,
        *,
        key: str | None = None,
        session: str | None = None,
        **options: Any,
    ) -> DurableJob:
        """Submit a child, or find the child that an earlier attempt has submitted. A checkpoint.

        Takes the arguments of `DurableLanes.submit`, and raises what it raises.

        Args:
          key: the child's name among the children of this job. Without one it is its number: the
            order in which children are submitted over all blocks of the run. Its key in the store
            is the number of this job, a slash, and this.
          session: not the session of this run, which is closed until the run ends.

        Raises:
          ValueError: also for the session of this run, and for a ``key`` of digits alone.
          KeyConflictError: also if an earlier attempt has submitted another child in its place.
        """
        run = self._run
        if session is not None and session_key(session) == run.session:
            raise ValueError(
                f"session must not be that of job {run.id}, which keeps it closed while it waits"
                f" for its children, got {session!r}"
            )
        if key is None:
            number = run._last_child = run._last_child + 1
            own = str(number)
        else:
            number, own = 0, checked_name("key", key)
            if own.isdecimal():
                raise ValueError(f"key must not be a number, as of children without one: {own!r}")
        try:
            job = await run._worker.submit(
                name, payload, key=f"{run.id}/{own}", session=session, **options
            )
        except BaseException:
            if key is None and number == run._last_child:  # a second try is the same child
                run._last_child -= 1
            raise
        if job.id not in self._jobs:
            self._jobs[job.id] = job
            self._count(0, 1)
        return job

    async def wait_all(self) -> list[Any]:
        """Wait until all children have ended; return their results in order of submission.

        A checkpoint. Cancelling it changes nothing of the children.

        Raises:
          ExceptionGroup: of what `DurableJob.wait` raises for each child that did not succeed, when
            all have ended; or of a `LaneDeadlockError` or `StoreError`, at once.
        """
        await self._wait()
        ends = [self._ends[id] for id in self._jobs]
        failed = [end.error for end in ends if isinstance(end, Error)]
        if failed:
            raise BaseExceptionGroup(f"children of job {self._run.id} did not succeed", failed)
        return [end.value for end in ends if isinstance(end, Value)]

    async def wait_first(self) -> DurableJob:
        """Wait until a child has ended that no earlier call has returned; return its handle.

        However it has ended: ``await job.wait()`` gives its result. Of several that have ended, it
        returns the one that was submitted first. A checkpoint.

        Raises:
          LookupError: if all children were returned.
          ExceptionGroup: of a `LaneDeadlockError`, if one of the children needs what this run
            keeps; or of a `StoreError`.
        """
        left = [id for id in self._jobs if id not in self._returned]
        if not left:
            await trio.lowlevel.checkpoint()
            raise LookupError(f"job {self._run.id} has no child left to wait for")
        if any(id in self._ends for id in left):
            await trio.lowlevel.checkpoint()
        else:
            await self._wait(first=True)
        found = next(id for id in left if id in self._ends)
        self._returned.add(found)
        return self._jobs[found]

    async def _wait(self, *, first: bool = False) -> None:
        """Wait for the ends of all children, or for the first, without the slot of the run."""
        await trio.lowlevel.checkpoint()
        while left := [job for id, job in self._jobs.items() if id not in self._ends]:
            async with self._run.yield_slot(), trio.open_nursery() as nursery:
                scope = nursery.cancel_scope if first else None
                for job in left:
                    nursery.start_soon(self._see_end, job, scope)
            if first:
                break

    async def _see_end(self, job: DurableJob, scope: trio.CancelScope | None) -> None:
        end: Outcome[Any]
        try:
            end = Value(await job.wait())
        except (DurableJobError, JobCancelledError, JobExpiredError, ResultGoneError) as error:
            end = Error(error)
        self._ends[job.id] = end
        self._count(1, 0)
        self._run.progress()
        if scope is not None:
            scope.cancel()

    def _count(self, ended: int, submitted: int) -> None:
        before = self._run._children_seen
        self._run._children_seen = before[0] + ended, before[1] + submitted


@asynccontextmanager
async def open_children(run: DurableRun) -> AsyncIterator[Children]:
    """Return the block of `DurableRun.children`."""
    children = Children(run)
    yield children
    await children._wait()
