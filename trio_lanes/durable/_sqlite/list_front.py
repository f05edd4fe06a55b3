"""Windows: the front of an ordered list that is in a table, as far as it is known.

Who stands first in a line is asked for with every job, and who stands last hardly ever; so the
first few are kept in memory, and a list that has a million entries costs no more than a short one.
A window is told of every change of its list. It keeps a job that has left until that is first,
which is cheaper than to search for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, final

from .._rules.job_record import JobRecord


@final
class ListFront:
    """The first entries of a list, in order of their places.

    Args:
      place_of: a job's place in the list; None: it is not in it.
      most: beyond how many no more are kept.
    """

    __slots__ = ("_complete", "_entries", "_most", "_place_of")

    def __init__(self, place_of: Callable[[JobRecord], int | None], most: int) -> None:
        self._place_of: Final = place_of
        self._most: Final = most
        self._entries: deque[tuple[int, JobRecord]] = deque()
        self._complete = False

    def first(self, after: int | None, limit: int) -> list[JobRecord] | None:
        """Up to ``limit`` of those beyond ``after``. None: it takes a look at the table."""
        entries, place_of = self._entries, self._place_of
        while entries and place_of(entries[0][1]) != entries[0][0]:
            entries.popleft()
        found: list[JobRecord] = []
        for place, job in entries:
            if len(found) == limit:
                return found
            if place_of(job) == place and (after is None or place > after):
                found.append(job)
        return found if self._complete or len(found) == limit else None

    def last(self) -> int | None:
        """Beyond which place the table is to be looked at; None: from the beginning."""
        return self._entries[-1][0] if self._entries else None

    def extend(self, jobs: Iterable[JobRecord], *, complete: bool) -> None:
        """Know those that come next in the table, and whether they are all."""
        for job in jobs:
            place = self._place_of(job)
            assert place is not None
            self._entries.append((place, job))
        self._complete = complete

    def add(self, place: int, job: JobRecord) -> None:
        """Know that ``job`` has got that place."""
        entries = self._entries
        if not entries:
            if self._complete:
                entries.append((place, job))
        elif place > entries[-1][0]:
            if self._complete and len(entries) < self._most:
                entries.append((place, job))
            else:
                self._complete = False
        else:
            index = bisect_left(entries, place, key=lambda entry: entry[0])
            if entries[index][0] != place:  # else it has come back to a place that is still kept
                entries.insert(index, (place, job))
