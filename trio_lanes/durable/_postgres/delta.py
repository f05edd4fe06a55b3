"""`Delta`: what a transaction has changed of what caches have, as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias, final

from .._contract.state import PARKED, RUNNING, WAITING
from .._rules.counts import COUNTED, Key
from .._rules.job_record import JobRecord
from .._sql.rows import COLUMNS, values_of

JOBS: Final = 1_000
"""How many jobs a delta names at most."""
LONG: Final = 4_000
"""How many characters the texts of a job in a delta have at most; else it is read by its id."""

_LIVE: Final = frozenset({WAITING, PARKED, RUNNING})
_COUNTED_TEXTS: Final = frozenset(state.value for state in COUNTED)
_all_of: Final = values_of(COLUMNS)
_texts_of: Final = values_of(("payload", "checkpoint", "headers", "outcome", "cancel", "history"))

Row: TypeAlias = Sequence[Any]
"""A row of a job's columns; or its id alone: it is to be read."""


@final
class Delta:
    """The changes of one transaction to what caches have, or of several in their order.

    Attributes:
      jobs: {id: the job that has changed}
      rows: {id: its row}, of what others have changed.
      over: {id: its lane}, of the jobs that have ended, are dead or deleted.
      counts: by how much the numbers of jobs have changed.
      settings: {(kind, name): its JSON; None: it is gone}
      marks: [(meter, the marks that were added, how many are kept)], in order.
      suspects: whether jobs that have run in a crash have changed.
      incomplete: whether more has changed than this says.
    """

    def __init__(self) -> None:
        self.jobs: Final[dict[int, JobRecord]] = {}
        self.rows: Final[dict[int, Row]] = {}
        self.over: Final[dict[int, str]] = {}
        self.counts: Final[dict[Key, int]] = {}
        self.settings: Final[dict[tuple[str, str], str | None]] = {}
        self.marks: Final[list[tuple[str, Sequence[Any], int]]] = []
        self.suspects = False
        self.incomplete = False

    def count(self, numbers: Iterable[tuple[Key, int]]) -> None:
        """Add changes of the numbers of jobs."""
        for key, by in numbers:
            if key[1] in _COUNTED_TEXTS:
                self.counts[key] = self.counts.get(key, 0) + by

    def text(self) -> str | None:
        """Return the delta as text; None: it would not say all."""
        if self.incomplete or len(self.jobs) > JOBS:
            return None
        rows: list[Row] = []
        over = dict(self.over)
        for job in self.jobs.values():
            if job.state not in _LIVE:
                over[job.id] = job.lane
            elif sum(len(text) for text in _texts_of(job) if text is not None) > LONG:
                rows.append((job.id,))
            else:
                rows.append(_all_of(job))
        return json.dumps(
            (
                rows,
                list(over.items()),
                [(*key, by) for key, by in self.counts.items() if by],
                [(*key, data) for key, data in self.settings.items()],
                self.marks,
                self.suspects,
            )
        )

    def add(self, text: str) -> None:
        """Add the text of a delta that follows."""
        rows, over, counts, settings, marks, suspects = json.loads(text)
        for row in rows:
            self.over.pop(row[0], None)
            self.rows[row[0]] = row
        for id, lane in over:
            self.rows.pop(id, None)
            self.over[id] = lane
        self.count(((lane, state, name), by) for lane, state, name, by in counts)
        for kind, name, data in settings:
            self.settings[kind, name] = data
        self.marks.extend(marks)
        self.suspects = self.suspects or suspects
