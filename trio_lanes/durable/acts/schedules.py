"""Schedules: they are set, fired, paused and removed.

A store keeps the next due time of each, and of all the first (`FIRES`), which each step tells its
instance. What comes after it, only the instances know: `FireSchedule` moves it on from the time
that the instance has seen, and submits the jobs, in one act. So no due time is submitted twice. And
it names the version that the instance has seen: one that was replaced meanwhile submits nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from ... import UnknownLaneError
from .._contract.act import Act, Lookups, Question
from .._contract.protocol import NAMES_LISTED
from .._contract.records import SubmittedJob
from .._contract.state import DEAD, ENDED
from .._options.schedule import DurableSchedule
from .._rules.budget import Budget
from .._rules.engine import Engine
from .._rules.lane_limits import configured, limit_of
from .._rules.queues import Queues
from .._rules.tables import FIRES, LIMITS
from .orders import Cancel

_PAST = ("id", "last", "last_id", "skipped", "skipped_in_row")
"""Fields that a schedule keeps when it is set again."""


class PutSchedule(Act[None]):
    """Set a schedule, or replace that of the same name, which keeps its past and its pause.

    The next due time stays, too, unless the due times are others now.

    Raises:
      UnknownLaneError, ValueError: as `Enqueue` does.
    """

    new: DurableSchedule

    def apply(self, queues: Queues) -> None:
        new, lanes = self.new, queues.tables.of(LIMITS)
        if limit_of(lanes, new.job.lane) is None:
            raise UnknownLaneError(new.job.lane, configured(lanes))
        if new.job.cost is not None:
            Budget(queues.tables, queues.now).check_units(new.job.lane, new.job.cost)
        old = queues.tables.schedule(new.name)
        version = queues.tables.next_number()
        if old is None:
            new = attrs.evolve(new, id=version, version=version)
        else:
            keeps = old.next is None or old.times == new.times
            past = {field: getattr(old, field) for field in _PAST}
            next = old.next if keeps else new.next
            new = attrs.evolve(new, next=next, version=version, **past)
        _put(queues, new)


class FireSchedule(Act[bool]):
    """Move a schedule on from a due time, and submit its jobs, as far as they may overlap.

    The answer is False, and nothing has changed, if this is not its next due time any more, or it
    was set again.

    Raises:
      LaneError, ValueError: as `Enqueue` does.
    """

    schedule: str
    version: int
    due: float
    next: float
    last: float
    """The due time of the last job."""
    skipped: int
    overlap: str
    outcome: str
    """Of the job before, if it is cancelled."""
    refused: str | None
    """Why a store has refused the jobs; then the batch is empty."""
    batch: Sequence[SubmittedJob]

    @property
    def lookups(self) -> Lookups:
        return Lookups(batch=self.batch)

    def apply(self, engine: Engine) -> bool:
        of, batch, skipped = engine.tables.schedule(self.schedule), self.batch, self.skipped
        if of is None or (of.version, of.next) != (self.version, self.due):
            return False
        before = None if of.last_id is None else engine.tables.get(of.last_id)
        if before is not None and (before.state in ENDED or before.state is DEAD):
            before = None
        in_row, refused = of.skipped_in_row, of.refused if self.refused is None else self.refused
        if before is not None and self.overlap == "skip":
            in_row += bool(batch)
            refused = None if batch else refused
            batch, skipped = (), skipped + len(batch)
        ids = engine.enqueue(batch)
        if ids:
            if before is not None and self.overlap == "cancel":
                Cancel(before.id, self.outcome).apply(engine)
            of = attrs.evolve(of, last=self.last, last_id=ids[-1])
            in_row, refused = 0, None
        of = attrs.evolve(of, next=self.next, skipped=of.skipped + skipped)
        _put(engine, attrs.evolve(of, skipped_in_row=in_row, refused=refused))
        return True


class PauseSchedule(Act[bool]):
    """Pause a schedule, or resume it.

    The answer is False, and nothing has changed, if there is none of that name and version.
    """

    schedule: str
    version: int
    next: float | None
    """The next due time of one that is resumed; None: it is paused."""

    def apply(self, queues: Queues) -> bool:
        of = queues.tables.schedule(self.schedule)
        if of is None or of.version != self.version:
            return False
        if self.next is None or of.next is None:
            _put(queues, attrs.evolve(of, next=self.next))
        return True


class DropSchedule(Act[bool]):
    """Forget a schedule; its jobs stay. The answer is False if there is none of that name."""

    schedule: str

    def apply(self, queues: Queues) -> bool:
        of = queues.tables.schedule(self.schedule)
        if of is not None:
            queues.tables.drop_schedule(of.id)
            _note_first(queues)
        return of is not None


class SchedulesOf(Question[tuple[float, list[DurableSchedule]]]):
    """The store's Unix time, and at most ``NAMES_LISTED`` schedules."""

    schedule: str | None
    """That of this name; None: all."""
    after: int | None
    """Those with ids above it, by id; None: those that are due, or the first that will be."""

    def answer(self, queues: Queues) -> tuple[float, list[DurableSchedule]]:
        tables = queues.tables
        now = queues.now - tables.ahead_of_wall()
        if self.schedule is not None:
            one = tables.schedule(self.schedule)
            return now, [] if one is None else [one]
        if self.after is not None:
            return now, tables.schedules(self.after, NAMES_LISTED)
        return now, tables.schedules_due(now, NAMES_LISTED) or tables.schedules_due(math.inf, 1)


def _put(queues: Queues, schedule: DurableSchedule) -> None:
    queues.tables.put_schedule(schedule)
    _note_first(queues)


def _note_first(queues: Queues) -> None:
    """Note when the first schedule falls due; if that is earlier now, instances take a step."""
    before = queues.tables.of(FIRES).get("")
    first = next((one.next for one in queues.tables.schedules_due(math.inf, 1)), None)
    if first != before:
        queues.tables.put(FIRES, "", first)
    if first is not None and (before is None or first < before):
        queues.work_ready = queues.work_elsewhere = True
