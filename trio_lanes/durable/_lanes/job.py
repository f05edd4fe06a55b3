"""`DurableJob`: the handle of an accepted job, the same on every instance."""

from __future__ import annotations

from typing import Any, Final, final

from ..._errors import JobCancelledError, LaneClearedError
from .._contract.errors import DurableJobError, JobDeadError, ResultGoneError
from .._contract.protocol import Store
from .._contract.records import DurableStatus, Ended
from .._contract.state import CANCELLED, DEAD, SUCCEEDED
from .._options.json_text import decode
from .._runs.deadlock import wait_inside
from .._runs.run import current_job


@final
class DurableJob:
    """An accepted job. It lives in the store; this is a way to ask for it.

    Attributes:
      id: its number in its store, in the order of acceptance.
    """

    __slots__ = ("__weakref__", "_cause", "_store", "id")

    def __init__(self, store: Store, id: int) -> None:
        self.id: Final = id
        self._store = store
        self._cause: tuple[str, BaseException] | None = None
        """What is kept of what its handler raised last in this process, and that itself."""

    def __repr__(self) -> str:
        return f"<trio_lanes.durable.DurableJob {self.id}>"

    async def wait(self) -> Any:
        """Wait until it has ended, on whichever instance; returns what its handler returned.

        A checkpoint. Any number may wait; cancelling a wait does not cancel the job.

        Raises:
          LaneDeadlockError: inside a handler, if the job needs the session or the slot of this run,
            or of runs that wait in the same way, and so can never start or end.
          DurableJobError: if it failed; `JobDeadError` if its attempts or crashes are used up.
          JobCancelledError: if it was cancelled; `LaneClearedError` if it was cleared.
          ResultGoneError: if nothing is known of it any more.
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
        told, cause = self._cause or ("", None)
        # it may have been run again since, elsewhere
        raise _error(ended) from (cause if told == ended.outcome else None)

    async def status(self) -> DurableStatus:
        """How it stands. A checkpoint.

        Raises:
          ResultGoneError: if nothing is known of it any more.
        """
        status = await self._store.status(self.id)
        if status is None:
            raise ResultGoneError(self.id)
        return status


def _error(ended: Ended) -> DurableJobError | JobCancelledError:
    told = decode(ended.outcome)
    if ended.state is CANCELLED:
        if "lane" in told:
            return LaneClearedError(told["lane"], told["reason"])
        return JobCancelledError(told.get("reason"))
    kind = JobDeadError if ended.state is DEAD else DurableJobError
    return kind(told["type"], told["message"], told["traceback"])
