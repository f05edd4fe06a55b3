"""Acts and questions: what a store is asked, as values.

A kind of act or question is one frozen record, in a module of `trio_lanes.durable.acts`. Its fields
are what it carries, also over a wire, and its method is its rule, for stores that apply the rules
in Python. So it can be printed, recorded, sent and done again. A ticket names one act that a store
is asked for, also more than once.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Sequence
from itertools import count
from typing import Any, ClassVar, Final, Generic, TypeVar, dataclass_transform, final

import attrs

from .records import SubmittedJob

T_co = TypeVar("T_co", covariant=True)

_numbers = count(1)
_process: tuple[int, str] = (0, "")  # (pid, what no other process has)


@final
@attrs.frozen
class Lookups:
    """What a call will look up, for a store that reads it all at once, before the call.

    A store may ignore it, and a call may look up other things too.
    """

    batch: Sequence[SubmittedJob] = ()
    """The jobs that the call accepts."""
    ids: Sequence[int] = ()
    """The jobs that the call ends or asks for."""
    room: int = 0
    """How many jobs the call claims at most."""


NO_LOOKUPS: Final = Lookups()


@dataclass_transform(frozen_default=True)
class _NamedRecord:
    """A frozen record, with the name of its class in the form ``put_first``."""

    name: ClassVar[str]
    _long: ClassVar[bool]

    def __init_subclass__(cls, *, long: bool = False, **others: Any) -> None:
        super().__init_subclass__(**others)
        cls.name = re.sub("(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
        cls._long = long
        attrs.frozen(slots=False)(cls)  # with slots it would be another class

    @property
    def long(self) -> bool:
        """Whether it may read every job, and so take longer than the store's patience."""
        return self._long


class Act(_NamedRecord, Generic[T_co]):
    """What a store is asked to do, once for each ticket: a whole, or nothing. ``T_co``: its answer.

    Attributes:
      leased: whether it is an act of an instance, which does nothing unless that has its lease.
    """

    leased: ClassVar[bool] = False

    def __init_subclass__(cls, *, leased: bool = False, **others: Any) -> None:
        super().__init_subclass__(**others)
        cls.leased = leased

    @property
    def lookups(self) -> Lookups:
        """What its rule will look up."""
        id = getattr(self, "id", None)
        return NO_LOOKUPS if id is None else Lookups(ids=(id,))

    @abstractmethod
    def apply(self, queues: Any) -> T_co:
        """Do it by the rules, inside of a transaction; return the answer.

        Raises:
          LaneError, ValueError: if it is refused. Nothing has changed then.
        """


class PortionedAct(Act[int]):
    """An act that may change very many jobs, in portions, so that others can come between two.

    Each portion is atomic. The answer is how many jobs there were in all.
    """

    @abstractmethod
    def portion(self, queues: Any, limit: int, after: int | None) -> tuple[int, int | None]:
        """Do it for at most ``limit`` jobs.

        Return how many they were, and ``after`` of the next portion; None: there are no more.
        """

    def apply(self, queues: Any) -> int:
        """Do it in one portion, however many jobs there are."""
        return self.portion(queues, 2**53, None)[0]


class Question(_NamedRecord, Generic[T_co]):
    """What a store is asked without changing anything. ``T_co``: its answer."""

    @abstractmethod
    def answer(self, queues: Any) -> T_co:
        """Return the answer by the rules, from one snapshot of the store."""


def new_incarnation() -> str:
    """Return the id of a new incarnation, which no other has. It is the ticket of a join, too."""
    return os.urandom(16).hex()


def new_ticket() -> str:
    """Return a string that no other act of any process has.

    There is no random number for each: the system call for it lets the writer's thread have the
    interpreter.
    """
    global _process
    if _process[0] != os.getpid():  # the first ticket, or the first after a fork
        _process = os.getpid(), os.urandom(16).hex()
    return f"{_process[1]}-{next(_numbers):x}"
