"""`Image`: a cache that is kept up to date by what the other instances have changed.

Theory of operation

The batches of a namespace are a chain; see `batch`. The batch n adds the delta n to the table
`deltas`, with an id that no other has. An instance whose cache is of the batch m reads the deltas
behind m, and puts them into its cache. So what an instance reads when another one has written is
what that one has changed, however much there is.

* A delta is whole or it is not there. It says of each job that has changed what it is now, so that
  of many deltas only the last word on a job counts.
* An instance whose cache is of a batch that is not in the chain, or too far behind, drops its cache
  and reads all anew. So nothing rests on a delta but time. A batch says nothing while nobody else
  listens, and if it has changed what a delta does not say (`Changes.incomplete`).
* Numbers may come twice, if the server has gone back to older data. Ids do not.
* A batch that came late has written nothing, so its changes leave the cache as well: each job that
  it has changed becomes what it was, as if another instance had made it so (`Image.undo`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import attrs

from ..._limits.meters import Marks, put
from .._rules.job_record import JobRecord
from .._rules.request import Request
from .._rules.tables import STEPS, Kind, LastStep
from .._sql.rows import COLUMNS, Row, record_of, values_of
from .._wire.codec import decode
from .delta import Changes, Delta
from .read_ahead import ReadAhead
from .rows import PostgresRows

HEAD: Final = (
    "SELECT batch, id, sequence, clock, ahead, notices FROM main.deltas ORDER BY batch DESC LIMIT 1"
)

_all_of: Final = values_of(COLUMNS)


@attrs.frozen
class Head:
    """What the newest batch says of the whole store."""

    batch: int
    id: str
    sequence: int
    clock: float
    ahead: float
    notices: int


class Image(ReadAhead):
    """The part of `PostgresTables` that tells the others of its changes, and hears of theirs."""

    def __init__(self, rows: PostgresRows, names: Collection[str]) -> None:
        self._jobs: Final = rows
        self._changes = self._jobs.changes = Changes()
        # what was before this batch, for `undo`: {id: (the job, its columns; None: it is new)}
        self._before: Final[dict[int, tuple[JobRecord, Row | None]]] = {}
        self._settings_before: Final[dict[tuple[str, str], Any]] = {}
        self._requests_before: Final[dict[int, Row | None]] = {}
        self._parked_before: float | None = None  # `Cache.parked_until` then
        self._tracks = False  # whether what was before the batch is kept
        super().__init__(rows, names)
        self._steps: Final[dict[str, LastStep | None]] = {}  # the last steps that are known
        self._batch: str | None = None  # the id of the batch that is cached

    def _forget(self) -> None:
        super()._forget()
        self._batch = None
        self._steps.clear()
        self._forget_changes()

    def _forget_changes(self) -> None:
        self._changes = self._jobs.changes = Changes()
        self._before.clear()
        self._settings_before.clear()
        self._requests_before.clear()

    # ---- what changes

    def insert(self, job: JobRecord) -> None:
        if self._tracks:
            self._before[job.id] = job, None
        super().insert(job)

    def before_change(self, job: JobRecord) -> None:
        if self._tracks and job.id not in self._before:
            self._before[job.id] = job, _all_of(job)

    def update(self, job: JobRecord, **changes: Any) -> None:
        self.before_change(job)
        super().update(job, **changes)

    def put(self, kind: Kind[Any], name: str, value: Any) -> None:
        self._settings_before.setdefault((kind.name, name), self.of(kind).get(name))
        super().put(kind, name, value)

    def _flush_counts(self) -> None:
        self._cache.count()
        uncounted = dict(self._cache.uncounted)
        super()._flush_counts()
        self._changes.count(uncounted.items())

    def _put_text(self, kind: str, name: str, value: Any) -> None:
        super()._put_text(kind, name, value)
        self._changes.settings[kind, name] = value

    def put_request(self, request: Request) -> None:
        self._put_request(request.id, attrs.astuple(request))

    def drop_request(self, id: int) -> None:
        self._put_request(id, None)

    def _put_request(self, id: int, row: Row | None) -> None:
        self._requests_before.setdefault(id, self._requests.row(id))
        self._requests.put(id, row)
        self._changes.requests[id] = row
        self._small_writes += 1

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

    def _catch_up(self, missed: Sequence[Row], head: Head) -> bool:
        """Bring the cache to the newest batch by deltas; return whether that could be done.

        Args:
          missed: the cached batch, if it is in the chain, and those behind it; see `batch`.
        """
        known = self._version
        found = [(row[1], row[2], row[7]) for row in missed]  # batch, id, delta
        if known is None or not found or found[0][:2] != (known, self._batch):
            return False
        rows = found[1:]
        if [row[0] for row in rows] != [*range(known + 1, head.batch + 1)]:
            return False
        texts = [text for _, _, text in rows if text is not None]
        if len(texts) < len(rows):
            return False
        if texts:
            self._take(Delta(texts))
        self._version, self._batch = head.batch, head.id
        return True

    def _take(self, delta: Delta) -> None:
        """Put the changes of other instances into the cache."""
        cache, rows = self._cache, self._jobs
        for (kind, name), data in delta.settings.items():
            value = None if data is None else decode(data)
            if kind == STEPS.name:
                self._steps[name] = value
            else:
                self._set(kind, name, value)
        for id, row in delta.requests.items():
            self._requests.put(id, row)
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

    # ---- undoing

    def undo(self) -> None:
        """Let the cache be what it was before the changes of a batch that was not committed."""
        cache, rows, changes = self._cache, self._jobs, self._changes
        counts = cache.counts
        assert counts is not None
        cache.count()
        changes.count(cache.uncounted.items())
        cache.uncounted.clear()
        for key, by in changes.counts.items():
            counts.add(key, -by)
        for (kind, name), value in self._settings_before.items():
            self._set(kind, name, value)
        for id, request in self._requests_before.items():
            self._requests.put(id, request)
        for meter, _, _ in changes.marks:
            self._marks.pop(meter, None)
            self._last_marks.pop(meter, None)
        if changes.suspects:
            cache.suspected = None
        cache.parked_until = self._parked_before
        for id, (job, row) in self._before.items():
            if row is None:  # it may be in a front, which passes it over by this
                job.place = job.ready = None
                rows.drop(id)
                cache.is_over(id, job.lane)
            else:
                cache.is_now(rows.put(row))
        counts.restore(0.0, everything=True)  # lanes may have been put aside for what is undone
        rows.undo()
        self._drop_unwritten()
        self._forget_changes()
