"""`DurableLog`: an append-only log in the store, for records that outlive jobs and instances."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Final, final

import attrs
import trio

from ... import JobCancelledError
from ..._config import check as _check
from .._contract.act import new_ticket
from .._contract.errors import LockLostError, StoreUnavailableError
from .._contract.protocol import Store
from .._options.json_text import decode, encode
from .._runs.run import asked, current_job
from .._runs.worker import AGAIN_AFTER, Worker
from ..acts.logs import DropLog, LogPage, WriteLog

UNUSED_NUMBER: Final = 2**53
"""A number that no record has, and every store can compare."""
WRITE_AGAIN_FOR: Final = 60.0
"""Seconds for which a write without an answer is repeated."""


@final
@attrs.frozen
class LogRecord:
    """A record of a log."""

    number: int
    """Counted from 1 in each log."""
    author: str
    """The id of the instance that added it, as in `DurableLanes.instances`."""
    data: Any
    """The JSON value."""


@final
class DurableLog:
    """An append-only log; see `DurableLanes.log`.

    Attributes:
      name: the name of the log.
    """

    def __init__(self, name: str, store: Store, worker: Worker | None) -> None:
        self.name: Final = name
        self._store: Final = store
        self._worker: Final = worker

    def __repr__(self) -> str:
        return f"<trio_lanes.durable.DurableLog {self.name!r}>"

    async def append(self, data: object) -> int:
        """Add a record (JSON); return its number. A checkpoint.

        If it raises, or is cancelled, nothing was added, except after `StoreUnavailableError` with
        ``unknown``. A write without an answer is repeated, uncancelled, until its answer comes, the
        lease of this instance is lost, or for a minute. It is the same write, so it is done once.
        In a run it is repeated as the writes of the run are: see `DurableRun`.

        Raises:
          PayloadError: if ``data`` is not JSON, or larger than the store's ``max_payload``.
          RuntimeError: without a worker, whose lease the writes need.
          StoreUnavailableError: if the store is not available.
          LockLostError: if this instance has lost its lease.
          JobCancelledError: inside a run that was lost, if the code is shielded from cancellation.
        """
        worker = self._worker
        if worker is None:
            raise RuntimeError("a log needs the lease of a worker: open the lanes with worker=True")
        text, ticket = encode("a record", data, self._store.max_payload), new_ticket()
        run, term, until = current_job(), worker.term, trio.current_time() + WRITE_AGAIN_FOR
        if run is not None and run._disowned:
            await trio.lowlevel.checkpoint()
            raise JobCancelledError("the run was lost")
        unknown, write = False, partial(self._store.do, WriteLog(self.name, text), ticket)
        while True:
            try:
                with trio.CancelScope(shield=unknown):
                    number = await asked(self._store, write)
            except StoreUnavailableError as error:
                unknown = unknown or error.unknown
                if not unknown or term != worker.term or trio.current_time() >= until:
                    error.unknown = unknown
                    raise
                with trio.CancelScope(shield=True):
                    await trio.sleep(AGAIN_AFTER)
                continue
            if number is None:
                raise LockLostError("this instance has lost its lease, so it cannot write to a log")
            return number

    async def read(self, after: int = 0, *, limit: int | float = math.inf) -> list[LogRecord]:
        """Return the first ``limit`` records with numbers above ``after``, in order. A checkpoint.

        Raises:
          TypeError, ValueError: if ``after`` is not a whole number, or for a bad ``limit``.
          StoreUnavailableError: if the store is not available.
        """
        after = max(0, min(_check.whole("after", after), UNUSED_NUMBER))
        most, found = _check.count("limit", limit), list[LogRecord]()
        look = self._store.look
        while page := await asked(self._store, partial(look, LogPage(self.name, after))):
            left = page if most == math.inf else page[: int(most) - len(found)]
            found += [LogRecord(number, by, decode(text)) for number, by, text in left]
            after = page[-1][0]
            if len(found) >= most:
                break
        return found

    async def delete(self) -> bool:
        """Forget the log with all its records; False if there is none. A checkpoint."""
        return await self._store.do(DropLog(self.name), new_ticket())
