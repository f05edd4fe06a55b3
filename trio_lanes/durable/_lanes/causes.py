"""`DurableLanes.root_causes`: what the reasons of a job are, for the walk to the roots of its wait.

It asks the store for the reasons of one job after the other, so it has no rule of its own. Of the
runs that have the slots of a lane it knows the one that has had its slot longest. The store may
change between two questions; the search is bounded, and says where it was cut.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, final

from ... import Cause
from ..._config.names import SESSION_PREFIX, label_of
from ..._config.reasons import REMEDIES, STANDSTILL_AFTER, before_it, in_words
from ..._config.roots import HOLDER, RELATIONS, ROOTS, Lead, Reason, Walk, root_of
from ..._limits.rate import REQUESTS
from .._contract.errors import ResultGoneError
from .._contract.protocol import JOBS_LISTED
from .._contract.records import DurableBlocker, DurableStatus, GroupLimit, InstanceInfo, LaneLimit
from .._contract.state import RUNNING, WAITING

if TYPE_CHECKING:
    from .lanes import DurableLanes

_MOST_ASKED: Final = 50
_OVERDUE_AFTER: Final = 10.0
"""Seconds by which a run is past its timeout when that is said."""


class _StoredJob(NamedTuple):
    """A job that the walk asks for."""

    id: int
    before: int = 0
    """How many jobs are before the one that waits, of whose line this is the head."""
    lane: str = ""  # not known


_Reason: TypeAlias = Reason[_StoredJob]


async def root_causes(lanes: DurableLanes, id: int) -> tuple[Cause, ...]:
    """Return the roots of the wait of a job."""
    status = await lanes.job(id).status()
    reasons = _Reasons(lanes, status)
    advice = "cancel one of them, and take locks in one order"
    walk = Walk(_StoredJob(id), _MOST_ASKED, math.inf, advice)
    for asked in walk:
        walk.answer(await reasons.of(asked))
    # where the slots of a lane hold a job, they hold the first of its line, which says more
    roots = {(one.chain, one.kind, one.lane): one for one in reversed(walk.found)}
    return tuple(roots.values())[::-1]


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
class _Reasons:
    """What the reasons of jobs are, asked by a job with a status."""

    def __init__(self, lanes: DurableLanes, status: DurableStatus) -> None:
        self._lanes: Final = lanes
        self._first: Final = status.id
        self._now: Final = status.seen_at
        self._instances: Sequence[InstanceInfo] | None = None  # as they were asked for first

    async def of(self, job: _StoredJob) -> list[_Reason]:
        """Return the reasons of a job; its body, if it is at work and is not the first job."""
        try:
            blockers = await self._lanes.blocked_by(job.id)
            status = await self._lanes.job(job.id).status()
        except ResultGoneError:  # it has ended meanwhile
            return []
        found = [reason for one in blockers for reason in await self._of(one, status, job)]
        if blockers or status.state not in (WAITING, RUNNING):
            return found
        info = await self._instance(status)
        if status.state is RUNNING:
            return [] if job.id == self._first else [self._body(status, info)]
        return [_no_instance(job, status.lane)] if info is None else await self._room(status, job)

    async def _of(
        self, one: DurableBlocker, status: DurableStatus, job: _StoredJob
    ) -> list[_Reason]:
        """Return the reasons to go on with, of one reason of the job with a status."""
        kind, lane, other = one.kind, one.lane, one.job
        seconds = None if one.until is None else max(0.0, one.until - self._now)
        if kind == "order" and not lane.startswith(SESSION_PREFIX):
            assert other is not None
            turn = root_of(
                job, kind, lane, f'its turn in "{lane}"{before_it(one.before, JOBS_LISTED)}'
            )
            head = _StoredJob(other, one.before)
            return [Lead([head], "", lambda found: found or [turn])]
        if kind in RELATIONS and other is not None:
            return [Lead([_StoredJob(other)], RELATIONS[kind].format(lane=lane))]
        if kind == "dead":
            assert other is not None
            dead = await self._lanes.job(other).status()
            root = f"{other} {dead.name!r} of its session, which is dead: {dead.error}"
            advice = f"requeue or purge {other}"
            return [root_of(job, kind, lane, root, jobs=(other,), advice=advice)]
        if kind == "handler":
            if not [info for info in await self._all() if lives(info) is not False]:
                return [_no_instance(job, lane)]
            root = f"no live instance has the handler {status.name!r}"
            advice = f"start a worker with the handler {status.name!r}"
            return [root_of(job, kind, lane, root, advice=advice)]
        if kind == "rate":
            return [await self._rate(lane, seconds, job)]
        if kind == "quota":
            return [await self._quota(lane, seconds, job)]
        if kind in ("concurrency", "group"):
            return [await self._slots(kind, lane, other, job)]
        root = ROOTS[kind].format(lane=lane)
        if kind == "retry":
            last = status.history[-1]
            root += f", after {last.number} {'has' if last.number == 1 else 'have'} failed"
            root += "" if last.error is None else f" ({last.error})"
        remedy = f"promote {job.id}" if kind in ("delay", "retry") else None
        if kind == "lent":
            info = await self._instance(status)
            root += "" if info is None else f" on {info.host} {info.pid}"
        return [root_of(job, kind, lane, root, seconds=seconds, advice=remedy)]

    async def _slots(self, kind: str, lane: str, holder: int | None, job: _StoredJob) -> _Reason:
        what = ROOTS[kind].format(lane=lane)
        if holder is None:
            return root_of(job, kind, lane, f"{what}: it has none")
        limit = await self._limit(lane, of_group=kind == "group")
        most = math.inf if limit is None else limit.concurrency
        hangs = kind == "concurrency" and await self._hangs(lane)

        def then(found: list[Cause]) -> list[Cause]:
            root, remedy = f"{what}: all {most} in use", REMEDIES[kind].format(lane=lane)
            own = [one for one in found if one.kind == "body" and len(one.chain) == 1]
            for body in own:
                root += f", longest by {holder}: {body.root}"
                remedy = str(body.advice) if hangs else f"{remedy}, or {body.advice}"
            waits = [one for one in found if one not in own]
            if waits and most == 1:
                return waits
            root += before_it(job.before, JOBS_LISTED)
            return [root_of(job, kind, lane, root, jobs=(holder,), advice=remedy), *waits]

        return Lead([_StoredJob(holder)], f'{HOLDER} "{lane}"', then)

    async def _hangs(self, lane: str) -> bool:
        """Return whether all runs of a lane began long ago; that of a job may be among them."""
        runs = await self._lanes.jobs(lane, states=(RUNNING,), limit=JOBS_LISTED)
        return all(self._now - run.history[-1].started_at >= STANDSTILL_AFTER for run in runs)

    def _body(self, status: DurableStatus, info: InstanceInfo | None) -> Cause:
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
        return root_of(status, kind, status.lane, root, jobs=(status.id,), advice=advice)

    async def _all(self) -> Sequence[InstanceInfo]:
        if self._instances is None:
            self._instances = await self._lanes.instances()
        return self._instances

    async def _instance(self, status: DurableStatus) -> InstanceInfo | None:
        """Return the live instance that runs a job; or of a job that waits, one that lives."""
        for info in await self._all():
            if status.instance in (None, info.id) and lives(info) is not False:
                return info
        return None

    async def _room(self, status: DurableStatus, job: _StoredJob) -> list[_Reason]:
        """Return that no instance has room, if each that has the handler runs something.

        The store knows no capacities. An instance that runs nothing takes the job at once.
        """
        with_it = [one for one in await self._all() if status.name in one.names]
        live = [one for one in with_it if lives(one) is not False]
        if not all(one.running for one in live):
            return []
        each = ", ".join(f"{one.host} {one.pid} runs {one.running:,}" for one in live[:3])
        root = f"room of an instance: {each}{', ...' if len(live) > 3 else ''}"
        advice = "raise the capacity of the workers, or start another"
        root += before_it(job.before, JOBS_LISTED)
        return [root_of(job, "capacity", status.lane, root, advice=advice)]

    async def _limit(self, name: str, *, of_group: bool = False) -> LaneLimit | GroupLimit | None:
        """Return the limits of a lane, or of a group."""
        lanes = {} if of_group else await self._lanes.limits()
        label = label_of(name, lanes)
        return (await self._lanes.groups()).get(name) if label is None else lanes[label]

    async def _rate(self, name: str, seconds: float | None, job: _StoredJob) -> Cause:
        limit = await self._limit(name)
        rates = () if limit is None else limit.rates
        words = ", ".join(rate.in_words for rate in rates)
        root = f'rate of "{name}": {words}{before_it(job.before, JOBS_LISTED)}'
        assert seconds is not None
        counted = [rate for rate in rates if rate.unit == REQUESTS and rate.algorithm != "calendar"]
        each = (rate.longest / float(rate.limit) for rate in counted)
        later = max(each, default=0.0) * job.before
        # what starts before it may cost more of another unit, and is not known if it is too much
        known = job.before < JOBS_LISTED and (len(counted) == len(rates) or not job.before)
        return root_of(job, "rate", name, root, seconds=seconds + later if known else None)

    async def _quota(self, name: str, seconds: float | None, job: _StoredJob) -> Cause:
        quotas = (await self._lanes.statistics(quota=name)).quotas
        levels = next((one.levels for one in quotas), ())
        used = ", ".join(f"{level.used:,} used of {level.limit.in_words}" for level in levels)
        advice = f'raise the limit of the quota "{name}", or reset it'
        root = f'quota "{name}": {used}'
        return root_of(job, "quota", name, root, seconds=seconds, advice=advice)


def _no_instance(job: _StoredJob, lane: str) -> Cause:
    return root_of(job, "instance", lane, "no instance lives", advice="start a worker")
