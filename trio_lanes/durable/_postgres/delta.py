"""What a transaction has changed of that which caches have, as text: a delta."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias, final

from .._contract.state import PARKED, RUNNING, WAITING
from .._rules.counts import COUNTED, Key
from .._rules.job_record import JobRecord
from .._sql.rows import COLUMNS, Row, values_of
from .._wire.codec import encode

MAX_NAMED: Final = 1_000
"""How many jobs a delta names at most."""
LONG_TEXTS: Final = 16_000
"""From how many characters on the texts of a job are left out."""
MAX_DELTA: Final = 1_000_000
"""How many characters a delta has at most."""

_NOT_OVER: Final = frozenset({WAITING, PARKED, RUNNING})
_COUNTED_TEXTS: Final = frozenset(state.value for state in COUNTED)
_TEXTS: Final = ("payload", "checkpoint", "headers", "outcome", "cancel", "history")
_all_of: Final = values_of(COLUMNS)
_texts_of: Final = values_of(_TEXTS)
# some other text stands for each: who has the record knows that it is none to be kept
_all_but_texts_of: Final = values_of("lane" if name in _TEXTS else name for name in COLUMNS)

Change: TypeAlias = tuple[Key, int]
"""By how much a number of jobs has changed."""


@final
class Changes:
    """The changes of one transaction.

    Attributes:
      jobs: {id: the job that has changed}
      deleted: {id: the lane of the job that was deleted}
      counts: by how much the numbers of jobs have changed.
      settings: {(kind, name): the setting; None: it is gone}
      requests: {id: the columns of a request for a lock or a quota; None: it is gone}
      marks: [(meter, the marks that were added, how many are kept)], in order.
      suspects: whether jobs that have run in a crash have changed.
      incomplete: whether more has changed than this says.
    """

    def __init__(self) -> None:
        self.jobs: Final[dict[int, JobRecord]] = {}
        self.deleted: Final[dict[int, str]] = {}
        self.counts: Final[dict[Key, int]] = {}
        self.settings: Final[dict[tuple[str, str], Any]] = {}
        self.requests: Final[dict[int, Row | None]] = {}
        self.marks: Final[list[tuple[str, Sequence[Any], int]]] = []
        self.suspects = False
        self.incomplete = False

    def count(self, changes: Iterable[Change]) -> None:
        """Add changes of the numbers of jobs."""
        _count(self.counts, changes)

    def text(self) -> str | None:
        """Return the delta; None: it would not say all, or be too long."""
        if self.incomplete or len(self.jobs) > MAX_NAMED:
            return None
        rows: list[Row] = []
        long: list[Row] = []
        over = dict(self.deleted)
        for job in self.jobs.values():
            # a dead job may keep its place, and its session closed
            if job.state not in _NOT_OVER and job.place is None:
                over[job.id] = job.lane
            elif sum(len(text) for text in _texts_of(job) if text is not None) > LONG_TEXTS:
                long.append(_all_but_texts_of(job))
            else:
                rows.append(_all_of(job))
        counts = [(*key, by) for key, by in self.counts.items() if by]
        settings = [
            (*key, None if value is None else encode(value)) for key, value in self.settings.items()
        ]
        ids = list(over.items()), list(self.requests.items())
        text = json.dumps((rows, long, *ids, counts, settings, self.marks, self.suspects))
        return text if len(text) <= MAX_DELTA else None


@final
class Delta:
    """The changes of some transactions, in their order.

    Attributes:
      rows: {id: its columns}, of the jobs that have changed, and are neither over nor long.
      long: {id: its columns, with other texts}, of those whose texts are too long.
      over: {id: its lane}, of the jobs that have ended, are dead without a place, or deleted.
      settings: {(kind, name): its JSON; None: it is gone}

    For the others see `Changes`.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.rows: Final[dict[int, Row]] = {}
        self.long: Final[dict[int, Row]] = {}
        self.over: Final[dict[int, str]] = {}
        self.counts: Final[dict[Key, int]] = {}
        self.settings: Final[dict[tuple[str, str], str | None]] = {}
        self.requests: Final[dict[int, Row | None]] = {}
        self.marks: Final[list[tuple[str, Sequence[Any], int]]] = []
        self.suspects = False
        for text in texts:
            rows, long, over, requests, counts, settings, marks, suspects = json.loads(text)
            for id in (*(row[0] for row in (*rows, *long)), *(id for id, _ in over)):
                for before in (self.rows, self.long, self.over):
                    before.pop(id, None)  # the last word on a job counts
            self.rows.update((row[0], tuple(row)) for row in rows)
            self.long.update((row[0], tuple(row)) for row in long)
            self.over.update(over)
            self.requests.update(requests)
            _count(self.counts, (((lane, state, name), by) for lane, state, name, by in counts))
            self.settings.update(((kind, name), data) for kind, name, data in settings)
            self.marks.extend(marks)
            self.suspects = self.suspects or suspects


def _count(counts: dict[Key, int], changes: Iterable[Change]) -> None:
    for key, by in changes:
        if key[1] in _COUNTED_TEXTS:
            counts[key] = counts.get(key, 0) + by
