"""`Counts`: how many jobs there are, by lane, state and handler's name."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from operator import itemgetter
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
      aside: {lane that cannot start a job: (when a claim looks at it again, when its rates allow
        a start, if these refuse it)}. It is not in turn, for no instance that has these tables: so
        no instance puts a lane aside for what itself lacks. A change of one of its jobs, and of any
        limit, ends it before.
      bound: {lane: how many of its jobs are waiting or parked}
    """

    def __init__(self, numbers: Iterable[tuple[Key, int]]) -> None:
        self._numbers: dict[Key, int] = {}
        self.waiting: Final[dict[str, set[str]]] = {}
        # those of `waiting` in order, without those of `aside`; None: not asked for yet
        self._lanes: list[str] | None = None
        self.aside: Final[dict[str, tuple[float, float]]] = {}
        self._again: float = math.inf  # the first time of `aside`, or an earlier one
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
            # it is in one of the two; without `_lanes` none was put aside
            if self._lanes is not None and self.aside.pop(lane, None) is None:
                del self._lanes[bisect_left(self._lanes, lane)]

    def put_aside(self, lane: str, until: float, rated_until: float) -> None:
        """Take a lane out of the turns: see ``aside``."""
        self.touch(lane)  # a lane with a suspect is looked at twice
        assert self._lanes is not None
        del self._lanes[bisect_left(self._lanes, lane)]
        self.aside[lane] = until, rated_until
        self._again = min(self._again, until)

    def touch(self, lane: str) -> None:
        """Put a lane back into the turns, since its jobs change."""
        if self.aside.pop(lane, None) is not None:
            assert self._lanes is not None
            insort(self._lanes, lane)

    def restore(self, now: float, *, everything: bool) -> None:
        """Put lanes back whose time has come, or all."""
        if everything or self._again <= now:
            over = [lane for lane, (until, _) in self.aside.items() if everything or until <= now]
            for lane in over:
                self.touch(lane)
            self._again = min(map(itemgetter(0), self.aside.values()), default=math.inf)

    def rated_until(self) -> float:
        """Return when rates allow the first start of a lane that is put aside."""
        return min(map(itemgetter(1), self.aside.values()), default=math.inf)

    def lanes_after(self, lane: str) -> list[str]:
        """Return the lanes of `waiting` in turn: those behind a name, then the others."""
        if self._lanes is None:
            self._lanes = sorted(self.waiting.keys() - self.aside.keys())
        at = bisect_right(self._lanes, lane)  # lanes come and go, also the one served last
        return self._lanes[at:] + self._lanes[:at]

    def waiting_for(self, lane: str, name: str) -> int:
        """Return how many jobs of a handler are WAITING in a lane."""
        return self._numbers.get((lane, _WAITING_TEXT, name), 0)

    def all(self) -> dict[Key, int]:
        """Return all numbers that are not 0."""
        return {key: number for key, number in self._numbers.items() if number}

    def forget_zeros(self) -> None:
        """Forget the numbers of lanes without jobs."""
        self._numbers = self.all()
        self.bound = {lane: number for lane, number in self.bound.items() if number}
