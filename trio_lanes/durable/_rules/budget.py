"""Budgets: the free slots and the rates of all lanes, while jobs are being claimed.

A job starts only if three limits allow it: the slots of its lane; the slots of the lane's group,
less the reservations of other lanes; the rates of both. They are checked and charged together.

A run that wants back a slot that it has lent is counted as if it held one, so it goes ahead of all
waiting jobs. Such runs return in the order of their fences; reservations and rates do not hold
them up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, final

from .._contract.records import GroupLimit, LaneLimit
from . import rates
from .job_record import JobRecord
from .tables import Tables

Refusal: TypeAlias = Literal["concurrency", "group", "reservation"]


@final
class Budget:
    """The limits of all lanes, less their use, inside of one transaction.

    Attributes:
      due: when a rate allows the next start of a lane that only a rate has refused; or None.
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
        """Return how many more jobs of a lane may take a slot."""
        free = self.lanes[lane].concurrency - self._used[lane]
        if lane in self._group_of:
            _, group = self._group_of[lane]
            free = min(free, self._left(group) - self._kept(group, lane))
        return max(0, free)

    def _kept(self, group: GroupLimit, lane: str) -> int:
        """Return how many free slots of a group are reserved for other lanes than ``lane``."""
        return sum(
            max(0, tokens - self._used[member])
            for member, tokens in group.reserve.items()
            if member != lane
        )

    def _left(self, group: GroupLimit) -> int | float:
        return group.concurrency - sum(self._used[member] for member in group.members)

    def refused_by(self, lane: str) -> list[tuple[Refusal, str]]:
        """Return which limits leave no slot to a lane: (kind, the lane or its group)."""
        found: list[tuple[Refusal, str]] = []
        if self._used[lane] >= self.lanes[lane].concurrency:
            found.append(("concurrency", lane))
        if lane in self._group_of:
            name, group = self._group_of[lane]
            left = self._left(group)
            if left <= 0:
                found.append(("group", name))
            elif left <= self._kept(group, lane):
                found.append(("reservation", name))
        return found

    def rates_allow(self, job: JobRecord) -> bool:
        """Whether the rates allow a start of a job now. Call it only when all else allows it."""
        meters = self._meters(job.lane)
        if not meters:
            return True
        ready_at = rates.ready_at(self._tables, meters, rates.costs_of(job))
        if ready_at <= self._now:
            return True
        self.due = ready_at if self.due is None else min(self.due, ready_at)
        return False

    def take(self, job: JobRecord) -> None:
        """Take a slot for a job, and charge the rates."""
        self._used[job.lane] += 1
        meters = self._meters(job.lane)
        if meters:
            rates.charge(self._tables, meters, rates.costs_of(job), self._now)

    def check_units(self, lane: str, costs: rates.Costs) -> None:
        """Refuse costs in a unit that no rate of a lane and of its group counts.

        Raises:
          ValueError: it names the unit, and the units that are counted.
        """
        counted = {meter.unit for meter in self._meters(lane)}
        for unit in costs.keys() - counted - {rates.REQUESTS}:
            known = ", ".join(map(repr, sorted(counted))) or "none"
            raise ValueError(
                f"cost names {unit!r}, which no rate of lane {lane!r} or its group counts "
                f"(counted: {known})"
            )

    def _meters(self, lane: str) -> list[rates.Meter]:
        meters = self._meters_of.get(lane)
        if meters is None:
            meters = self._meters_of[lane] = rates.lane_meters(lane, self.lanes[lane])
            if lane in self._group_of:
                meters += rates.group_meters(*self._group_of[lane])
        return meters

    def rates_until(self, job: JobRecord) -> list[tuple[str, float]]:
        """Return (lane or group, when its rates allow a start of a job) of rates that refuse it."""
        lane, costs = job.lane, rates.costs_of(job)
        owned = [(lane, rates.lane_meters(lane, self.lanes[lane]))]
        if lane in self._group_of:
            name, group = self._group_of[lane]
            owned.append((name, rates.group_meters(name, group)))
        times = [(name, rates.ready_at(self._tables, meters, costs)) for name, meters in owned]
        return [(name, time) for name, time in times if time > self._now]

    def may_return(self, job: JobRecord) -> bool:
        """Whether a run that wants its slot back may have it now."""
        return not self.return_refused_by(job)

    def return_refused_by(self, job: JobRecord) -> list[tuple[Refusal, str]]:
        """Return what keeps a run from the slot that it wants back, as `refused_by` does."""
        wanting = {name: self._tables.wanting(name) for name in self._lanes_that_share(job.lane)}
        mine = wanting[job.lane]
        # runs that want a slot are counted in `_used`, so they are added to the free slots again
        lane_free = self.lanes[job.lane].concurrency - self._used[job.lane] + len(mine)
        if sum(other.fence < job.fence for other in mine) >= lane_free:
            return [("concurrency", job.lane)]
        if job.lane not in self._group_of:
            return []
        name, group = self._group_of[job.lane]
        all_wanting = [other for others in wanting.values() for other in others]
        group_free = self._left(group) + len(all_wanting)
        ahead = sum(other.fence < job.fence for other in all_wanting)
        return [] if ahead < group_free else [("group", name)]

    def _lanes_that_share(self, lane: str) -> tuple[str, ...]:
        return self._group_of[lane][1].members if lane in self._group_of else (lane,)
