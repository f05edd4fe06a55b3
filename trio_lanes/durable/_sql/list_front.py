"""`ListFront`: the cached front of an ordered list that is in a table.

The first job of a queue is asked for with every job, the last hardly ever. So the first few entries
are kept in memory, and a list with a million entries costs no more than a short one.

The owner reports every new place in the list. An entry of a job that has left stays until it is
first: that is cheaper than a search for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, final

from .._rules.job_record import JobRecord


@final
class ListFront:
    """The first entries of an ordered list in a table, in order of their places.

    Args:
      place_of: returns a job's place in the list; None if it is not in the list.
      most: how many entries are kept at most.

    Attributes:
      complete: whether no entry of the table is behind the last of these.
    """

    __slots__ = ("_entries", "_most", "_place_of", "complete")

    def __init__(self, place_of: Callable[[JobRecord], int | None], most: int) -> None:
        self._place_of: Final = place_of
        self._most: Final = most
        self._entries: deque[tuple[int, JobRecord]] = deque()
        self.complete = False

    def head(self) -> JobRecord | None:
        """Return the first job; None: there is none, or the caller must read the table."""
        entries, place_of = self._entries, self._place_of
        while entries:
            place, job = entries[0]
            if place_of(job) == place:
                return job
            entries.popleft()
        return None

    def first(self, after: int | None, limit: int) -> list[JobRecord] | None:
        """Return up to ``limit`` jobs behind ``after``; None: the caller must read the table."""
        self.head()  # drops old entries
        entries, place_of = self._entries, self._place_of
        found: list[JobRecord] = []
        for place, job in entries:
            if len(found) == limit:
                return found
            if place_of(job) == place and (after is None or place > after):
                found.append(job)
        return found if self.complete or len(found) == limit else None

    def last(self) -> int | None:
        """Return the last known place, behind which the table is to be read; or None."""
        return self._entries[-1][0] if self._entries else None

    def extend(self, jobs: Iterable[JobRecord], *, complete: bool) -> None:
        """Add jobs that were read from the table, and whether they are all that follow."""
        for job in jobs:
            place = self._place_of(job)
            assert place is not None
            self._entries.append((place, job))
        self.complete = complete

    def add(self, place: int, job: JobRecord) -> None:
        """Add a job that has got a place in the list."""
        entries = self._entries
        if not entries:
            if self.complete:
                entries.append((place, job))
        elif place > entries[-1][0]:
            if self.complete and len(entries) < self._most:
                entries.append((place, job))
            else:
                self.complete = False
        else:
            index = bisect_left(entries, place, key=lambda entry: entry[0])
            if entries[index][0] != place:
                entries.insert(index, (place, job))
            else:  # it came back to an old entry of its own, or of a job whose place it has got
                entries[index] = place, job
