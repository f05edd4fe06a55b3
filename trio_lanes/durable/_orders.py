"""Orders that people give: cancel, clear, pause, configure, and what becomes of dead jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from .._config.errors import UnknownLaneError
from . import _rates
from ._lines import Lines
from ._records import SESSION_PAUSED, GroupLimit, JobRecord, LaneLimit
from ._state import CANCELLED, DEAD, ENDED, FAILED, RUNNING, WAITING

T = TypeVar("T")


def known_lane(lines: Lines, lane: str) -> LaneLimit:
    """That lane.

    Raises:
      UnknownLaneError: if there is none.
    """
    lanes = lines.tables.lanes()
    if lane not in lanes:
        raise UnknownLaneError(lane, lanes)
    return lanes[lane]


def cancel(lines: Lines, id: int, outcome: str) -> bool:
    """End a job that does not run; record it for one that does, before anybody is told."""
    job = lines.tables.get(id)
    if job is None or job.state in ENDED or job.state is DEAD:
        return False
    if job.state is RUNNING:
        if job.cancel is None:
            lines.tables.update(job, cancel=outcome)
        lines.look = True
    else:
        lines.end(job, CANCELLED, outcome)
    return True


def clear(
    lines: Lines,
    lane: str | None,
    session: str | None,
    outcome: str,
    *,
    limit: int,
    before: int | None = None,
) -> tuple[int, int | None]:
    """End what waits or is parked there; a session that a dead job held closed is open again.

    No more than ``limit`` are ended at once, so that others can work meanwhile; and none that has
    an id from ``before`` on, which is of those that came later. Returns how many were, and the
    ``before`` with which to go on; None: that was all.
    """
    tables = lines.tables
    if lane is not None:
        known_lane(lines, lane)
    if before is None:
        before = tables.next_number()
    jobs = tables.clearable(lane, session, before, limit)
    # from the tail: a head that goes first would show each of its successors in turn
    for job in sorted(jobs, key=lambda job: -(job.place or 0)):
        lines.end(job, CANCELLED, outcome)
    if len(jobs) == limit:
        return limit, min(job.id for job in jobs) if session is None else before
    if session is not None:
        for job in tables.dead(None, session, 0, -1):
            _open_session(lines, job)
    return len(jobs), None


def pause(lines: Lines, lane: str | None, session: str | None, seconds: float) -> None:
    """Claim nothing there for that long, or longer if that was said before."""
    until = lines.now + seconds
    if lane is not None:
        limit = known_lane(lines, lane)
        until = max(until, limit.paused_until or until)
        lines.tables.put_lane(lane, attrs.evolve(limit, paused_until=until))
    else:
        assert session is not None
        until = max(until, lines.tables.pause_of(session) or until)
        lines.tables.put_pause(session, until)
        head = lines.tables.head(session)
        if head is not None and head.ready is not None:
            lines.tables.update(head, shelf=SESSION_PAUSED)
    lines.look = until < math.inf  # somebody must know when it ends


def resume(lines: Lines, lane: str | None, session: str | None) -> None:
    """Undo `pause`."""
    if lane is not None:
        lines.tables.put_lane(lane, attrs.evolve(known_lane(lines, lane), paused_until=None))
        lines.look = True
    else:
        assert session is not None
        lines.resume_session(session)


def configure(
    lines: Lines,
    lanes: Mapping[str, LaneLimit | int | float | None],
    groups: Mapping[str, GroupLimit] | None = None,
    rules: Mapping[str, Any] | None = None,
) -> None:
    """Set lanes and rules, and replace all groups if some are given; all of it, or nothing."""
    tables = lines.tables
    before, groups_before = tables.lanes(), tables.groups()
    after = dict(before)
    for name, value in lanes.items():
        if value is None:
            known_lane(lines, name)
            _check_unused(lines, name)
            del after[name]
        elif isinstance(value, LaneLimit):
            after[name] = value
        elif name in before:
            after[name] = attrs.evolve(before[name], concurrency=value, proposed=False)
        else:
            after[name] = LaneLimit(value)
    groups_after = groups_before if groups is None else groups
    _rates.check_groups(after, groups_after)
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if new != old:
            tables.put_lane(name, new)
            _replace(lines, _rates.lane_meters, name, old, new)
    for name in {**groups_before, **groups_after}:
        was, is_now = groups_before.get(name), groups_after.get(name)
        if is_now != was:
            tables.put_group(name, is_now)
            _replace(lines, _rates.group_meters, name, was, is_now)
    if rules:
        tables.put_rules(attrs.evolve(lines.rules, **rules))
    lines.look = True


def _check_unused(lines: Lines, name: str) -> None:
    used = sum(
        count
        for (lane, state, _), count in lines.tables.counts().items()
        if lane == name and state not in _FORGETTABLE
    )
    if used:
        raise ValueError(f"lane {name!r} cannot be removed: it has {used} jobs")


def _replace(
    lines: Lines,
    meters: Callable[[str, T], list[_rates.Meter]],
    name: str,
    old: T | None,
    new: T | None,
) -> None:
    before = [] if old is None else meters(name, old)
    after = [] if new is None else meters(name, new)
    _rates.replace(lines.tables, before, after, lines.now)


_FORGETTABLE = {state.value for state in ENDED}


def requeue(lines: Lines, id: int) -> bool:
    """Take a dead or failed job back into line: in its old place if it has that, else at the tail.

    Its attempts and crashes are counted anew; it finds its last checkpoint.
    """
    job = lines.known(id)
    if job is None or job.state not in _LETTERS:
        return False
    lines.tables.update(job, attempts=0, crashes=0, alone=0, company=0, cancel=None, due=None)
    revive(lines, job)
    return True


def revive(lines: Lines, job: JobRecord) -> None:
    """Take a dead or failed job back to WAITING, with the attempts and crashes that it has."""
    held = job.place is not None
    if not held:
        if job.session is not None:
            lines.promote_session(job.session)
        lines.stand(job)
    lines.advance(job, WAITING, place=job.place, ready=job.ready, shelf=job.shelf, outcome=None)
    if held:
        lines.show_next(job.session)


def purge(
    lines: Lines,
    id: int | None,
    lane: str | None,
    session: str | None,
    *,
    failed: bool = False,
    limit: int,
) -> int:
    """Forget dead jobs, and their keys; no more than ``limit``. Returns how many they were.

    Also failed ones: that with the ``id``, or all if ``failed``.
    """
    if id is not None:
        job = lines.known(id)
        jobs = [] if job is None or job.state not in _LETTERS else [job]
    else:
        jobs = letters(lines, lane, session, 0, limit, failed=failed)
    for job in jobs:
        _open_session(lines, job)
        lines.tables.delete(job)
    return len(jobs)


def letters(
    lines: Lines, lane: str | None, session: str | None, after: int, limit: int, *, failed: bool
) -> list[JobRecord]:
    """Up to ``limit`` dead jobs, and failed ones if asked, in order of their ids."""
    jobs = lines.tables.dead(lane, session, after, limit)
    if failed:
        jobs += lines.tables.failed(lane, session, after, limit, lines.now)
        jobs.sort(key=lambda job: job.id)
    return jobs if limit < 0 else jobs[:limit]


_LETTERS = frozenset({DEAD, FAILED})


def _open_session(lines: Lines, job: JobRecord) -> None:
    if job.place is not None:
        lines.tables.update(job, place=None)
        lines.show_next(job.session)
