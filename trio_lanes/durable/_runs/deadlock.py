"""Deadlocks: a handler's wait for another job is refused if it can never end.

Theory of operation. A run ends after the jobs that it waits for. Until then it keeps its session
closed and, unless it has lent it, its slot taken. So a wait is stuck if its job

* runs on this instance, and has a stuck wait itself;
* is queued behind the running job of its session, and that run has a stuck wait;
* needs a slot of a lane, of a group, or of the only instance, and all slots there are held by runs
  with stuck waits.

The search assumes that all waits on this instance are stuck, and removes each wait whose job can
still run, until nothing changes. It ignores pauses, rates, timeouts and changes of limits, as the
core does. It assumes that runs on other instances go on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final, final

import attrs

from ... import LaneDeadlockError
from ..._config.names import label_of
from .._contract.protocol import Store
from .._contract.records import DurableStatus, Ended
from .._contract.state import DEAD, ENDED, RUNNING
from ..acts.inspection import AllGroups, AllLanes, StatusOf

if TYPE_CHECKING:
    from .run import DurableRun

_CURE: Final = (
    "submit the inner job without this session, give it another lane, or lend the outer job's slot "
    "while it waits (yield_slot)"
)


@final
@attrs.define(eq=False)
class JobWait:
    """A wait of a run for a job, with the job's last known status."""

    run: DurableRun
    job: DurableStatus


@final
@attrs.frozen
class _Limit:
    """A number of slots that the runs of some lanes share; None: of all lanes."""

    slots: int | float
    lanes: Collection[str] | None

    def covers(self, lane: str) -> bool:
        return self.lanes is None or lane in self.lanes


async def wait_inside(run: DurableRun, id: int) -> Ended | None:
    """Wait for the end of a job inside of a run, as `Store.wait` does.

    Raises:
      LaneDeadlockError: if the wait can never end.
    """
    store = run._store
    status = await store.look(StatusOf(id))
    if _is_open(status):
        assert status is not None
        wait = JobWait(run, status)
        run._waiting_for.append(wait)
        try:
            await _check(wait)
            return await store.wait(id)
        finally:
            run._waiting_for.remove(wait)
    return await store.wait(id)


def _is_open(status: DurableStatus | None) -> bool:
    return status is not None and status.state not in ENDED and status.state is not DEAD


async def _check(wait: JobWait) -> None:
    store, worker = wait.run._store, wait.run._worker
    limits: list[_Limit] = []
    if any(run._waiting_for and not run._lending for run in worker.running):
        limits = await _limits(store, worker.running, worker.capacity)
    stuck = _stuck(worker.running, limits)
    if wait.run not in stuck:
        return
    for run in stuck:
        for one in list(run._waiting_for):
            status = await store.look(StatusOf(one.job.id))
            if not _is_open(status):
                return  # the job has ended, and its waiter is about to be woken
            assert status is not None
            one.job = status
    stuck = _stuck(worker.running, limits)
    if wait.run in stuck:
        raise LaneDeadlockError(_describe(wait, stuck))


async def _limits(store: Store, runs: Iterable[DurableRun], capacity: int | float) -> list[_Limit]:
    """Return the limits of the lanes that runs have slots of, or wait for."""
    known, groups = await store.look(AllLanes()), await store.look(AllGroups())
    lanes = {run.lane for run in runs} | {one.job.lane for run in runs for one in run._waiting_for}
    labels = {lane: label_of(lane, known) for lane in lanes}
    limits = [_Limit(known[label].concurrency, (lane,)) for lane, label in labels.items() if label]
    limits += [
        _Limit(
            group.concurrency, {lane for lane, label in labels.items() if label in group.members}
        )
        for group in groups.values()
    ]
    if not store.leased:  # there is no other instance
        limits.append(_Limit(capacity, None))
    return [limit for limit in limits if limit.slots < math.inf]


def _stuck(running: Iterable[DurableRun], limits: Sequence[_Limit]) -> list[DurableRun]:
    """Return the runs whose waits can never end."""
    by_id = {run.id: run for run in running}
    stuck = [run for run in by_id.values() if run._waiting_for]
    while True:
        still = [
            run
            for run in stuck
            if any(_is_stuck(wait, by_id, stuck, limits) for wait in run._waiting_for)
        ]
        if len(still) == len(stuck):
            return stuck
        stuck = still


def _is_stuck(
    wait: JobWait, by_id: dict[int, DurableRun], stuck: list[DurableRun], limits: Sequence[_Limit]
) -> bool:
    job = wait.job
    if job.id in by_id:
        return by_id[job.id] in stuck
    if job.state is RUNNING:  # on another instance
        return False
    if job.session is not None and any(run.session == job.session for run in stuck):
        return True
    holding = [run.lane for run in stuck if not run._lending]
    return any(
        limit.covers(job.lane) and sum(map(limit.covers, holding)) >= limit.slots
        for limit in limits
    )


def _describe(wait: JobWait, stuck: Iterable[DurableRun]) -> str:
    knot = "; ".join(
        f"{run.name} {run.id} holds {_held(run)} and waits for {one.job.name} {one.job.id}"
        for run in stuck
        for one in run._waiting_for
    )
    return f"the wait for {wait.job.name} {wait.job.id} can never end: {knot}; {_CURE}"


def _held(run: DurableRun) -> str:
    held = [] if run._lending else [f"a slot of {run.lane!r}"]
    held += [] if run.session is None else ["its session"]  # its key may be private
    return " and ".join(held) or "nothing"
