"""What can be wrong with a store besides the waits of jobs, by kinds of problems."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, final

import trio

from ... import Problem, resolve_session_lane
from ..._config.problems import PROBLEM_AFTER
from ..._config.reasons import in_words
from .._contract.errors import ResultGoneError
from .._contract.protocol import JOBS_LISTED
from .._contract.records import (
    DurableStatistics,
    DurableStatus,
    HeldSnapshot,
    InstanceInfo,
    QuotaStatistics,
    is_budget,
)
from .._contract.state import DEAD, ENDED, RUNNING
from .._options.schedule import DurableSchedule
from ..acts.inspection import HeldSnapshots
from .causes import lives
from .failures import last_letters

if TYPE_CHECKING:
    from .lanes import DurableLanes

DEAD_FOR: Final = 3600.0
"""For how many seconds after its death a dead job is a problem."""
SKIPPED_IN_ROW: Final = 3
"""From how many due times in a row that it has skipped a schedule is a problem."""
GIVES_NOTHING_FOR: Final = 60.0
"""Seconds from now on for which it is a problem that a quota gives nothing back."""
HELD_FOR: Final = 300.0
"""Seconds from which on it is a problem that a snapshot is held."""
LOG_KEPT: Final = 256 * 1024 * 1024
"""How many bytes of the log of a SQLite file a reader may keep."""

_MOST_DEAD: Final = 20
"""Of how many dead jobs, the oldest, it is asked whether they keep their sessions closed."""
_MOST_TYPES: Final = 3  # of errors, in a text
_MOST_SCHEDULES: Final = 200


def _at(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S} UTC"


# ---- instances


def silent_instances(instances: Iterable[InstanceInfo]) -> Problem | None:
    """Return that instances have sent no heartbeat for longer than half of their leases."""
    silent = [one for one in instances if one.silent > one.lease_ttl / 2]
    if not silent:
        return None
    each = ", ".join(
        f"{one.host} {one.pid} for {in_words(one.silent)} ("
        + (
            f"its {one.running:,} runs are given up in {in_words(one.lease_ttl - one.silent)}"
            if one.alive
            else f"its {one.running:,} runs are given up by the next instance that lives"
        )
        + ")"
        for one in silent[:3]
    )
    more = f", and {len(silent) - 3:,} more" if len(silent) > 3 else ""
    text = f"silent for longer than half of a lease: {each}{more}"
    advice = "see whether its process stands still, or has lost its network; else start a worker"
    return Problem("instance", "", text, advice)


def without_instance(
    now: DurableStatistics, instances: Iterable[InstanceInfo], time: float
) -> Problem | None:
    """Return that what is parked or scheduled has been due for long, and no instance lives."""
    if not now.due or now.next_due is None or any(lives(one) is not False for one in instances):
        return None
    waited = time - now.next_due
    if waited <= PROBLEM_AFTER:
        return None
    text = f"no instance lives, and {now.due:,} are due, the first for {in_words(waited)}"
    return Problem("instance", "", text, "start a worker")


# ---- dead letters


@final
class Letters:
    """The dead jobs, kept until others have died: they are many, and mostly the same."""

    def __init__(self) -> None:
        self._read_for: tuple[int, ...] = ()
        self._letters: list[DurableStatus] = []
        self._is_whole = True

    async def look(
        self, lanes: DurableLanes, now: DurableStatistics, time: float
    ) -> list[Problem | None]:
        """Return the lanes whose jobs have died lately, and the sessions that dead jobs close."""
        if not now.dead:
            return []
        deaths = (one.get(DEAD.value, 0) for one in now.ended.values())
        read_for = now.dead, sum(deaths)  # a job that is requeued and dies again is another death
        if read_for != self._read_for:
            self._letters, self._is_whole = await last_letters(
                lambda time: lanes.jobs(states=[DEAD], since=time, limit=JOBS_LISTED),
                None,
                JOBS_LISTED,
            )
            self._read_for = read_for
        found: list[Problem | None] = []
        if (await lanes.rules()).hold:
            for dead in await lanes.dead(limit=_MOST_DEAD):
                found.append(await _closes(lanes, dead))
        return found + self._lately(now, time)

    def _lately(self, now: DurableStatistics, time: float) -> list[Problem | None]:
        of_lanes: defaultdict[str, list[DurableStatus]] = defaultdict(list)
        for job in self._letters:
            died_at = job.history[-1].ended_at if job.history else None
            if (died_at or job.submitted_at) >= time - DEAD_FOR:
                of_lanes[job.lane].append(job)
        found: list[Problem | None] = []
        for lane, jobs in of_lanes.items():
            types = Counter((job.error or "").partition(":")[0] for job in jobs).most_common()
            each = ", ".join(f"{count:,} by {type}" for type, count in types[:_MOST_TYPES])
            each += ", ..." if len(types) > _MOST_TYPES else ""
            text = f"{len(jobs):,} of {lane!r} died within the last hour"
            text += "" if self._is_whole else f", of the last {len(self._letters):,} dead jobs"
            there = now.lanes.get(lane)
            text += f": {each}; {len(jobs) if there is None else there.dead:,} are dead in all"
            advice = "look at them by trio-lanes failures, and requeue or purge them"
            found.append(Problem("dead", lane, text, advice, jobs[-1].id))
        return found


async def _closes(lanes: DurableLanes, dead: DurableStatus) -> Problem | None:
    """Return the problem of a session that a dead job keeps closed, and that has other jobs."""
    if dead.session is None:
        return None
    queue = await lanes.queue(dead.session, 1)
    reasons = [reason for behind in queue for reason in await lanes.blocked_by(behind.id)]
    if "dead" not in [reason.kind for reason in reasons]:
        return None
    lane = resolve_session_lane(dead.session)
    text = f"job {dead.id} {dead.name!r} is dead and keeps {lane} closed ({dead.error})"
    return Problem("dead", lane, text, f"requeue or purge {dead.id}", dead.id)


# ---- schedules


async def schedules(lanes: DurableLanes) -> tuple[list[Problem | None], list[str]]:
    """Return which schedules skip, or were refused; and in words what was not looked at."""
    found = await lanes.schedules(_MOST_SCHEDULES + 1)
    more = ["some of the schedules"] if len(found) > _MOST_SCHEDULES else []
    return [await _schedule(lanes, one) for one in found[:_MOST_SCHEDULES]], more


async def _schedule(lanes: DurableLanes, one: DurableSchedule) -> Problem | None:
    if one.paused:
        return None
    lane = f"schedule:{one.name}"
    if one.refused is not None:
        text = f"the last job of schedule {one.name!r} was refused: {one.refused}"
        return Problem("schedule", lane, text, "mend what it names, or set the schedule again")
    if one.skipped_in_row < SKIPPED_IN_ROW or one.overlap != "skip" or one.last_id is None:
        return None
    try:
        before = await lanes.job(one.last_id).status()
    except ResultGoneError:
        return None
    if before.state in ENDED or before.state is DEAD:
        return None  # the next due time finds nothing in its way
    does, since = "has waited", before.submitted_at
    if before.state is RUNNING:
        does, since = "has run", before.history[-1].started_at
    text = f"schedule {one.name!r} has skipped its last {one.skipped_in_row:,} due times: its job "
    text += f"{before.id} {does} since {_at(since)}, for {in_words(before.seen_at - since)}"
    advice = f"cancel {before.id}, or give the schedule another overlap"
    return Problem("schedule", lane, text, advice, before.id)


# ---- quotas


async def quotas(lanes: DurableLanes, now: DurableStatistics, time: float) -> list[Problem | None]:
    """Return the quotas for which work waits, and that give nothing back for long."""
    return [await _quota(lanes, one, time) for one in now.quotas if one.waiters]


async def _quota(lanes: DurableLanes, one: QuotaStatistics, time: float) -> Problem | None:
    first = one.waiters[0]
    if time - first.since <= PROBLEM_AFTER:
        return None
    ends = [level.full_at for level in one.levels if is_budget(level.limit) and level.left <= 0]
    until = max((end for end in ends if end is not None), default=-math.inf)
    if first.job is not None:
        with suppress(ResultGoneError):  # it may end meanwhile
            reasons = [r for r in await lanes.blocked_by(first.job) if r.kind == "quota"]
            until = max((r.until for r in reasons if r.until is not None), default=until)
    if until - time < GIVES_NOTHING_FOR:
        return None
    used = ", ".join(f"{level.used:,} used of {level.limit.in_words}" for level in one.levels)
    text = f"{one.waiting:,} wait for the quota {one.name!r}, the first for "
    text += f"{in_words(time - first.since)} ({used}); it gives nothing back until {_at(until)}, "
    text += f"for {in_words(until - time)}"
    advice = f'raise the limit of the quota "{one.name}", grant more, or reset it'
    return Problem("quota", one.name, text, advice, first.job)


# ---- snapshots


@final
class Snapshots:
    """Snapshots that are held; and since when those are seen whose ages the store cannot see."""

    def __init__(self) -> None:
        self._seen: dict[HeldSnapshot, float] = {}

    async def look(self, lanes: DurableLanes, time: float) -> tuple[Problem | None, list[str]]:
        """Return that one is held for too long; and in words of which that is not known."""
        now = trio.current_time()
        held = await lanes._store.look(HeldSnapshots())
        self._seen = {
            one: self._seen.get(one, now) for one in held if one.age is None and one.kind != "log"
        }
        ages = [(one.age or now - self._seen.get(one, now), one) for one in held]
        old = [
            (age, one)
            for age, one in ages
            if (one.size > LOG_KEPT if one.kind == "log" else age >= HELD_FOR)
        ]
        hidden = (
            one.kind == "session" and one in self._seen for age, one in ages if age < HELD_FOR
        )
        young = sum(hidden)
        more = [f"since when {young:,} sessions hold snapshots (pg_read_all_stats shows it)"]
        return self._problem(old, time) if old else None, more if young else []

    def _problem(self, old: Sequence[tuple[float, HeldSnapshot]], time: float) -> Problem:
        age, one = max(old, key=lambda each: each[0])
        more = f"; and {len(old) - 1:,} more do" if len(old) > 1 else ""
        if one.kind == "log":
            text = f"a reader keeps {one.size / 1e6:,.0f} MB in the log of {one.name}"
            advice = "end what reads the file: a backup, a shell, a process that stands still"
            return Problem("snapshot", "", text, advice)
        what, advice = {
            "session": (f"the session {one.name}", f"end it: pg_terminate_backend({one.name})"),
            "prepared": (
                f"the prepared transaction {one.name!r}",
                f"COMMIT PREPARED or ROLLBACK PREPARED {one.name!r}",
            ),
            "slot": (f"the replication slot {one.name!r}", "have its consumer go on, or drop it"),
        }[one.kind]
        whose = f" of {one.application!r}" if one.application else ""
        known = " (since it was first seen here)" if one in self._seen else ""
        text = f"{what}{whose} has held a snapshot for {in_words(age)}, since {_at(time - age)}"
        text += f"{known}, and the database keeps what was changed since{more}"
        return Problem("snapshot", "", text, advice)
