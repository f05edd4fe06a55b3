"""`DurableLanes.root_causes`: from a job along the reasons of its wait to those that wait for none.

It asks the store for the reasons of one job after the other, so it has no rule of its own. All
reasons of a job hold it, and each is followed. Of the jobs before it in the line of its lane it
needs no more than their number: what holds the first holds them all. Of the runs that have the
slots of a lane it knows the one that has had its slot longest. The store may change between two
questions; the search is bounded, and says where it was cut.
"""

from __future__ import annotations

import math
import os
import socket
from typing import TYPE_CHECKING, Final, TypeAlias, final

from ... import Cause
from ..._config.names import SESSION_PREFIX, template_of
from ..._config.reasons import REMEDIES, STANDSTILL_AFTER, before_it, cause_at, in_words
from ..._limits.rate import REQUESTS
from .._contract.errors import ResultGoneError
from .._contract.protocol import PAGE
from .._contract.records import DurableBlocker, DurableStatus, GroupLimit, InstanceInfo, LaneLimit
from .._contract.state import RUNNING, WAITING

if TYPE_CHECKING:
    from .lanes import DurableLanes

_MOST_ASKED: Final = 50
_OVERDUE_AFTER: Final = 10.0
"""Seconds by which a run is past its timeout when that is said."""

_Way: TypeAlias = tuple[tuple[int, str], ...]
"""The jobs on the way to a root, and what each is to the one before."""

_RELATIONS: Final = {
    "session": "of its session",
    "order": "of its session",
    "lock": 'with the lock "{lane}"',
    "quota": 'first for the quota "{lane}"',
    "job": "that it waits for",
}
"""What `DurableBlocker.job` is to the job, by the kinds of reasons that lead on."""

_ROOTS: Final = {
    "pause": 'pause of "{lane}"',
    "delay": "its delay",
    "retry": "its next attempt",
    "suspect": "one more crash could make it dead, so it waits for an instance that runs few jobs",
    "reservation": 'slots of the group "{lane}": those left are reserved for other lanes',
    "lent": "it has lent its slot",
    "lock": 'the lock "{lane}", which a task outside of a job has',
}
"""The roots of which the reason says all."""


async def root_causes(lanes: DurableLanes, id: int) -> tuple[Cause, ...]:
    """Return the roots of the wait of a job."""
    status = await lanes.job(id).status()
    found = await _RootSearch(lanes, status).of(id, ((id, ""),))
    # where the slots of a lane hold a job, they hold the first of its line, which says more
    return tuple({(one.chain, one.kind, one.lane): one for one in reversed(found)}.values())[::-1]


def lives(info: InstanceInfo) -> bool | None:
    """Whether an instance may claim jobs: it has its lease; without leases, its process exists.

    A store with a lock in place of leases lists an instance that was killed until the next. With
    leases no process is looked for: hosts of one name may number their processes apart. None: its
    process is on another host.
    """
    if info.lease_until < math.inf:
        return info.alive
    if info.host != socket.gethostname():
        return None
    try:
        os.kill(info.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it exists, and belongs to another user
    return True


@final
class _RootSearch:
    """One search, from the job with a status."""

    def __init__(self, lanes: DurableLanes, status: DurableStatus) -> None:
        self._lanes: Final = lanes
        self._now: Final = status.seen_at
        self._left = _MOST_ASKED

    async def of(self, id: int, way: _Way, before: int = 0) -> list[Cause]:
        """Return the roots of the wait of a job, the last of ``way`` or ``before`` it in line."""
        self._left -= 1
        if self._left < 0:
            return [cause_at(way, "unknown", "", "...")]
        try:
            reasons = await self._lanes.blocked_by(id)
            status = await self._lanes.job(id).status()
        except ResultGoneError:  # it has ended meanwhile
            return []
        found: list[Cause] = []
        for one in reasons:
            found += await self._follow(one, status, way, before)
        if reasons or status.state not in (WAITING, RUNNING):
            return found
        info = await self._instance(status)
        if status.state is RUNNING and len(way) > 1:
            return [self._body(status, info, way)]
        if status.state is WAITING:
            return (
                [_no_instance(way, status.lane)]
                if info is None
                else await self._room(status, way, before)
            )
        return []

    async def _follow(
        self, one: DurableBlocker, status: DurableStatus, way: _Way, before: int
    ) -> list[Cause]:
        """Return the roots of one reason of the job with a status."""
        kind, lane, job = one.kind, one.lane, one.job
        seconds = None if one.until is None else max(0.0, one.until - self._now)
        if kind == "order" and not lane.startswith(SESSION_PREFIX):
            assert job is not None
            root = f'its turn in "{lane}"{before_it(one.before, PAGE)}'
            return await self.of(job, way, one.before) or [cause_at(way, "order", lane, root)]
        if kind in _RELATIONS and job is not None:
            return await self._next(job, _RELATIONS[kind].format(lane=lane), way)
        if kind == "dead":
            assert job is not None
            dead = await self._lanes.job(job).status()
            root = f"{job} {dead.name!r} of its session, which is dead: {dead.error}"
            return [cause_at(way, kind, lane, root, jobs=(job,), advice=f"requeue or purge {job}")]
        if kind == "handler":
            if not [info for info in await self._lanes.instances() if lives(info) is not False]:
                return [_no_instance(way, lane)]
            root = f"no live instance has the handler {status.name!r}"
            advice = f"start a worker with the handler {status.name!r}"
            return [cause_at(way, kind, lane, root, advice=advice)]
        if kind == "rate":
            return [await self._rate(lane, seconds, way, before)]
        if kind == "quota":
            return [await self._quota(lane, seconds, way)]
        if kind in ("concurrency", "group"):
            return await self._slots(kind, lane, job, way, before)
        root = _ROOTS[kind].format(lane=lane)
        if kind == "retry":
            last = status.history[-1]
            root += f", after {last.number} {'has' if last.number == 1 else 'have'} failed"
            root += "" if last.error is None else f" ({last.error})"
        remedy = f"promote {way[-1][0]}" if kind in ("delay", "retry") else None
        if kind == "lent":
            info = await self._instance(status)
            root += "" if info is None else f" on {info.host} {info.pid}"
        return [cause_at(way, kind, lane, root, seconds=seconds, advice=remedy)]

    async def _next(self, job: int, relation: str, way: _Way) -> list[Cause]:
        seen = [id for id, _ in way]
        if job in seen:
            circle = tuple(seen[seen.index(job) :])
            root = f"deadlock of {', '.join(map(str, circle))}"
            advice = "cancel one of them, and take locks in one order"
            return [cause_at(way, "deadlock", "", root, jobs=circle, advice=advice)]
        return await self.of(job, (*way, (job, relation)))

    async def _slots(
        self, kind: str, lane: str, holder: int | None, way: _Way, before: int
    ) -> list[Cause]:
        what = f'slots of "{lane}"' if kind == "concurrency" else f'slots of the group "{lane}"'
        if holder is None:
            return [cause_at(way, kind, lane, f"{what}: it has none")]
        limit = await self._limit(lane, of_group=kind == "group")
        most = math.inf if limit is None else limit.concurrency
        root, remedy = f"{what}: all {most} in use", REMEDIES[kind].format(lane=lane)
        found = await self._next(holder, f'with a slot of "{lane}"', way)
        own = [one for one in found if one.kind == "body" and len(one.chain) == len(way)]
        for body in own:
            root += f", longest by {holder}: {body.root}"
            hangs = kind == "concurrency" and await self._hangs(lane)
            remedy = str(body.advice) if hangs else f"{remedy}, or {body.advice}"
        waits = [one for one in found if one not in own]
        if waits and most == 1:
            return waits
        slots = cause_at(
            way, kind, lane, root + before_it(before, PAGE), jobs=(holder,), advice=remedy
        )
        return [slots, *waits]

    async def _hangs(self, lane: str) -> bool:
        """Return whether all runs of a lane began long ago; that of a job may be among them."""
        runs = await self._lanes.jobs(lane, states=(RUNNING,), limit=PAGE)
        return all(self._now - run.history[-1].started_at >= STANDSTILL_AFTER for run in runs)

    def _body(self, status: DurableStatus, info: InstanceInfo | None, way: _Way) -> Cause:
        """Return the root of a run that waits for nothing, as far as the store knows."""
        run = status.history[-1]
        since = self._now - run.started_at
        kind, root = "body", f"{status.name!r} runs on {run.host} {run.pid} for {in_words(since)}"
        advice = f"cancel {status.id}"
        if info is None:
            kind, root = "gone", f"{status.name!r} ran on {run.host} {run.pid}, which is gone"
            advice = "start a worker, which gives it back"
        elif status.cancelling:
            root += ", although it was asked to stop"
            advice = f"reset the lanes of {run.host} {run.pid}, or restart it"
        elif since > status.timeout + _OVERDUE_AFTER:
            kind = "overdue"
            root += f", past its timeout of {in_words(status.timeout)}"
            advice = f"reset the lanes of {run.host} {run.pid}, or restart it"
        elif since >= STANDSTILL_AFTER:
            advice += f", or reset the lanes of {run.host} {run.pid}"
        return cause_at(way, kind, status.lane, root, jobs=(status.id,), advice=advice)

    async def _instance(self, status: DurableStatus) -> InstanceInfo | None:
        """Return the live instance that runs a job; or of a job that waits, one that lives."""
        for info in await self._lanes.instances():
            if status.instance in (None, info.id) and lives(info) is not False:
                return info
        return None

    async def _room(self, status: DurableStatus, way: _Way, before: int) -> list[Cause]:
        """Return that no instance has room, if each that has the handler runs something.

        The store knows no capacities. An instance that runs nothing takes the job at once.
        """
        with_it = [one for one in await self._lanes.instances() if status.name in one.names]
        live = [one for one in with_it if lives(one) is not False]
        if not all(one.running for one in live):
            return []
        each = ", ".join(f"{one.host} {one.pid} runs {one.running:,}" for one in live[:3])
        root = f"room of an instance: {each}{', ...' if len(live) > 3 else ''}"
        advice = "raise the capacity of the workers, or start another"
        return [
            cause_at(way, "capacity", status.lane, root + before_it(before, PAGE), advice=advice)
        ]

    async def _limit(self, name: str, *, of_group: bool = False) -> LaneLimit | GroupLimit | None:
        """Return the limits of a lane, or of a group."""
        lanes = {} if of_group else await self._lanes.limits()
        label = name if name in lanes else template_of(name, lanes)
        return (await self._lanes.groups()).get(name) if label is None else lanes[label]

    async def _rate(self, name: str, seconds: float | None, way: _Way, before: int) -> Cause:
        limit = await self._limit(name)
        rates = () if limit is None else limit.rates
        words = ", ".join(rate.in_words for rate in rates)
        root = f'rate of "{name}": {words}{before_it(before, PAGE)}'
        assert seconds is not None
        counted = [rate for rate in rates if rate.unit == REQUESTS and rate.algorithm != "calendar"]
        each = (rate.longest / float(rate.limit) for rate in counted)
        later = max(each, default=0.0) * before
        # what starts before it may cost more of another unit, and is not known if it is too much
        known = before < PAGE and (len(counted) == len(rates) or not before)
        return cause_at(way, "rate", name, root, seconds=seconds + later if known else None)

    async def _quota(self, name: str, seconds: float | None, way: _Way) -> Cause:
        quotas = (await self._lanes.statistics(quota=name)).quotas
        levels = next((one.levels for one in quotas), ())
        used = ", ".join(f"{level.used:,} used of {level.limit.in_words}" for level in levels)
        advice = f'raise the limit of the quota "{name}", or reset it'
        return cause_at(
            way, "quota", name, f'quota "{name}": {used}', seconds=seconds, advice=advice
        )


def _no_instance(way: _Way, lane: str) -> Cause:
    return cause_at(way, "instance", lane, "no instance lives", advice="start a worker")
