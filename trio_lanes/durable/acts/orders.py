"""Orders of an operator: cancel, put first, promote, clear, pause, configure, requeue, purge."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from ... import UnknownLaneError
from ..._config.names import is_template
from .._contract.act import Act, PortionedAct
from .._contract.records import GroupLimit, LaneLimit, Selection
from .._contract.state import CANCELLED, DEAD, DEAD_LETTERS, ENDED, PARKED, RUNNING, WAITING
from .._rules import fair, rates
from .._rules.holds import note_hold
from .._rules.job_record import ON_LIST, SESSION_PAUSED, JobRecord
from .._rules.lane_limits import configured, label_of, limit_of
from .._rules.queues import Queues
from .._rules.tables import GROUPS, LIMITS, PAUSES, RULES

_Rated: TypeAlias = LaneLimit | GroupLimit

PAUSE: Final = LaneLimit(0, pause_only=True)
"""The beginning of a pause of a lane of a template."""
BEFORE_ALL: Final = -(2**52)
"""Added to a number, it gives a place before all others, in the order of the numbers. The sum is
exact in a float, as every number of a store."""


class Cancel(Act[bool]):
    """End a job that does not run; record the cancellation of a job that runs.

    It is recorded before the run is cancelled, so the job is never claimed again. The answer is
    False if the job had ended; without ``running`` also if it runs.
    """

    id: int
    outcome: str
    running: bool = True

    def apply(self, queues: Queues) -> bool:
        job = queues.tables.get(self.id)
        if job is None or job.state in ENDED or job.state is DEAD:
            return False
        if job.state is RUNNING and not self.running:
            return False
        if job.state is RUNNING:
            if job.cancel is None:
                queues.tables.update(job, cancel=self.outcome)
            queues.work_ready = True
        else:
            queues.end(job, CANCELLED, self.outcome)
        return True


class PutFirst(Act[bool]):
    """Put a waiting job before the other waiting jobs of its session.

    Jobs that were put first keep the order in which they were. A head that runs, or that holds its
    session closed between attempts or as dead, stays before it. The answer is False if the job does
    not wait, or has no session.
    """

    id: int

    def apply(self, queues: Queues) -> bool:
        tables = queues.tables
        job = tables.get(self.id)
        if job is None or job.state is not WAITING or job.session is None:
            return False
        assert job.place is not None
        if job.place < 0:
            return True  # it was put first before, and keeps its place among such jobs
        head = tables.head(job.session)
        assert head is not None
        assert head.place is not None
        place = tables.next_number() + BEFORE_ALL
        if head.id != job.id and head.place >= 0:
            if head.state is WAITING:
                if head.party is not None:
                    fair.leave(tables, head, claimed=False)
                tables.update(head, ready=None, shelf=ON_LIST)
                tables.update(job, place=place)
                queues.list_ready(job, first=True)
                return True
            tables.update(head, place=place)
            place = tables.next_number() + BEFORE_ALL
        tables.update(job, place=place)
        return True


class Promote(Act[bool]):
    """Make a parked job due now. The answer is False if the job is not parked.

    It joins its queue as each job that becomes due: at the tail, behind jobs that were due before.
    A job between two attempts that kept its place has it again.
    """

    id: int

    def apply(self, queues: Queues) -> bool:
        job = queues.tables.get(self.id)
        if job is None or job.state is not PARKED:
            return False
        queues.promote_one(job)
        return True


class AbortRun(Act[bool]):
    """Record the cancellation of the job that runs in a session; jobs that wait are left.

    The answer is False if none runs.
    """

    session: str
    outcome: str

    def apply(self, queues: Queues) -> bool:
        job = queues.running_in(self.session)
        return job is not None and Cancel(job.id, self.outcome).apply(queues)


class Clear(PortionedAct, long=True):
    """End the waiting and parked jobs of a lane or a session. The answer is how many they were.

    The name of a template means all its lanes, here and in `Pause`, `Resume`. Each portion begins
    after the former, at the end: it ends only jobs with ids below ``after``. Jobs that were
    accepted later are not cleared. The last portion opens a session that a dead job held closed.
    """

    lane: str | None
    session: str | None
    outcome: str

    def portion(self, queues: Queues, limit: int, after: int | None) -> tuple[int, int | None]:
        tables = queues.tables
        lanes: Sequence[str | None] = (
            [None] if self.lane is None else _known_lanes(queues, self.lane)
        )
        if after is None:
            after = tables.next_number()
        jobs: list[JobRecord] = []
        for one in lanes:
            jobs += tables.clearable(one, self.session, after, limit - len(jobs))
            if len(jobs) == limit:
                break
        # from the tail: if the head ended first, each of its successors would become ready in turn
        for job in sorted(jobs, key=lambda job: -(job.place or 0)):
            queues.end(job, CANCELLED, self.outcome)
        if len(jobs) == limit:
            if len(lanes) == 1 and self.session is None:
                after = min(job.id for job in jobs)
            return limit, after
        if self.session is not None:
            for job in tables.select(
                Selection(states=_ONLY_DEAD, session=self.session), 0, -1, queues.now
            ):
                _open_session(queues, job)
        return len(jobs), None


class Pause(Act[None]):
    """Claim no job of a lane or session for some seconds; `math.inf`: until `Resume`.

    It can prolong a pause, never shorten it. A lane of a template is paused while the template is,
    whatever its own pause.
    """

    lane: str | None
    session: str | None
    seconds: float

    def apply(self, queues: Queues) -> None:
        until = queues.now + self.seconds
        if self.lane is not None:
            _known_lanes(queues, self.lane)
            limit = queues.tables.of(LIMITS).get(self.lane, PAUSE)
            until = max(until, limit.paused_until or until)
            queues.tables.put(LIMITS, self.lane, attrs.evolve(limit, paused_until=until))
            if not is_template(self.lane):
                note_hold(queues.tables, queues.now, self.lane, "pause", until=until)
        else:
            assert self.session is not None
            until = max(until, queues.tables.of(PAUSES).get(self.session) or until)
            queues.tables.put(PAUSES, self.session, until)
            head = queues.tables.head(self.session)
            if head is not None and head.ready is not None:
                if head.party is not None:
                    fair.leave(queues.tables, head, claimed=False)
                    queues.tables.update(head, ready=queues.tables.next_number())
                queues.tables.update(head, shelf=SESSION_PAUSED)
        queues.work_ready = until < math.inf  # a worker must know when the pause ends


class Resume(Act[None]):
    """End a pause; with the name of a template, also the pauses of its lanes."""

    lane: str | None
    session: str | None

    def apply(self, queues: Queues) -> None:
        if self.lane is not None:
            for name in {self.lane, *_known_lanes(queues, self.lane)}:
                limit = queues.tables.of(LIMITS).get(name)
                if limit is not None:
                    resumed = None if limit.pause_only else attrs.evolve(limit, paused_until=None)
                    queues.tables.put(LIMITS, name, resumed)
                note_hold(queues.tables, queues.now, name, "")
            queues.work_ready = True
        else:
            assert self.session is not None
            queues.resume_session(self.session)


class Configure(Act[None]):
    """Set lanes: a number sets the concurrency alone, None removes the lane. All or nothing.

    Raises:
      ValueError: for the removal of a lane or template of whose lanes jobs have not ended, unless a
        template matches them, or that is in a group; for a lane in two groups.
    """

    lanes: Mapping[str, LaneLimit | int | float | None]
    groups: Mapping[str, GroupLimit] | None
    """If given, they replace all groups."""
    rules: Mapping[str, Any]
    """The fields of `StoreRules` to change, by name."""

    def apply(self, queues: Queues) -> None:
        tables = queues.tables
        before, groups_before = tables.of(LIMITS), tables.of(GROUPS)
        after = dict(before)
        for name, value in self.lanes.items():
            old = before.get(name)
            if old is not None and old.pause_only:
                # a lane of a template gets limits of its own, and keeps its pause
                old = attrs.evolve(LaneLimit(0), paused_until=old.paused_until)
            if value is None:
                if name not in configured(before):
                    raise UnknownLaneError(name, configured(before))
                del after[name]
            elif isinstance(value, LaneLimit):
                after[name] = value
            else:
                after[name] = attrs.evolve(
                    old or LaneLimit(value), concurrency=value, proposed=False
                )
        for name, limit in before.items():
            if limit.pause_only and label_of(after, name) is None:
                del after[name]
        groups_after = groups_before if self.groups is None else self.groups
        rates.check_groups(after, groups_after)
        if None in self.lanes.values():
            _check_unused(queues, before, after)
        for name in {**before, **after}:
            if before.get(name) != after.get(name):
                tables.put(LIMITS, name, after.get(name))
        fair.relist_changed(tables, before)
        for lane in rates.names_of("lane", tables.meters()):
            past, present = limit_of(before, lane), limit_of(after, lane)
            if past != present:
                _replace(queues, f"lane {lane}", past, present)
        for name in {**groups_before, **groups_after}:
            was, is_now = groups_before.get(name), groups_after.get(name)
            if is_now != was:
                tables.put(GROUPS, name, is_now)
                _replace(queues, f"group {name}", was, is_now)
        if self.rules:
            tables.put(RULES, "", attrs.evolve(queues.rules, **self.rules))
        queues.work_ready = True


class Requeue(PortionedAct):
    """Queue dead and failed jobs again, with attempts and crashes at 0. The answer is how many.

    They come in their old places if they kept them, else at the tails, with their last checkpoints;
    the oldest first. A job that dies again meanwhile is not queued twice.
    """

    of: Selection

    @property
    def long(self) -> bool:
        return self.of.id is None

    def portion(self, queues: Queues, limit: int, after: int | None) -> tuple[int, int | None]:
        jobs = _letters(queues, self.of, after, limit)
        for job in jobs:
            queues.tables.update(
                job,
                attempts=0,
                crashes=0,
                crashes_alone=0,
                crashed_with=0,
                cancel=None,
                due=None,
                why=None,
            )
            queues.revive(job)
        return _portion(jobs, limit)


class Purge(PortionedAct):
    """Forget dead and failed jobs and their keys. The answer is how many."""

    of: Selection

    @property
    def long(self) -> bool:
        return self.of.id is None

    def portion(self, queues: Queues, limit: int, after: int | None) -> tuple[int, int | None]:
        jobs = _letters(queues, self.of, after, limit)
        for job in jobs:
            _open_session(queues, job)
            queues.tables.delete(job)
            queues.news.append((job.id, None))  # a task may wait for it, if it has heard nothing
        return _portion(jobs, limit)


def _known_lanes(queues: Queues, name: str) -> list[str]:
    """Return the lanes that a name means: that lane, or all present lanes of that template.

    Raises:
      UnknownLaneError: if the store has no such lane or template.
    """
    lanes = queues.tables.of(LIMITS)
    if is_template(name) and name in lanes:
        return sorted(
            {
                lane
                for lane in (*lanes, *(lane for lane, _, _ in queues.tables.counts().all()))
                if label_of(lanes, lane) == name
            }
        )
    if label_of(lanes, name) is None:
        raise UnknownLaneError(name, configured(lanes))
    return [name]


def _check_unused(
    queues: Queues, before: Mapping[str, LaneLimit], after: Mapping[str, LaneLimit]
) -> None:
    """Refuse a configuration in which a lane with jobs does not exist any more."""
    used = Counter[str]()
    for (lane, _, _), count in queues.tables.counts().all().items():
        used[lane] += count
    for lane in sorted(used):
        if label_of(before, lane) is not None and label_of(after, lane) is None:
            raise ValueError(
                f"lane {lane!r} cannot be removed: it has {used[lane]} jobs; clear the lane, purge "
                "its dead jobs, and wait for the running jobs first"
            )


def _replace(queues: Queues, owner: str, old: _Rated | None, new: _Rated | None) -> None:
    before, after = (
        [] if limit is None else rates.meters_of(queues.tables, owner, limit.rates)
        for limit in (old, new)
    )
    rates.replace(queues.tables, before, after, queues.now)


_ONLY_DEAD: Final = frozenset({DEAD})


def _letters(queues: Queues, of: Selection, after: int | None, limit: int) -> list[JobRecord]:
    """Return the first dead and failed jobs of a selection with ids above ``after``."""
    of = attrs.evolve(of, states=of.states & DEAD_LETTERS)
    return queues.tables.select(of, after or 0, limit, queues.now)


def _portion(jobs: Sequence[JobRecord], limit: int) -> tuple[int, int | None]:
    return len(jobs), jobs[-1].id if len(jobs) == limit else None


def _open_session(queues: Queues, job: JobRecord) -> None:
    if job.place is not None:
        queues.tables.update(job, place=None)
        queues.list_next_head(job.session)
