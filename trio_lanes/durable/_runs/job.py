"""`DurableJob`: the handle of an accepted job, usable on every instance."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol, final

import trio

from ... import Cause, JobCancelledError, LaneClearedError
from ..._config import check as _check
from .._contract.errors import (
    DurableJobError,
    EventGapError,
    JobDeadError,
    JobExpiredError,
    JobTakenError,
    ResultGoneError,
)
from .._contract.protocol import Store
from .._contract.records import DurableStatus, Ended
from .._contract.state import CANCELLED, DEAD, EXPIRED, SUCCEEDED
from .._options.json_text import decode
from ..acts.inspection import StatusOf
from .deadlock import wait_inside
from .run import current_job


class _FindsRoots(Protocol):
    """`DurableLanes`, which imports this module."""

    async def root_causes(self, id: int) -> tuple[Cause, ...]:
        """Return the roots of a job's wait."""


@final
class DurableJob:
    """The handle of an accepted job. The job itself is in the store.

    Attributes:
      id: the job's number in its store, in the order of acceptance.
    """

    __slots__ = ("__weakref__", "_cause", "_lanes", "_store", "id")

    def __init__(self, store: Store, id: int, lanes: _FindsRoots) -> None:
        self.id: Final = id
        self._store = store
        self._lanes = lanes
        self._cause: tuple[str, BaseException] | None = None
        """The last exception of its handler in this process, with its JSON text."""

    def __repr__(self) -> str:
        return f"<trio_lanes.durable.DurableJob {self.id}>"

    async def wait(self) -> Any:
        """Wait until the job has ended, on any instance; return the result of its handler.

        A checkpoint. Any number of tasks may wait; cancelling a wait does not cancel the job.

        Raises:
          LaneDeadlockError: inside a handler, if the job needs the session or the slot of this run,
            or of runs that wait in the same way, and so can never start or end.
          DurableJobError: if the job failed; `JobDeadError` if its attempts or crashes are used up.
          JobCancelledError: if the job was cancelled; `LaneClearedError` if it was cleared;
            `JobTakenError` if another job of its session has taken it.
          JobExpiredError: if no run of it had begun by the time of its ``expires``.
          ResultGoneError: if the store does not know the job.
        """
        run = current_job()
        if run is not None and run._store is self._store:
            ended = await wait_inside(run, self.id)
        else:
            ended = await self._store.wait(self.id)
        if ended is None:
            raise ResultGoneError(self.id)
        if ended.state is SUCCEEDED:
            return decode(ended.outcome)
        data, cause = self._cause or ("", None)
        # the exception is the cause only if no other instance has run the job since
        raise _error(self.id, ended) from (cause if data == ended.outcome else None)

    def events(self, after: int = 0) -> AsyncIterator[tuple[int, Any]]:
        """Return an async iterator of (number, event): what the job's runs say by `emit`.

        ::

            async for number, event in lanes.job(id).events(after=last_seen):
                print(number, event)

        It reads on any instance, and waits for further events until the job has ended; then it
        ends. It gives no event up to the number ``after``, so a reader that was away goes on
        where it was. The store keeps the last 1,000 events of a job. Each step is a checkpoint.
        Cancelling a reader changes nothing.

        Raises:
          TypeError: if ``after`` is not a whole number.
          ResultGoneError: when it reads, if the store does not know the job.
          EventGapError: when it reads, if the next event is not kept any more.
        """
        return _Events(self._store, self.id, max(0, min(_check.whole("after", after), 2**53)))

    async def status(self, *, texts: bool = False) -> DurableStatus:
        """Return the job's status. A checkpoint.

        Args:
          texts: whether to read what the job carries as well, which may be megabytes:
            ``status.texts`` has the payload, the checkpoint data, the outcome, the last events and
            messages.

        Raises:
          ResultGoneError: if the store does not know the job.
        """
        status = await self._store.look(StatusOf(self.id, _check.boolean("texts", texts)))
        if status is None:
            raise ResultGoneError(self.id)
        return status

    async def root_causes(self) -> tuple[Cause, ...]:
        """`DurableLanes.root_causes` of this job. A checkpoint."""
        return await self._lanes.root_causes(self.id)


@final
class _Events:
    """The events of a job. It is no generator, so a reader that stops early need not close it."""

    def __init__(self, store: Store, id: int, after: int) -> None:
        self._store: Final = store
        self._id: Final = id
        self._after = after
        self._read: Final[deque[tuple[int, str]]] = deque()

    def __aiter__(self) -> _Events:
        return self

    async def __anext__(self) -> tuple[int, Any]:
        if self._read:
            await trio.lowlevel.checkpoint()
        else:
            found = await self._store.events(self._id, self._after)
            if found is None:
                raise ResultGoneError(self._id)
            if found and found[0][0] > self._after + 1:
                raise EventGapError(self._after, found[0][0])
            self._read.extend(found)
        if not self._read:
            raise StopAsyncIteration
        self._after, text = self._read.popleft()
        return self._after, decode(text)


def _error(id: int, ended: Ended) -> DurableJobError | JobCancelledError | JobExpiredError:
    if ended.state is EXPIRED:
        return JobExpiredError(id)
    data = decode(ended.outcome)
    if ended.state is CANCELLED:
        if "by" in data:
            return JobTakenError(data["by"], data["reason"])
        if "lane" in data:
            return LaneClearedError(data["lane"], data["reason"])
        return JobCancelledError(data.get("reason"))
    kind = JobDeadError if ended.state is DEAD else DurableJobError
    return kind(data["type"], data["message"], data["traceback"])
