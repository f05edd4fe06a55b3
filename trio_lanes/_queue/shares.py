"""Which class of owners is served next, in O(log n) of the classes that have work.

It is the choice of `trio_lanes._config.shares`, which has its reasons, in other terms. There, each
service adds to what a class is owed its share, and takes a whole service from the class that had
it. Both are steps along one line: with each service the line moves on by one over the sum of all
pulls, and the place from which a class is owed nothing moves on by one over its own pull when the
class is served. So a class is owed ``(now - start) * pull``, and only the class that is served
changes. A service has a ``start`` and an ``end``, a step later. Served is, of the classes whose
start is not behind the next move of the line, the one with the first end. (That is *Earliest
Eligible Virtual Deadline First* of Stoica and Abdel-Wahab, 1995.)

All numbers are integers, a step is a very long one, and what differs by less than any service could
is equal: then the first name is served, as there.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping
from fractions import Fraction
from typing import Final, final

from .._config.names import TEMPLATE_MARK, is_template
from .._config.shares import UNLISTED_CLASS

_ONE_BITS: Final = 96
_SAME_BITS: Final = 48


@final
class Scale:
    """The weights of a line: by class, as whole numbers."""

    __slots__ = ("_prefixes", "one", "others", "pulls")

    def __init__(self, weights: Mapping[str, float]) -> None:
        lengths = {len(name) - 1 for name in weights if is_template(name)}
        self._prefixes: Final = sorted(lengths, reverse=True)  # how long those of templates are
        exact = {name: Fraction(weight) for name, weight in weights.items()}
        scale = max((weight.denominator for weight in exact.values()), default=1)  # powers of two
        self.others: Final = scale  # the weight 1 of the owners that no entry matches
        self.pulls: Final = {name: int(weight * scale) for name, weight in exact.items()}
        self.one: Final = scale << _ONE_BITS  # the length of a step for a pull of 1

    def weight_class(self, owner: Hashable) -> str:
        """Return what `_config.shares.weight_class` does, however many entries there are."""
        name = owner if isinstance(owner, str) else ""
        if name in self.pulls:
            return name
        for length in self._prefixes:
            if len(name) >= length and (template := name[:length] + TEMPLATE_MARK) in self.pulls:
                return template
        return UNLISTED_CLASS


@final
class Shares:
    """The classes that have work, and what they are owed."""

    __slots__ = ("_able", "_classes", "_late", "_now", "_scale", "_starts", "_total")

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._now = self._total = 0
        self._classes: dict[str, tuple[int, int]] = {}  # {class: (pull, start of its next service)}
        # Each has some entries that hold no more. Of all classes: (start, class)
        self._starts: list[tuple[int, str]] = []
        self._late: list[tuple[int, str]] = []  # of those that were not able to be served
        self._able: list[tuple[int, str, int]] = []  # of the others: (end, class, start)

    def set_owners(self, name: str, count: int) -> None:
        """So many owners of the class ``name`` have work; with 0 what it is owed is forgotten."""
        pull = self._scale.pulls.get(name, self._scale.others) * count
        former, start = self._classes.get(name, (0, self._now))
        self._total += pull - former
        if not pull:
            del self._classes[name]
            if not self._classes:  # what is left in the heaps holds no more
                self._now = 0
                self._starts, self._late, self._able = [], [], []
            return
        self._put(name, pull, self._now + (start - self._now) * former // pull)

    def next(self) -> str:
        """Return the class that is served next. There must be one."""
        starts = self._starts
        while not self._holds(*starts[0]):
            heapq.heappop(starts)
        limit = _near(max(self._now, starts[0][0]) + self._scale.one // self._total)
        late, able = self._late, self._able
        while late and _near(late[0][0]) < limit:
            start, name = heapq.heappop(late)
            if self._holds(start, name):
                heapq.heappush(able, (self._end(start, name), name, start))
        while True:
            end, name, start = able[0]
            if self._holds(start, name) and end == self._end(start, name):
                if _near(start) < limit:
                    return name
                heapq.heappush(late, (start, name))  # a class came, and the line moves on by less
            heapq.heappop(able)

    def served(self, name: str) -> None:
        """The class ``name`` was served."""
        self._now += self._scale.one // self._total
        pull, start = self._classes[name]
        self._put(name, pull, start + self._scale.one // pull)

    def copy(self) -> Shares:
        """Return another object that chooses the same."""
        other = Shares(self._scale)
        other._now, other._total = self._now, self._total
        other._classes = dict(self._classes)
        other._starts = [(start, name) for name, (_, start) in self._classes.items()]
        heapq.heapify(other._starts)
        other._late = list(other._starts)
        return other

    def _holds(self, start: int, name: str) -> bool:
        known = self._classes.get(name)
        return known is not None and known[1] == start

    def _end(self, start: int, name: str) -> int:
        return _near(start + self._scale.one // self._classes[name][0])

    def _put(self, name: str, pull: int, start: int) -> None:
        self._classes[name] = pull, start
        heapq.heappush(self._starts, (start, name))
        heapq.heappush(self._late, (start, name))
        if len(self._starts) > 4 * len(self._classes) + 16:  # the changes have paid for it
            fresh = self.copy()
            self._starts, self._late, self._able = fresh._starts, fresh._late, fresh._able


def _near(place: int) -> int:
    """Return ``place`` so that places are equal that differ by no more than was rounded."""
    return (place + (1 << (_SAME_BITS - 1))) >> _SAME_BITS
