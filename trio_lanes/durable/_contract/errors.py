"""The exceptions of durable lanes. All of them are `LaneError`, as in the core."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

import trio

from ... import JobCancelledError, LaneError


class PayloadError(LaneError, ValueError):
    """A payload, result or checkpoint is not JSON, or larger than the store's ``max_payload``."""


class UnknownHandlerError(LaneError, LookupError):
    """This instance has handlers, and no handler of the submitted name.

    Attributes:
      name: the submitted name.
      names: the names of this instance's handlers.
    """

    def __init__(self, name: str, names: Iterable[str]) -> None:
        self.name: Final = name
        self.names: Final = tuple(names)
        super().__init__(name, self.names)

    def __str__(self) -> str:
        known = ", ".join(map(repr, self.names))
        return f"there is no handler {self.name!r} on this instance; its handlers are: {known}"


class KeyConflictError(LaneError, ValueError):
    """The key belongs to a job with another name, session, lane or payload.

    Attributes:
      key: the key.
      id: the job that has the key.
      field: the field in which the two jobs differ.
    """

    def __init__(self, key: str, id: int, field: str) -> None:
        self.key: Final = key
        self.id: Final = id
        self.field: Final = field
        super().__init__(key, id, field)

    def __str__(self) -> str:
        return (
            f"the key {self.key!r} belongs to job {self.id}, which has another {self.field}; "
            "use another key for another job"
        )


class DurableJobError(LaneError):
    """The job failed. On the instance that ran it, ``__cause__`` is the handler's exception.

    Attributes:
      type: the name of the exception's type.
      message: the exception's message.
      traceback: the exception's traceback, as text.
    """

    def __init__(self, type: str, message: str, traceback: str = "") -> None:
        self.type: Final = type
        self.message: Final = message
        self.traceback: Final = traceback
        super().__init__(type, message, traceback)

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class JobDeadError(DurableJobError):
    """The job is dead: its attempts or crashes are used up. It is kept until requeue or purge."""


class JobTakenError(JobCancelledError):
    """Another job of the session has taken this job, which was waiting; see `DurableRun.take`.

    Attributes:
      by: the number of the job that has taken it.
    """

    def __init__(self, by: int, reason: str | None = None) -> None:
        self.by: Final = by
        super().__init__(reason)

    def __str__(self) -> str:
        why = "" if self.reason is None else f": {self.reason}"
        return f"job {self.by} of the same session has taken it{why}"


class JobExpiredError(LaneError, trio.TooSlowError):
    """No run of the job had begun by the time that its ``expires`` gave; it never begins.

    Attributes:
      id: the job's number.
    """

    def __init__(self, id: int) -> None:
        self.id: Final = id
        super().__init__(id)

    def __str__(self) -> str:
        return f"job {self.id} expired: no run of it had begun by the time of its expires"


class ResultGoneError(LaneError, LookupError):
    """The store does not know the job: ``result_ttl`` is over, it was purged, or it never existed.

    Attributes:
      id: the job's number.
    """

    def __init__(self, id: int) -> None:
        self.id: Final = id
        super().__init__(id)

    def __str__(self) -> str:
        return (
            f"the store does not know job {self.id}: its result_ttl is over, it was purged, "
            "or it never existed"
        )


class EventGapError(LaneError):
    """Events after the number of the reader are not kept any more: it is too slow, or came late.

    Attributes:
      after: the number of the last event that the reader has.
      first: the number of the first event that is kept. ``events(after=first - 1)`` goes on there.
    """

    def __init__(self, after: int, first: int) -> None:
        self.after: Final = after
        self.first: Final = first
        super().__init__(after, first)

    def __str__(self) -> str:
        return (
            f"the events after number {self.after} are not all kept any more: the first is "
            f"{self.first}"
        )


class StoreError(LaneError):
    """The store cannot be used: it is damaged, was removed, or is not a store of this library."""


class StoreUnavailableError(StoreError):
    """The store could not do the call now: the disk is full, an I/O error, no connection.

    The caller can try again later.

    Attributes:
      unknown: False: the call has changed nothing. True: it may have happened, since its answer was
        lost or the store could neither complete nor undo it. A job with a key can be submitted
        again in that case too.
      final: whether no later call of this instance can succeed: its parent, which did its calls,
        has ended.
    """

    unknown: bool = False
    final: bool = False


class BudgetSpentError(LaneError):
    """A quota cannot give amounts at once; nothing was taken. See ``Quota.spend(wait=False)``.

    Attributes:
      quota: its name.
      left: what could be taken at once, by unit.
      until: when the amounts would fit if nothing more is spent, in Unix time; None: never.
    """

    def __init__(
        self,
        quota: str,
        left: Mapping[str, int | Decimal] | Iterable[tuple[str, int | Decimal]],
        until: float | None,
    ) -> None:
        self.quota: Final = quota
        self.left: Final[Mapping[str, int | Decimal]] = dict(left)
        self.until: Final = until
        super().__init__(quota, tuple(self.left.items()), until)

    def __str__(self) -> str:
        left = ", ".join(f"{amount} {unit}" for unit, amount in self.left.items())
        when = "never" if self.until is None else f"at {datetime.fromtimestamp(self.until, UTC)}"
        return f"the quota {self.quota!r} has {left} left, and these amounts would fit {when}"


class LockLostError(LaneError):
    """A lock was lost while its body ran: the instance has lost its lease, or its lanes are closed.

    Or the server of the store has come back with older data, which lack the lock. The body was
    cancelled. Another task may hold the lock by now, with a greater fence.
    """


class StoreLockedError(StoreError):
    """Another process is the worker of this store, or has taken the store over.

    Attributes:
      owner: a description of that process, as far as the store knows it.
    """

    def __init__(self, store: str, owner: str) -> None:
        self.store: Final = store
        self.owner: Final = owner
        super().__init__(store, owner)

    def __str__(self) -> str:
        return (
            f"{self.store} is locked by another worker: {self.owner}; a store of this kind takes "
            "one worker at a time"
        )


class StoreVersionError(StoreError):
    """The store was written by another version of this library, or by another program."""


def older_schema(what: str, schema: int, wanted: int, living: str, *, works: bool) -> StoreError:
    """Return the error for a store of an older schema that this instance does not migrate.

    A worker migrates it when no process of the older version is in the way, so for a worker the
    store is unavailable.

    Args:
      living: the processes of the older version that are in the way; empty: there are none.
      works: whether this instance is a worker.
    """
    first = f"end the processes of that version ({living}), and then " if living else ""
    start = "this worker again" if works else "a worker of this version"
    kind = StoreUnavailableError if works else StoreVersionError
    return kind(
        f"{what} has schema {schema}, of an older version of this library: {first}start {start}, "
        f"which migrates it to schema {wanted}"
    )


def other_schema(what: str, schema: int, wanted: int) -> StoreVersionError:
    """Return the error for a store of a schema that this version neither reads nor migrates."""
    return StoreVersionError(
        f"{what} has schema {schema}, and this version of trio_lanes reads schema {wanted} alone: "
        "let the version that wrote it do all its jobs, and make a new store"
    )
