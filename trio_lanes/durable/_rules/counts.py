"""`Counts`: how many jobs there are, by lane, state and handler's name."""

from __future__ import annotations

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
      waiting: {(lane, handler's name) of which jobs are WAITING}
      bound: {lane: how many of its jobs are waiting or parked}
    """

    def __init__(self, numbers: Iterable[tuple[Key, int]]) -> None:
        self._numbers: dict[Key, int] = {}
        self.waiting: Final[set[tuple[str, str]]] = set()
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
            (self.waiting.add if number > 0 else self.waiting.discard)((lane, name))

    def all(self) -> dict[Key, int]:
        """Return all numbers that are not 0."""
        return {key: number for key, number in self._numbers.items() if number}

    def forget_zeros(self) -> None:
        """Forget the numbers of lanes without jobs."""
        self._numbers = self.all()
        self.bound = {lane: number for lane, number in self.bound.items() if number}
