"""`RequestLines`: the requests for locks and quotas of a namespace, in memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Final, TypeAlias, final

from .._rules.request import Request
from .rows import Row

_Line: TypeAlias = tuple[str, bool]


@final
class RequestLines:
    """All requests, each as its row: who gets one, and changes it, changes nothing here.

    They are few: each is one of a task that waits, or has what it asked for.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._rows: Final[dict[int, Row]] = {}
        # {(line, whether they were served): their numbers, in order}
        self._lines: Final[dict[_Line, list[int]]] = {}
        for row in rows:
            self.put(row[0], row)

    def row(self, id: int) -> Row | None:
        """Return the row of a request; None: it is not there."""
        return self._rows.get(id)

    def put(self, id: int, row: Row | None) -> None:
        """Let the row of a request be this one; None: it is gone."""
        before = self._rows.pop(id, None)
        if before is not None:
            line = _line_of(before)
            ids = self._lines[line]
            del ids[bisect_left(ids, id)]
            if not ids:
                del self._lines[line]
        if row is not None:
            self._rows[id] = row
            insort(self._lines.setdefault(_line_of(row), []), id)

    def get(self, id: int) -> Request | None:
        """Return a request."""
        row = self._rows.get(id)
        return None if row is None else Request(*row)

    def first(self, line: str, served: bool) -> Request | None:
        """Return the first request of a line that was served, or that waits."""
        ids = self._lines.get((line, served))
        return None if ids is None else Request(*self._rows[ids[0]])

    def all(self) -> list[Request]:
        """Return all requests, in order of their numbers."""
        return [Request(*self._rows[id]) for id in sorted(self._rows)]


def _line_of(row: Row) -> _Line:
    _, line, _, _, served, _, _ = row
    return line, served is not None
