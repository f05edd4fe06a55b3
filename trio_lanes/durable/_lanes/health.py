"""`DurableLanes.health`: what is wrong with a store and the work in it, in a line each.

Of each lane it follows the longest wait to its roots, and the first of a job without a handler. If
that waits for a slot, it looks at the runs of the lane, of which one should have begun not long
ago. What is no wait is looked at in `verdicts`. It says what it has left out: lanes, for want of
time or as there were too many, and what other processes alone know.

A look changes nothing, but a process remembers some of it for its next (`Memory`): the store does
not know when a run of a lane has ended last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final, final

import trio

from ... import Problem, Problems
from ..._config.names import label_of
from ..._config.problems import PROBLEM_AFTER, distinct, problem_of, standstill_of, unreachable
from ..._config.reasons import in_words
from .._contract.errors import ResultGoneError, StoreError
from .._contract.protocol import JOBS_LISTED, NAMES_LISTED
from .._contract.records import (
    DurableLaneStatistics,
    DurableStatistics,
    DurableStatus,
    GroupLimit,
    InstanceInfo,
    LaneLimit,
)
from .._contract.state import RUNNING, WAITING
from .causes import lives
from .schedules import unix_time
from .verdicts import Letters, Snapshots, quotas, schedules, silent_instances, without_instance

if TYPE_CHECKING:
    from .lanes import DurableLanes

_SLOW: Final = 1.0
"""Seconds in which a store should answer."""
_LONGEST_LOOK: Final = 5.0
"""Seconds until the waits of no further lane are looked at."""
_MOST_LOOKED_AT: Final = 20
"""Of how many jobs of a lane that stands still one is sought that waits for a slot."""


@final
class Memory:
    """What the looks of a process know of the looks before."""

    def __init__(self) -> None:
        self.letters: Final = Letters()
        self.snapshots: Final = Snapshots()
        self._ends: dict[str, tuple[int, float]] = {}  # {lane: (ends, when they were so many)}

    def last_end(self, lane: str, ends: int, now: float) -> float:
        """Return when a run of a lane has ended last, as far as is known.

        Args:
          ends: how many have, ever.
        """
        before, at = self._ends.get(lane, (ends, -math.inf))
        at = at if before == ends else now
        self._ends[lane] = ends, at
        return at


async def health(lanes: DurableLanes, standstill_after: float) -> Problems:
    """Return what is wrong; empty: nothing that was looked at."""
    look = _Look(lanes, standstill_after)
    looked = True
    try:
        await look.at_all()
    except StoreError as error:
        look.found.insert(0, unreachable(error))
        look.left_out.append("the rest of the store" if look.began else "the store")
        looked = False
    if lanes.local is not None:
        local = lanes.local.health()
        look.found += local
        look.unseen += local.unseen
    return distinct(look.found, look.unseen, look.left_out, looked=looked)


@final
class _Look:
    """One look at a store."""

    def __init__(self, lanes: DurableLanes, standstill_after: float) -> None:
        self._lanes: Final = lanes
        self._memory: Final = lanes._memory
        self._standstill_after: Final = standstill_after
        self.found: list[Problem | None] = []
        self.unseen = 0
        self.left_out: list[str] = []
        self.began = False
        """Whether the store has answered."""

    async def at_all(self) -> None:
        """Look at the store, and at what it keeps.

        Raises:
          StoreError: if it cannot be reached any more.
        """
        lanes, began = self._lanes, trio.current_time()
        now = await lanes.statistics()
        self.began, took = True, trio.current_time() - began
        if took > _SLOW:
            text = f"the store has taken {in_words(took)} to answer"
            advice = "look at its load, its disk and the network"
            self.found.append(Problem("store", "", text, advice))
        time = await unix_time(lanes._store)
        instances = await lanes.instances()
        self.found.append(silent_instances(instances))
        await self._waits(now, instances, began)
        self.found.append(without_instance(now, instances, time))
        self.found += await self._memory.letters.look(lanes, now, time)
        problems, more = await schedules(lanes)
        self.found += problems
        self.left_out += more
        self.found += await quotas(lanes, now, time)
        problem, more = await self._memory.snapshots.look(lanes, time)
        self.found.append(problem)
        self.left_out += more
        live = sum(lives(one) is not False for one in instances)
        if live > (lanes.local is not None):
            self.left_out.append("the bodies of other processes")

    async def _waits(
        self, now: DurableStatistics, instances: Sequence[InstanceInfo], began: float
    ) -> None:
        lanes = self._lanes
        limits, groups = await lanes.limits(), await lanes.groups()
        waiting = {name: lane for name, lane in now.lanes.items() if lane.waiting or lane.unhandled}
        for at, name in enumerate(sorted(waiting, key=lambda name: -waiting[name].waiting)):
            if at == NAMES_LISTED or trio.current_time() - began > _LONGEST_LOOK:
                self.unseen += len(waiting) - at
                break
            label = label_of(name, limits)
            served: list[LaneLimit | GroupLimit] = [limits[label]] if label is not None else []
            of_group = [one for one in groups.values() if label in one.members]
            served += of_group
            longest = max((rate.longest for one in served for rate in one.rates), default=math.inf)
            jobs = await self._jobs_of(name, waiting[name], instances)
            late = [(job, seconds) for job in jobs if (seconds := job.waited) > PROBLEM_AFTER]
            if late and _is_full(waiting[name], of_group, now, limits):
                self.found.append(await self._standstill(name, now, jobs[0], instances))
            for job, seconds in late:
                with suppress(ResultGoneError):  # it may end meanwhile
                    causes = await lanes.root_causes(job.id)
                    found = problem_of(job.id, name, seconds, causes, longest)
                    if found and (await lanes.job(job.id).status()).state is job.state:
                        self.found.append(found)

    async def _jobs_of(
        self, name: str, lane: DurableLaneStatistics, instances: Iterable[InstanceInfo]
    ) -> list[DurableStatus]:
        """Return the oldest job of a lane that waits, and the oldest without a handler."""
        limit = JOBS_LISTED if lane.unhandled else 1
        found = await self._lanes.jobs(name, states=[WAITING], limit=limit)
        if not lane.unhandled:
            return found
        handled = {handler for info in instances for handler in info.names}
        without = islice((job for job in found if job.name not in handled), 1)
        return list({job.id: job for job in (*found[:1], *without)}.values())

    async def _standstill(
        self,
        name: str,
        now: DurableStatistics,
        oldest: DurableStatus,
        instances: Sequence[InstanceInfo],
    ) -> Problem | None:
        """Return that nothing of a lane, whose slots are in use, has moved for too long."""
        lanes, time = self._lanes, oldest.seen_at
        runs, after = [*await lanes.jobs(name, states=[RUNNING], limit=JOBS_LISTED)], 0
        while len(runs) - after == JOBS_LISTED:
            after = len(runs)
            runs += await lanes.jobs(name, states=[RUNNING], limit=JOBS_LISTED, after=runs[-1].id)
        signs = [run.history[-1].started_at for run in runs]
        if not runs:  # others have all slots of the group
            opened = min((one.since for one in instances if one.alive), default=time)
            signs.append(max(opened, time - oldest.waited))
        ends = sum(now.ended.get(name, {}).values())
        if lanes.local is not None:
            local = lanes.local.lane(name)
            ends += local.statistics().finished
            here = [job.progress_at for job in local.running(JOBS_LISTED)]
            ahead = time - trio.current_time()
            signs += [at + ahead for at in here if at is not None]
        signs.append(self._memory.last_end(name, ends, time))
        still = time - max(signs)
        if still < self._standstill_after:
            return None
        for job in await lanes.jobs(name, states=[WAITING], limit=_MOST_LOOKED_AT):
            with suppress(ResultGoneError):  # it may end meanwhile
                kinds = [one.kind for one in await lanes.blocked_by(job.id)]
                if "concurrency" in kinds or "group" in kinds:
                    causes = await lanes.root_causes(job.id)
                    cause = next((one for one in causes if one.kind != "rate"), None)
                    waiting = now.lanes[name].waiting
                    return standstill_of(name, waiting, still, job.id, cause)
        return None


def _is_full(
    lane: DurableLaneStatistics,
    of_group: Iterable[GroupLimit],
    now: DurableStatistics,
    limits: Mapping[str, LaneLimit],
) -> bool:
    """Whether all slots of a lane, or of its group, may be in use: some of them may be lent."""
    if lane.paused:
        return False
    if 0 < lane.concurrency <= lane.running:
        return True
    labels = {name: label_of(name, limits) for name in now.lanes}
    return any(
        0
        < group.concurrency
        <= sum(one.running for name, one in now.lanes.items() if labels[name] in group.members)
        for group in of_group
    )
