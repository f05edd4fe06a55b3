"""`Counts`: how many jobs there are, by lane, state and handler's name."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from typing import Final, TypeAlias, final

from .._contract.state import DEAD, PARKED, RUNNING, WAITING

Key: TypeAlias = tuple[str, str, str]
"""(lane, state, handler's name)"""
COUNTED: Final = frozenset({WAITING, PARKED, RUNNING, DEAD})
"""The states of jobs that have not ended."""
_WAITING_TEXT: Final = WAITING.value  # reading it from the state takes longer
_PARKED_TEXT: Final = PARKED.value


@final
class Counts:
    """The numbers of jobs that have not ended, with the sums that claims and submissions ask for.

    So a claim and a submission do not read the numbers of all lanes.

    Attributes:
      waiting: {lane: the handlers' names of its jobs that are WAITING}
      bound: {lane: how many of its jobs are waiting or parked}
    """

    def __init__(self, numbers: Iterable[tuple[Key, int]]) -> None:
        self._numbers: dict[Key, int] = {}
        self.waiting: Final[dict[str, set[str]]] = {}
        self._lanes: list[str] | None = None  # those of `waiting` in order; None: not asked for yet
        self.bound: dict[str, int] = {}
        for key, number in numbers:
            self.add(key, number)

    def add(self, key: Key, by: int) -> None:
        """Count some jobs more, or fewer."""
        number = self._numbers[key] = self._numbers.get(key, 0) + by
        lane, state, name = key
        if state in (_WAITING_TEXT, _PARKED_TEXT):
            self.bound[lane] = self.bound.get(lane, 0) + by
        if state == _WAITING_TEXT:
            self._note_waiting(lane, name, number > 0)

    def _note_waiting(self, lane: str, name: str, waits: bool) -> None:
        names = self.waiting.get(lane, set())
        if (name in names) == waits:
            return
        if waits:
            if not names:
                self.waiting[lane] = names
                if self._lanes is not None:
                    insort(self._lanes, lane)
            names.add(name)
            return
        names.remove(name)
        if not names:
            del self.waiting[lane]
            if self._lanes is not None:
                del self._lanes[bisect_left(self._lanes, lane)]

    def lanes_after(self, lane: str) -> list[str]:
        """Return the lanes of `waiting` in turn: those behind a name, then the others."""
        if self._lanes is None:
            self._lanes = sorted(self.waiting)
        at = bisect_right(self._lanes, lane)  # lanes come and go, also the one served last
        return self._lanes[at:] + self._lanes[:at]

    def all(self) -> dict[Key, int]:
        """Return all numbers that are not 0."""
        return {key: number for key, number in self._numbers.items() if number}

    def forget_zeros(self) -> None:
        """Forget the numbers of lanes without jobs."""
        self._numbers = self.all()
        self.bound = {lane: number for lane, number in self.bound.items() if number}
