"""Budgets: the free slots and the rates of lanes, while jobs are being claimed.

A job starts only if three limits allow it: the slots of its lane; the slots of the lane's group,
less the reservations of other members; the rates of both. They are checked and charged together.

A member of a group is a lane, or a template: then all lanes of the template share the slots and
the reservation of that member.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, final

from ..._limits.rate import REQUESTS
from .._contract.amounts import MAX_DECIMAL, Costs, fits
from .._contract.records import GroupLimit, LaneLimit
from . import rates
from .job_record import JobRecord
from .lane_limits import label_of, limit_of
from .running import Running
from .tables import GROUPS, LIMITS, Tables

Refusal: TypeAlias = Literal["concurrency", "group", "reservation"]


@final
class Budget:
    """The limits of lanes, less their use, inside of one transaction.

    It reads the limits when it is made, and the running jobs when the first use is asked for; the
    starts that it is told of are added. So it is right as long as nothing else starts a job, ends
    a run or changes a limit.

    Args:
      runs: the running jobs, if they are known.

    Attributes:
      limits: the limits of lanes, and those of groups, that were read: other objects after a change
      refused: {lane that a rate has refused: when it allows the next start}
      due: when a rate allows the next start of a lane that only a rate has refused; or inf.
    """

    def __init__(self, tables: Tables, now: float, runs: Running | None = None) -> None:
        self._tables: Final = tables
        self._now: Final = now
        self._known_runs = runs
        self._lanes: Final[Mapping[str, LaneLimit]] = tables.of(LIMITS)
        groups = tables.of(GROUPS)
        self.limits: Final = self._lanes, groups
        self._limits: Final[dict[str, LaneLimit | None]] = {}
        self._used: Final[dict[str, int]] = {}
        self._groups: Final[dict[str, _GroupUse]] = {}  # {member: its group}
        for name, limit in groups.items():
            self._groups.update(dict.fromkeys(limit.members, _GroupUse(name, limit)))
        self._meters_of: Final[dict[str, list[rates.Meter]]] = {}
        self.refused: Final[dict[str, float]] = {}
        self.due: float = math.inf

    def limit(self, lane: str) -> LaneLimit | None:
        """Return the limits of a lane; None: it does not exist."""
        if lane not in self._limits:
            self._limits[lane] = limit_of(self._lanes, lane)
        return self._limits[lane]

    def _limit(self, lane: str) -> LaneLimit:
        limit = self._limits.get(lane) or self.limit(lane)
        assert limit is not None
        return limit

    def _runs(self) -> Running:
        if self._known_runs is None:
            self._known_runs = self._tables.runs()
        return self._known_runs

    def _use(self, lane: str) -> int:
        """Return how many slots of a lane are used."""
        used = self._used.get(lane)
        if used is None:
            # a run that wants its slot back counts as if it held one: it goes before waiting jobs
            runs = self._runs()
            used = self._used[lane] = runs.slots_used(lane) + len(runs.slot_requests(lane))
        return used

    def _group(self, lane: str) -> tuple[_GroupUse, str] | None:
        """Return the group of a lane, its use counted, and the member that the lane belongs to."""
        member = label_of(self._lanes, lane) or lane
        group = self._groups.get(member)
        if group is None:
            return None
        if not group.lanes:  # counted when the first of its members asks
            used = {*self._runs().lanes(), lane}
            for other in used:
                its_member = label_of(self._lanes, other)
                if its_member is not None and its_member in group.limit.members:
                    group.lanes.append(other)
                    group.used[its_member] += self._use(other)
        return group, member

    def free(self, lane: str) -> int | float:
        """Return how many more jobs of a lane may take a slot."""
        limit, used = self._limits.get(lane), self._used.get(lane)
        if limit is None or used is None:  # asked for the first time
            limit, used = self._limit(lane), self._use(lane)
        free = limit.concurrency - used
        found = self._group(lane) if self._groups else None
        if found is not None:
            group, member = found
            free = min(free, group.left - group.kept(member))
        return free if free > 0 else 0

    def refused_by(self, lane: str) -> list[tuple[Refusal, str]]:
        """Return which limits leave no slot to a lane: (kind, the lane or its group)."""
        refused: list[tuple[Refusal, str]] = []
        if self._use(lane) >= self._limit(lane).concurrency:
            refused.append(("concurrency", lane))
        found = self._group(lane)
        if found is not None:
            group, member = found
            if group.left <= 0:
                refused.append(("group", group.name))
            elif group.left <= group.kept(member):
                refused.append(("reservation", group.name))
        return refused

    def why_not(self, lane: str) -> str:
        """Return what keeps the next job of a lane from a start, as a cause of waits, or `""`."""
        for kind, _ in self.refused_by(lane):
            return "slots" if kind == "concurrency" else "group"
        return "rate" if lane in self.refused else ""

    def holder(self, kind: Refusal, lane: str) -> int | None:
        """Return the job that has had a slot longest, of a lane, or of the lanes of its group."""
        found = None if kind == "concurrency" else self._group(lane)
        lanes = [lane] if found is None else found[0].lanes
        runs = [run for one in lanes if (run := self._tables.first_holder(one)) is not None]
        return min(runs, key=lambda run: run.fence).id if runs else None

    def rates_allow(self, job: JobRecord) -> bool:
        """Whether the rates allow a start of a job now. Call it only when all else allows it."""
        meters = self._meters(job.lane)
        if not meters:
            return True
        ready_at = rates.ready_at(self._tables, meters, rates.costs_of(job))
        if ready_at <= self._now:
            return True
        self.due = min(self.due, ready_at)
        self.refused[job.lane] = ready_at
        return False

    def is_held(self, lane: str) -> bool:
        """Whether a lane without a free slot, or that its rates refuse, is held by itself alone."""
        if lane in self.refused:
            return self._group(lane) is None
        return self._use(lane) >= self._limit(lane).concurrency

    def take(self, job: JobRecord) -> None:
        """Take a slot for a job, and charge the rates."""
        found = self._group(job.lane) if self._groups else None
        self._used[job.lane] = self._use(job.lane) + 1
        if found is not None:
            group, member = found
            group.used[member] += 1
        meters = self._meters(job.lane)
        if meters:
            rates.charge(self._tables, meters, rates.costs_of(job), self._now)

    def is_rated(self, lane: str) -> bool:
        """Whether a rate of a lane or its group counts its starts."""
        return bool(self._meters(lane))

    def check_units(self, lane: str, costs: Costs) -> None:
        """Refuse costs that the rates of a lane and of its group do not count.

        Raises:
          ValueError: for another unit, it names the unit, and the units that are counted; for an
            amount that has other parts than the limit, the unit and the amount.
        """
        meters = self._meters(lane)
        for meter in meters:
            amount = costs.get(meter.unit, 0)
            if not fits(amount, meter.scale):
                raise misfit(meter.unit, amount, lane)
        counted = {meter.unit for meter in meters}
        for unit in costs.keys() - counted - {REQUESTS}:
            known = ", ".join(map(repr, sorted(counted))) or "none"
            raise ValueError(
                f"cost names {unit!r}, which no rate of lane {lane!r} or its group counts "
                f"(counted: {known})"
            )

    def _meters(self, lane: str) -> list[rates.Meter]:
        meters = self._meters_of.get(lane)
        if meters is None:
            meters = [meter for _, owned in self._meters_by_owner(lane) for meter in owned]
            self._meters_of[lane] = meters
        return meters

    def _meters_by_owner(self, lane: str) -> list[tuple[str, list[rates.Meter]]]:
        limit = self._limit(lane)
        owned = (
            [(lane, rates.meters_of(self._tables, f"lane {lane}", limit.rates))]
            if limit.rates
            else []
        )
        if self._groups:
            group = self._groups.get(label_of(self._lanes, lane) or lane)
            if group is not None:
                meters = rates.meters_of(self._tables, f"group {group.name}", group.limit.rates)
                owned.append((group.name, meters))
        return owned

    def rates_until(self, job: JobRecord) -> list[tuple[str, float]]:
        """Return (lane or group, when its rates allow a start of a job) of rates that refuse it."""
        costs = rates.costs_of(job)
        times = [
            (owner, rates.ready_at(self._tables, meters, costs))
            for owner, meters in self._meters_by_owner(job.lane)
        ]
        return [(owner, time) for owner, time in times if time > self._now]

    def return_refused_by(self, job: JobRecord) -> list[tuple[Refusal, str]]:
        """Return what keeps a run from the slot that it wants back, as `refused_by` does.

        Such runs return in the order of their fences; reservations and rates do not hold them up.
        """
        requests = self._runs().slot_requests()
        mine = [other for other in requests if other.lane == job.lane]
        # runs that want a slot are counted as used, so they are added to the free slots again
        lane_free = self._limit(job.lane).concurrency - self._use(job.lane) + len(mine)
        if sum(other.fence < job.fence for other in mine) >= lane_free:
            return [("concurrency", job.lane)]
        found = self._group(job.lane)
        if found is None:
            return []
        group, _ = found
        requests = [other for other in requests if other.lane in group.lanes]
        ahead = sum(other.fence < job.fence for other in requests)
        return [] if ahead < group.left + len(requests) else [("group", group.name)]


def misfit(unit: str, amount: object, lane: str) -> ValueError:
    """Return the error of an amount that has other parts than a limit."""
    return ValueError(
        f"cost of {unit!r} must be a whole number where a rate of lane {lane!r} or its group is an"
        f" int, and at most {MAX_DECIMAL:,} where it is a Decimal, got {amount}"
    )


@final
class _GroupUse:
    """A group, and how many of its slots its members use.

    Attributes:
      lanes: its lanes whose slots are in use; empty: its use is not counted yet.
    """

    def __init__(self, name: str, limit: GroupLimit) -> None:
        self.name: Final = name
        self.limit: Final = limit
        self.lanes: Final[list[str]] = []
        self.used: Final[Counter[str]] = Counter()

    @property
    def left(self) -> int | float:
        """How many slots no run uses."""
        return self.limit.concurrency - self.used.total()

    def kept(self, member: str) -> int:
        """Return how many free slots are reserved for other members than ``member``."""
        return sum(
            max(0, tokens - self.used[other])
            for other, tokens in self.limit.reserve.items()
            if other != member
        )
