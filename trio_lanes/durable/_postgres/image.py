"""`Image`: a cache that is kept up to date by what the other instances have changed.

Theory of operation

The batches of a namespace are a chain. The transaction that makes `meta.version` n adds the delta n
to the table `deltas`, with an id that no other has. An instance whose cache is of the batch m reads
the deltas behind m when it has locked the row of `meta`, and puts them into its cache. So what an
instance reads when another one has written is what that one has changed, however much there is.

* A delta is whole or it is not there. It says of each job that has changed what it is now, so that
  of many deltas only the last word on a job counts.
* An instance whose cache is of a batch that is not in the chain, or too far behind, drops its cache
  and reads all anew. So nothing rests on a delta but time. A transaction writes none while nobody
  else listens, and none if it has changed what a delta does not say (`Changes.incomplete`).
* Numbers may come twice, if the server has gone back to older data. Ids do not.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Any, Final

from ..._limits.meters import Marks, put
from .._sql.rows import Cursor, record_of
from .._wire.codec import decode
from .delta import Changes, Delta
from .read_ahead import ReadAhead
from .rows import PostgresRows

DELTAS_KEPT: Final = 1_000
"""How many batches have their deltas in the table."""
REMOVED_AT_ONCE: Final = 100
"""How many deltas are removed together."""
MAX_BEHIND: Final = 200
"""How many batches a cache is brought up to date by at most."""

_ADD: Final = "INSERT INTO main.deltas VALUES (%s, %s, %s)"
_REMOVE: Final = "DELETE FROM main.deltas WHERE batch <= %s"
_BEHIND: Final = (
    "SELECT batch, id, CASE WHEN batch > %s THEN data END FROM main.deltas"
    " WHERE batch >= %s AND batch <= %s ORDER BY batch"
)
_NEWEST: Final = "SELECT deltas.id FROM main.deltas JOIN main.meta ON batch = version"


class Image(ReadAhead):
    """The part of `PostgresTables` that tells the others of its changes, and hears of theirs."""

    def __init__(self, rows: PostgresRows, names: Collection[str]) -> None:
        self._jobs: Final = rows
        self._changes = rows.changes = Changes()
        super().__init__(rows, names)
        self._batch: str | None = None  # the id of the batch that is cached, if it has a delta

    def _forget(self) -> None:
        super()._forget()
        self._batch = None
        self._forget_changes()

    def _forget_changes(self) -> None:
        self._changes = self._jobs.changes = Changes()

    # ---- telling

    def _tell(self, batch: int) -> str | None:
        """Add the delta of the transaction; return the id of its batch, None if it has none."""
        text = self._changes.text()
        if batch % REMOVED_AT_ONCE == 0:
            self._execute(_REMOVE, (batch - DELTAS_KEPT,))
        if text is None:
            return None
        id = uuid.uuid4().hex
        self._execute(_ADD, (batch, id, text))
        return id

    def _flush_counts(self) -> None:
        self._cache.count()
        self._changes.count(self._cache.uncounted.items())
        super()._flush_counts()

    def _put_text(self, kind: str, name: str, value: Any) -> None:
        super()._put_text(kind, name, value)
        self._changes.settings[kind, name] = value

    def put_marks(self, meter: str, added: Marks, keep: int, until: float) -> None:
        super().put_marks(meter, added, keep, until)
        self._changes.marks.append((meter, list(added), keep))

    def forget_marks(self, meter: str) -> None:
        super().forget_marks(meter)
        self._changes.incomplete = True

    def forget_unused(self, now: float) -> None:
        super().forget_unused(now)
        self._changes.incomplete = True

    def recount(self) -> bool:
        changed = super().recount()
        self._changes.incomplete |= changed
        return changed

    # ---- being told

    def _ask_behind(self) -> Cursor | None:
        """Ask for the deltas behind the cached batch."""
        batch = self._version
        if batch is None or self._batch is None:
            return None
        return self._execute(_BEHIND, (batch, batch, batch + MAX_BEHIND))

    def _ask_newest(self) -> Cursor:
        """Ask for the id of the newest batch, when all is read anew."""
        return self._execute(_NEWEST)

    def _read_newest(self, newest: Cursor) -> None:
        row = newest.fetchone()
        self._batch = None if row is None else row[0]

    def _catch_up(self, behind: Cursor | None, version: int) -> bool:
        """Bring the cache to the newest batch by deltas; return whether that could be done."""
        if behind is None:
            return version == self._version
        found, known = behind.fetchall(), self._version
        assert known is not None
        rows = found[1:]
        if not found or found[0][:2] != (known, self._batch):
            return False
        if [row[0] for row in rows] != [*range(known + 1, version + 1)]:
            return False
        if rows:
            self._batch = rows[-1][1]
            self._take(Delta(text for _, _, text in rows))
        self._version = version
        return True

    def _take(self, delta: Delta) -> None:
        """Put the changes of other instances into the cache."""
        cache, rows = self._cache, self._jobs
        for (kind, name), data in delta.settings.items():
            self._set(kind, name, None if data is None else decode(data))
        for meter, added, keep in delta.marks:
            self._take_marks(meter, [(time, starts) for time, starts in added], keep)
        assert cache.counts is not None  # a cache that is not fresh has them
        for key, by in delta.counts.items():
            cache.counts.add(key, by)
        if delta.suspects:
            cache.suspected = None
        for id in delta.over.keys() | delta.long.keys():
            job = rows.known(id)
            if job is not None:  # it may be in a front, which passes it over by this
                job.place = job.ready = None
                rows.drop(id)
        for id, lane in delta.over.items():
            cache.is_over(id, lane)
        for row in delta.long.values():
            cache.is_unread(record_of(row))
        for row in delta.rows.values():
            cache.is_now(rows.put(row))

    def _take_marks(self, meter: str, added: Marks, keep: int) -> None:
        marks = self._marks.get(meter)
        if marks is not None:
            put(marks, added, keep)
            self._last_marks[meter] += len(added)
