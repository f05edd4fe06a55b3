"""`Image`: what an instance knows of a store over a `Storage`, as of one batch.

It has the settings, the counts, the running jobs and the requests whole, and of queues and ready
lists the fronts. It is brought up to date by the deltas of the batches of other instances, and is
not dropped because somebody else has written.

A delta is the rows of maps that a batch has written, so it is the same text for whoever keeps it,
and says what is, not what was done. A batch that was not committed leaves the image by the rows
that were before (`Image.undo`).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from ..._limits.meters import Mark, Marks, put
from .._contract.state import DEAD, ENDED, RUNNING
from .._contract.weak_values import WeakValues
from .._options.schedule import DurableSchedule
from .._rules.counts import COUNTED, Counts, Key
from .._rules.job_record import JobRecord
from .._rules.running import Running
from .._rules.settings import Settings
from .._rules.tables import SETTING_KINDS, LastStep
from .._sql.cache import Cache
from .._sql.request_lines import RequestLines
from .._sql.rows import Row
from .._wire.codec import decode
from . import rows
from .storage import Head


@final
class Maps:
    """The names of the maps, and of what an image has whole."""

    JOBS: Final = "jobs"
    """The map of jobs, by id."""
    TEXTS: Final = "texts"
    """The map of long texts of jobs, by id and column."""
    KEYS: Final = "keys"
    """The map of ids of jobs, by key."""
    WHOLE: Final = "whole"
    """The map that an image has whole. Its keys begin with one of the next words and a space."""
    SETTINGS: Final = "settings"
    COUNTS: Final = "counts"
    """By lane or label, state and handler: how many jobs there are, or have ended."""
    REQUESTS: Final = "requests"
    SCHEDULES: Final = "schedules"
    METERS: Final = "meters"
    """By meter: when it is replenished, and the number of its last mark."""
    STEPS: Final = "steps"
    META: Final = "meta"

    MARKS: Final = "marks "
    """With a meter behind it: the ordered set of its marks."""


_OF_WHOLE: Final = (
    Maps.SETTINGS,
    Maps.COUNTS,
    Maps.REQUESTS,
    Maps.SCHEDULES,
    Maps.METERS,
    Maps.STEPS,
    Maps.META,
)
_LIVE_TEXTS: Final = frozenset(state.value for state in COUNTED)


def counted_as(key: Key) -> str:
    """Return the key of a number of jobs."""
    return json.dumps(key, ensure_ascii=False)


class Image(Settings):
    """The part of `ChainTables` that hears of the changes of others, and undoes its own.

    Attributes:
      batch: the head of the batch of which it is.
    """

    def __init__(self) -> None:
        self._known: Final[WeakValues[JobRecord]] = WeakValues()
        self._cache = Cache()
        self.batch: Head | None = None  # None: nothing is known
        self._numbers: dict[str, int] = {}  # {key of a count: it}, as it is in the storage
        self._requests = RequestLines()
        self._schedules: dict[int, DurableSchedule] = {}
        self._meters: dict[str, tuple[float, int]] = {}
        self._marks: dict[str, deque[Mark]] = {}  # those that were read
        self._steps: dict[str, LastStep] = {}
        self._meta: dict[str, str] = {}
        self._parsed: dict[str, tuple[str, Any]] = {}  # settings that were read before
        # {id: a job that has not ended}, while all are read; deltas change it, too
        self._collected: dict[int, JobRecord] | None = None
        self._settings = {}
        self._writes = 0
        self._begin_batch()

    def _begin_batch(self) -> None:
        """Note that nothing has changed since `batch`."""
        # {id: (the job, its columns before this batch, its texts in ordered sets then)}; of a new
        # one there are none
        self._before: dict[int, tuple[JobRecord, Row | None, Sequence[tuple[str, str]]]] = {}
        self._deleted: set[int] = set()
        self._settings_before: dict[tuple[str, str], Any] = {}
        self._requests_before: dict[int, Row | None] = {}
        self._schedules_before: dict[int, DurableSchedule | None] = {}
        self._meters_before: dict[str, tuple[float, int] | None] = {}
        self._added_marks: dict[str, list[Any]] = {}  # {meter: [marks, how many are kept]}
        self._forgotten_marks: set[str] = set()
        self._new_steps: dict[str, LastStep | None] = {}
        self._parked_before = self._cache.parked_until
        self._writes_before = self._writes

    def forget(self) -> None:
        """Drop all that is known."""
        self.batch = None
        self._known.clear()
        self._cache = Cache()
        self._settings, self.fair = {}, True
        self._marks = {}
        self._begin_batch()

    # ---- read whole

    def _read_whole(self, head: Head, whole: Mapping[str, str]) -> None:
        """Take what an image has whole; the running jobs are read apart."""
        by_kind: dict[str, dict[str, str]] = {kind: {} for kind in _OF_WHOLE}
        for name, text in whole.items():
            kind, _, key = name.partition(" ")
            by_kind[kind][key] = text
        settings, counts, requests, schedules, meters, steps, self._meta = by_kind.values()
        cache = self._cache
        self._settings = {kind.name: {} for kind in SETTING_KINDS}
        for key in sorted(settings):  # lanes take turns in the order of their names
            kind, _, name = key.partition("\0")
            self._settings[kind][name] = self._parse(key, settings[key])
        self._look_for_fair_lanes()
        self._numbers = {key: int(number) for key, number in counts.items()}
        live = [(key, n) for key, n in self._all_numbers() if key[1] in _LIVE_TEXTS]
        cache.counts = Counts(live)
        self._requests = RequestLines(tuple(json.loads(row)) for row in requests.values())
        self._schedules = {int(id): decode(row) for id, row in schedules.items()}
        self._meters = {name: _meter(row) for name, row in meters.items()}
        self._steps = {instance: decode(row) for instance, row in steps.items()}
        self.batch = head

    def _parse(self, key: str, text: str) -> Any:
        before = self._parsed.get(key)
        if before is None or before[0] != text:
            before = self._parsed[key] = text, decode(text)
        return before[1]

    def _all_numbers(self) -> list[tuple[Key, int]]:
        return [(tuple(json.loads(key)), number) for key, number in self._numbers.items()]

    # ---- told by others

    def catch_up(self, missed: Sequence[tuple[Head, str]]) -> None:
        """Take the deltas behind `batch`, in order."""
        for head, delta in missed:
            for change in json.loads(delta):
                getattr(self, f"_take_{change[0]}")(*change[1:])
            self.batch = head
        self._parked_before = self._cache.parked_until

    def _take_jobs(self, key: str, text: str | None, lane: str) -> None:
        id, cache = int(key), self._cache
        job = self._known.get(id)
        if job is not None and job.crashed_with:
            cache.suspected = None
        row = None if text is None else rows.row_of(text)
        record = None if row is None else rows.record_of(row)
        if self._collected is not None:
            put_row(self._collected, id, record)
        if row is None or record is None:
            self._is_gone(id, lane, job)
            return
        if record.crashed_with:
            cache.suspected = None
        # a dead job may keep its place, and its session closed
        if record.state in ENDED or (record.state is DEAD and record.place is None):
            self._is_gone(id, lane, job)
            if record.state in ENDED and record.due is not None and cache.kept_until is not None:
                cache.kept_until = min(cache.kept_until, record.due)
        elif rows.long_in(row):
            self._is_gone(id, lane, job)
            cache.is_unread(record)
        else:
            cache.is_now(self._is(id, row))

    def _is_gone(self, id: int, lane: str, job: JobRecord | None) -> None:
        """Note that a job has ended or was deleted, or that its record is none to be kept."""
        if job is not None:  # it may be in a front, which passes it over by this
            job.place = job.ready = None
            self._known.drop(id)
        self._cache.is_over(id, lane)

    def _is(self, id: int, row: Sequence[Any]) -> JobRecord:
        """Return the record of a job, which is what a row says."""
        job = self._known.get(id)
        if job is None:
            job = rows.record_of(row)
            self._known.put(id, job)
        else:
            rows.put_back(job, row)
        return job

    def _take_settings(self, key: str, text: str | None) -> None:
        kind, _, name = key.partition("\0")
        self._set(kind, name, None if text is None else decode(text))

    def _take_counts(self, key: str, text: str | None) -> None:
        number = 0 if text is None else int(text)
        by = number - self._numbers.get(key, 0)
        self._numbers[key] = number
        counted = tuple(json.loads(key))
        if counted[1] in _LIVE_TEXTS:
            assert self._cache.counts is not None
            self._cache.counts.add(counted, by)

    def _take_requests(self, key: str, text: str | None) -> None:
        self._requests.put(int(key), None if text is None else tuple(json.loads(text)))

    def _take_schedules(self, key: str, text: str | None) -> None:
        put_row(self._schedules, int(key), None if text is None else decode(text))

    def _take_steps(self, key: str, text: str | None) -> None:
        put_row(self._steps, key, None if text is None else decode(text))

    def _take_meters(self, key: str, text: str | None) -> None:
        put_row(self._meters, key, None if text is None else _meter(text))
        if text is None:
            self._marks.pop(key, None)

    def _take_marks(self, meter: str, added: Marks, keep: int) -> None:
        if meter in self._marks:
            put(self._marks[meter], [(time, starts) for time, starts in added], keep)

    # ---- undone

    def undo(self) -> None:
        """Let the image be what it was before the changes of this batch."""
        cache, counts = self._cache, self._cache.counts
        assert counts is not None
        cache.count()
        for key, by in cache.uncounted.items():
            if key[1] in _LIVE_TEXTS:
                counts.add(key, -by)
        cache.uncounted.clear()
        for (kind, name), value in self._settings_before.items():
            self._set(kind, name, value)
        for id, request in self._requests_before.items():
            self._requests.put(id, request)
        for id, schedule in self._schedules_before.items():
            put_row(self._schedules, id, schedule)
        for meter, before in self._meters_before.items():
            put_row(self._meters, meter, before)
            self._marks.pop(meter, None)
        cache.parked_until, cache.suspected = self._parked_before, None
        for id, (job, columns, _) in self._before.items():
            if columns is None:  # it may be in a front, which passes it over by this
                job.place = job.ready = None
                self._known.drop(id)
                cache.is_over(id, job.lane)
            else:
                if self._known.get(id) is None:  # it was deleted
                    self._known.put(id, job)
                cache.is_now(self._is(id, columns))
        counts.restore(0.0, everything=True)  # lanes may have been put aside for what is undone
        self._begin_batch()

    def _end_batch(self) -> None:
        """Note that the changes of this batch are in the storage."""
        for id, step in self._new_steps.items():
            put_row(self._steps, id, step)
        self._begin_batch()

    # ---- running jobs

    def _put_running(self, jobs: Sequence[JobRecord]) -> Running:
        runs = self._cache.runs = Running()
        for job in jobs:
            assert job.state is RUNNING
            runs.put(job)
        return runs


def _meter(text: str) -> tuple[float, int]:
    until, last = json.loads(text)
    return until, last


def put_row(rows_of: dict[Any, Any], key: Any, row: Any) -> None:
    """Set the row of a key; None: forget it."""
    if row is None:
        rows_of.pop(key, None)
    else:
        rows_of[key] = row
