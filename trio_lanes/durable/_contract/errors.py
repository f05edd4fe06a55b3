"""What durable lanes raise besides the errors of the core. All are `LaneError`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..._errors import LaneError


class PayloadError(LaneError, ValueError):
    """What was given is not JSON, or larger than the store's ``max_payload``."""


class UnknownHandlerError(LaneError, LookupError):
    """This instance has handlers, and none of that name.

    Attributes:
      name: the name that was asked for.
      names: the names that exist.
    """

    def __init__(self, name: str, names: Iterable[str]) -> None:
        self.name: Final = name
        self.names: Final = tuple(names)
        super().__init__(name, self.names)

    def __str__(self) -> str:
        known = ", ".join(map(repr, self.names))
        return f"there is no handler {self.name!r}; the handlers are: {known}"


class KeyConflictError(LaneError, ValueError):
    """The key belongs to a job with another name, session, lane or payload.

    Attributes:
      key: the key.
      id: the job that has it.
      field: what differs.
    """

    def __init__(self, key: str, id: int, field: str) -> None:
        self.key: Final = key
        self.id: Final = id
        self.field: Final = field
        super().__init__(key, id, field)

    def __str__(self) -> str:
        return f"the key {self.key!r} belongs to job {self.id}, whose {self.field} is another"


class DurableJobError(LaneError):
    """The job failed. On the instance that ran it, ``__cause__`` is what its handler raised.

    Attributes:
      type: the name of the exception's type.
      message: what it said.
      traceback: its traceback, as text.
    """

    def __init__(self, type: str, message: str, traceback: str = "") -> None:
        self.type: Final = type
        self.message: Final = message
        self.traceback: Final = traceback
        super().__init__(type, message, traceback)

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class JobDeadError(DurableJobError):
    """The job is dead: its attempts or crashes are used up, and it waits for a person."""


class ResultGoneError(LaneError, LookupError):
    """The job is not known: its ``result_ttl`` is over, it was purged, or it never was.

    Attributes:
      id: the job.
    """

    def __init__(self, id: int) -> None:
        self.id: Final = id
        super().__init__(id)

    def __str__(self) -> str:
        return f"nothing is known of job {self.id} (any more)"


class StoreError(LaneError):
    """The store is not usable: damaged, lost, or no store of this library."""


class StoreUnavailableError(StoreError):
    """The store could not do this now: disk full, an I/O error, no connection.

    What was asked for has not happened; trying again later is right.

    Attributes:
      unknown: True where it may have happened: the store could neither complete nor undo it. A job
        with a key can be submitted again all the same.
    """

    unknown: bool = False


class StoreLockedError(StoreError):
    """Another process schedules this store, or has taken it over.

    Attributes:
      owner: who that is, as far as is known.
    """

    def __init__(self, store: str, owner: str) -> None:
        self.store: Final = store
        self.owner: Final = owner
        super().__init__(store, owner)

    def __str__(self) -> str:
        return f"{self.store} is in the hands of {self.owner}"


class StoreVersionError(StoreError):
    """The store was written by a newer version of this library, or by another program."""
