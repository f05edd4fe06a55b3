"""Waits of handlers for other jobs: refused with an error where they can never end.

A run ends after the jobs that it waits for, and until then it keeps its session closed and, unless
it has lent it, its slot taken. So its wait is stuck if the job that it waits for

* runs on this instance, and waits itself for a job in a wait that is stuck;
* waits behind the run of its session, and that run's wait is stuck;
* needs a slot of a lane, of a group or of an instance that is the only one, and as many runs as
  that has slots hold one and have waits that are stuck.

The search assumes that all waits on this instance are stuck, and drops each wait whose job can
still run, until nothing changes. Pauses, rates, timeouts and changes of limits are no part of it,
as in the core; runs on other instances are taken as runs that go on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, final

import attrs

from ..._errors import LaneDeadlockError
from .._contract.protocol import Store
from .._contract.records import DurableStatus, Ended
from .._contract.state import DEAD, ENDED, RUNNING

if TYPE_CHECKING:
    from .run import DurableRun

_CURE: Final = (
    "submit the inner job without this session, give it another lane, or lend the outer job's slot "
    "meanwhile (yield_slot)"
)


@final
@attrs.define(eq=False)
class Wait:
    """A wait of ``run`` for ``job``, as that was when it was last looked at."""

    run: DurableRun
    job: DurableStatus


@final
@attrs.frozen
class _Limit:
    """Slots that runs of some lanes share; no ``lanes``: of all."""

    slots: int | float
    lanes: Sequence[str] | None

    def covers(self, lane: str) -> bool:
        return self.lanes is None or lane in self.lanes


async def wait_inside(run: DurableRun, id: int) -> Ended | None:
    """`Store.wait` for that job, inside of ``run``.

    Raises:
      LaneDeadlockError: if it can never end.
    """
    store = run._store
    status = await store.status(id)
    if _is_open(status):
        assert status is not None
        wait = Wait(run, status)
        run._waits.append(wait)
        try:
            await _check(wait)
            return await store.wait(id)
        finally:
            run._waits.remove(wait)
    return await store.wait(id)


def _is_open(status: DurableStatus | None) -> bool:
    return status is not None and status.state not in ENDED and status.state is not DEAD


async def _check(wait: Wait) -> None:
    store, peers = wait.run._store, wait.run._peers
    limits: list[_Limit] = []
    if any(run._waits and not run._lenders for run in peers.running):
        limits = await _limits(store, peers.capacity)
    stuck = _stuck(peers.running, limits)
    if wait.run not in stuck:
        return
    for run in stuck:
        for one in list(run._waits):
            status = await store.status(one.job.id)
            if not _is_open(status):
                return  # it has ended, and its waiter is about to hear of that
            assert status is not None
            one.job = status
    stuck = _stuck(peers.running, limits)
    if wait.run in stuck:
        raise LaneDeadlockError(_describe(wait, stuck))


async def _limits(store: Store, capacity: int | float) -> list[_Limit]:
    limits = [_Limit(limit.concurrency, (name,)) for name, limit in (await store.lanes()).items()]
    limits += [
        _Limit(group.concurrency, group.members) for group in (await store.groups()).values()
    ]
    if not store.leased:  # no other instance can run anything
        limits.append(_Limit(capacity, None))
    return [limit for limit in limits if limit.slots < math.inf]


def _stuck(running: Iterable[DurableRun], limits: Sequence[_Limit]) -> list[DurableRun]:
    """The runs whose waits can never end."""
    by_id = {run.id: run for run in running}
    stuck = [run for run in by_id.values() if run._waits]
    while True:
        still = [
            run
            for run in stuck
            if any(_is_stuck(wait, by_id, stuck, limits) for wait in run._waits)
        ]
        if len(still) == len(stuck):
            return stuck
        stuck = still


def _is_stuck(
    wait: Wait, by_id: dict[int, DurableRun], stuck: list[DurableRun], limits: Sequence[_Limit]
) -> bool:
    job = wait.job
    if job.id in by_id:
        return by_id[job.id] in stuck
    if job.state is RUNNING:  # elsewhere
        return False
    if job.session is not None and any(run.session == job.session for run in stuck):
        return True
    holding = [run.lane for run in stuck if not run._lenders]
    return any(
        limit.covers(job.lane) and sum(map(limit.covers, holding)) >= limit.slots
        for limit in limits
    )


def _describe(wait: Wait, stuck: Iterable[DurableRun]) -> str:
    knot = "; ".join(
        f"{run.name} {run.id} holds {_held(run)} and waits for {one.job.name} {one.job.id}"
        for run in stuck
        for one in run._waits
    )
    return f"the wait for {wait.job.name} {wait.job.id} can never end: {knot}; {_CURE}"


def _held(run: DurableRun) -> str:
    held = [] if run._lenders else [f"a slot of {run.lane!r}"]
    held += [] if run.session is None else ["its session"]  # whose key is not for a log
    return " and ".join(held) or "nothing"
