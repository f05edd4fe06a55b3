"""Orders of an operator: cancel, put first, clear, pause, resume, configure, requeue, purge."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import attrs

from ... import UnknownLaneError
from ..._config.names import is_template
from .._contract.records import GroupLimit, LaneLimit, Selection
from .._contract.state import CANCELLED, DEAD, ENDED, FAILED, RUNNING, WAITING
from . import rates
from .job_record import ON_LIST, SESSION_PAUSED, JobRecord
from .lane_limits import configured, label_of, limit_of
from .queues import Queues

PAUSE: Final = LaneLimit(0, pause_only=True)
"""The beginning of a pause of a lane of a template."""

T = TypeVar("T")


def known_lanes(queues: Queues, name: str) -> list[str]:
    """Return the lanes that a name means: that lane, or all present lanes of that template.

    Raises:
      UnknownLaneError: if the store has no such lane or template.
    """
    lanes = queues.tables.lanes()
    if is_template(name) and name in lanes:
        return sorted(
            {
                lane
                for lane in (*lanes, *(lane for lane, _, _ in queues.tables.counts()))
                if label_of(lanes, lane) == name
            }
        )
    if label_of(lanes, name) is None:
        raise UnknownLaneError(name, configured(lanes))
    return [name]


def cancel(queues: Queues, id: int, outcome: str, *, running: bool = True) -> bool:
    """End a job that does not run; record the cancellation of a job that runs, if ``running``.

    It is recorded before the run is cancelled, so the job is never claimed again.
    """
    job = queues.tables.get(id)
    if job is None or job.state in ENDED or job.state is DEAD:
        return False
    if job.state is RUNNING and not running:
        return False
    if job.state is RUNNING:
        if job.cancel is None:
            queues.tables.update(job, cancel=outcome)
        queues.look = True
    else:
        queues.end(job, CANCELLED, outcome)
    return True


AHEAD: Final = -(2**52)
"""Added to a number, it gives a place before all others, in the order of the numbers. The sum is
exact in a float, as every number of a store."""


def put_first(queues: Queues, id: int) -> bool:
    """Put a waiting job first in its session, behind jobs that were put first before it.

    A head that runs, or that holds its session closed between attempts or as dead, stays before it.
    """
    tables = queues.tables
    job = tables.get(id)
    if job is None or job.state is not WAITING or job.session is None:
        return False
    assert job.place is not None
    if job.place < 0:
        return True
    head = tables.head(job.session)
    assert head is not None
    assert head.place is not None
    place = tables.next_number() + AHEAD
    if head.id != job.id and head.place >= 0:
        if head.state is WAITING:
            tables.update(head, ready=None, shelf=ON_LIST)
            tables.update(job, place=place)
            queues.list_ready(job, first=True)
            return True
        tables.update(head, place=place)
        place = tables.next_number() + AHEAD
    tables.update(job, place=place)
    return True


def running(queues: Queues, session: str) -> JobRecord | None:
    """Return the job that runs in a session, which is the head of its queue."""
    head = queues.tables.head(session)
    return head if head is not None and head.state is RUNNING else None


def abort(queues: Queues, session: str, outcome: str) -> bool:
    """Record the cancellation of the job that runs in a session, if one does."""
    job = running(queues, session)
    return job is not None and cancel(queues, job.id, outcome)


def clear(
    queues: Queues,
    lane: str | None,
    session: str | None,
    outcome: str,
    *,
    limit: int,
    after: int | None = None,
) -> tuple[int, int | None]:
    """End the waiting and parked jobs of a lane or session, at most ``limit`` of them.

    Several transactions clear very many jobs, so that others can run between them. Each begins
    after the former, at the end: it ends only jobs with ids below ``after``. Jobs that were
    accepted later are not cleared. The last of them opens a session that a dead job held closed.

    Return how many jobs were ended, and ``after`` for the next call; None: there are no more.
    """
    tables = queues.tables
    lanes: Sequence[str | None] = [None] if lane is None else known_lanes(queues, lane)
    if after is None:
        after = tables.next_number()
    jobs: list[JobRecord] = []
    for one in lanes:
        jobs += tables.clearable(one, session, after, limit - len(jobs))
        if len(jobs) == limit:
            break
    # from the tail: if the head ended first, each of its successors would become ready in turn
    for job in sorted(jobs, key=lambda job: -(job.place or 0)):
        queues.end(job, CANCELLED, outcome)
    if len(jobs) == limit:
        if len(lanes) == 1 and session is None:
            after = min(job.id for job in jobs)
        return limit, after
    if session is not None:
        for job in tables.select(Selection(states=_DEAD, session=session), 0, -1, queues.now):
            _open_session(queues, job)
    return len(jobs), None


def pause(queues: Queues, lane: str | None, session: str | None, seconds: float) -> None:
    """Pause a lane or session for some seconds, or longer if it is paused for longer already."""
    until = queues.now + seconds
    if lane is not None:
        known_lanes(queues, lane)
        limit = queues.tables.lanes().get(lane, PAUSE)
        until = max(until, limit.paused_until or until)
        queues.tables.put_lane(lane, attrs.evolve(limit, paused_until=until))
    else:
        assert session is not None
        until = max(until, queues.tables.pause_of(session) or until)
        queues.tables.put_pause(session, until)
        head = queues.tables.head(session)
        if head is not None and head.ready is not None:
            queues.tables.update(head, shelf=SESSION_PAUSED)
    queues.look = until < math.inf  # a worker must know when the pause ends


def resume(queues: Queues, lane: str | None, session: str | None) -> None:
    """End a pause; of a template also the pauses of its lanes."""
    if lane is not None:
        for name in {lane, *known_lanes(queues, lane)}:
            limit = queues.tables.lanes().get(name)
            if limit is not None:
                resumed = None if limit.pause_only else attrs.evolve(limit, paused_until=None)
                queues.tables.put_lane(name, resumed)
        queues.look = True
    else:
        assert session is not None
        queues.resume_session(session)


def configure(
    queues: Queues,
    lanes: Mapping[str, LaneLimit | int | float | None],
    groups: Mapping[str, GroupLimit] | None,
    rules: Mapping[str, Any],
) -> None:
    """Set lanes and rules, and replace all groups if ``groups`` is given; all or nothing."""
    tables = queues.tables
    before, groups_before = tables.lanes(), tables.groups()
    after = dict(before)
    for name, value in lanes.items():
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
            after[name] = attrs.evolve(old or LaneLimit(value), concurrency=value, proposed=False)
    for name, limit in before.items():
        if limit.pause_only and label_of(after, name) is None:
            del after[name]
    groups_after = groups_before if groups is None else groups
    rates.check_groups(after, groups_after)
    if None in lanes.values():
        _check_unused(queues, before, after)
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            tables.put_lane(name, after.get(name))
    with_marks = {rates.lane_of(key) for key in tables.meters()}
    for lane in with_marks - {None}:
        assert lane is not None
        past, present = limit_of(before, lane), limit_of(after, lane)
        if past != present:
            _replace(queues, rates.lane_meters, lane, past, present)
    for name in {**groups_before, **groups_after}:
        was, is_now = groups_before.get(name), groups_after.get(name)
        if is_now != was:
            tables.put_group(name, is_now)
            _replace(queues, rates.group_meters, name, was, is_now)
    if rules:
        tables.put_rules(attrs.evolve(queues.rules, **rules))
    queues.look = True


def _check_unused(
    queues: Queues, before: Mapping[str, LaneLimit], after: Mapping[str, LaneLimit]
) -> None:
    """Refuse a configuration in which a lane with jobs does not exist any more."""
    used = Counter[str]()
    for (lane, state, _), count in queues.tables.counts().items():
        if state not in _FORGETTABLE:
            used[lane] += count
    for lane in sorted(used):
        if label_of(before, lane) is not None and label_of(after, lane) is None:
            raise ValueError(
                f"lane {lane!r} cannot be removed: it has {used[lane]} jobs; clear the lane, purge "
                "its dead jobs, and wait for the running jobs first"
            )


def _replace(
    queues: Queues,
    meters: Callable[[str, T], list[rates.Meter]],
    name: str,
    old: T | None,
    new: T | None,
) -> None:
    before = [] if old is None else meters(name, old)
    after = [] if new is None else meters(name, new)
    rates.replace(queues.tables, before, after, queues.now)


_FORGETTABLE = {state.value for state in ENDED}


def requeue(queues: Queues, of: Selection, *, limit: int, after: int = 0) -> tuple[int, int | None]:
    """Queue dead and failed jobs again: in their old places if they kept them, else at the tails.

    Attempts and crashes are counted from 0; a job keeps its last checkpoint. Return how many, and
    ``after`` for the next call; None: there are no more. So a job that dies again while further
    portions are queued is not queued twice.
    """
    jobs = _letters(queues, of, after, limit)
    for job in jobs:
        queues.tables.update(job, attempts=0, crashes=0, alone=0, company=0, cancel=None, due=None)
        revive(queues, job)
    return _portion(jobs, limit)


def revive(queues: Queues, job: JobRecord) -> None:
    """Put a dead or failed job back to WAITING; its attempts and crashes do not change."""
    held = job.place is not None
    if not held:
        if job.session is not None:
            queues.promote_session(job.session)
        queues.append(job)
    queues.advance(
        job,
        WAITING,
        place=job.place,
        ready=job.ready,
        shelf=job.shelf,
        outcome=None,
        error=None,
    )
    if held:
        queues.list_next_head(job.session)


def purge(queues: Queues, of: Selection, *, limit: int, after: int = 0) -> tuple[int, int | None]:
    """Forget dead and failed jobs and their keys. Return what `requeue` returns."""
    jobs = _letters(queues, of, after, limit)
    for job in jobs:
        _open_session(queues, job)
        queues.tables.delete(job)
    return _portion(jobs, limit)


def _letters(queues: Queues, of: Selection, after: int, limit: int) -> list[JobRecord]:
    """Return the first dead and failed jobs of a selection with ids above ``after``."""
    of = attrs.evolve(of, states=of.states & _LETTERS)
    return queues.tables.select(of, after, limit, queues.now)


def _portion(jobs: Sequence[JobRecord], limit: int) -> tuple[int, int | None]:
    return len(jobs), jobs[-1].id if len(jobs) == limit else None


_DEAD = frozenset({DEAD})
_LETTERS = frozenset({DEAD, FAILED})


def _open_session(queues: Queues, job: JobRecord) -> None:
    if job.place is not None:
        queues.tables.update(job, place=None)
        queues.list_next_head(job.session)
