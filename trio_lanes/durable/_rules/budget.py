"""Budgets: what the limits leave, while jobs are being claimed.

Three limits stand before a start: the slots of its lane, those of its lane's group, less what that
keeps for others, and the rates of both. They are asked and taken together. Who wants back a slot
that it has lent is counted as if it had it, so it goes ahead of all that wait; and it returns in
the order of the fences, without regard to reservations and rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from .._contract.records import GroupLimit, LaneLimit
from . import rates
from .job_record import JobRecord
from .tables import Tables


@final
class Budget:
    """What is left of the limits of all lanes, inside of one transaction.

    Attributes:
      due: when a rate lets somebody start who has all else, if anybody was asked about who does.
    """

    def __init__(self, tables: Tables, now: float) -> None:
        self._tables: Final = tables
        self._now: Final = now
        self.lanes: Final[Mapping[str, LaneLimit]] = tables.lanes()
        self._used: Final = {
            name: tables.slots_used(name) + len(tables.wanting(name)) for name in self.lanes
        }
        self._group_of: Final[dict[str, tuple[str, GroupLimit]]] = {
            member: (name, group)
            for name, group in tables.groups().items()
            for member in group.members
        }
        self._meters_of: Final[dict[str, list[rates.Meter]]] = {}
        self.due: float | None = None

    def free(self, lane: str) -> int | float:
        """How many more of that lane may have a slot."""
        free = self.lanes[lane].concurrency - self._used[lane]
        if lane in self._group_of:
            _, group = self._group_of[lane]
            kept = sum(
                max(0, tokens - self._used[member])
                for member, tokens in group.reserve.items()
                if member != lane
            )
            free = min(free, self._left(group) - kept)
        return max(0, free)

    def _left(self, group: GroupLimit) -> int | float:
        return group.concurrency - sum(self._used[member] for member in group.members)

    def rates_allow(self, lane: str) -> bool:
        """Whether the rates let one more start now; asked for somebody who has all else."""
        ready_at = rates.ready_at(self._tables, self._meters(lane))
        if ready_at <= self._now:
            return True
        self.due = ready_at if self.due is None else min(self.due, ready_at)
        return False

    def take(self, lane: str) -> None:
        """One more of that lane starts."""
        self._used[lane] += 1
        rates.charge(self._tables, self._meters(lane), self._now)

    def _meters(self, lane: str) -> list[rates.Meter]:
        meters = self._meters_of.get(lane)
        if meters is None:
            meters = self._meters_of[lane] = rates.lane_meters(lane, self.lanes[lane])
            if lane in self._group_of:
                meters += rates.group_meters(*self._group_of[lane])
        return meters

    def may_return(self, job: JobRecord) -> bool:
        """Whether that run, which wants its slot back, may have it now."""
        wanting = {name: self._tables.wanting(name) for name in self._lanes_that_share(job.lane)}
        mine = wanting[job.lane]
        # those that want a slot are counted as if they had it: what is free is left by others
        lane_free = self.lanes[job.lane].concurrency - self._used[job.lane] + len(mine)
        if sum(other.fence < job.fence for other in mine) >= lane_free:
            return False
        if job.lane not in self._group_of:
            return True
        _, group = self._group_of[job.lane]
        all_wanting = [other for others in wanting.values() for other in others]
        group_free = self._left(group) + len(all_wanting)
        return sum(other.fence < job.fence for other in all_wanting) < group_free

    def _lanes_that_share(self, lane: str) -> tuple[str, ...]:
        return self._group_of[lane][1].members if lane in self._group_of else (lane,)
