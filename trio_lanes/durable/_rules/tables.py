"""What the rules of scheduling need to know of a table: lookups, and writes to one row.

The rules stand once, in ``_engine`` and beside it, over this protocol. `MemoryTables` says in a few
lines what each of these means; `SqliteTables` says it in SQL. None of them decides anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from .._contract.records import GroupLimit, InstanceInfo, LaneLimit, StoreRules
from .._contract.state import DurableState
from .job_record import JobRecord


class Tables(Protocol):
    """The tables of a store, inside of one transaction."""

    # ---- jobs
    def insert(self, job: JobRecord) -> None:
        """Keep a new job, which has its id."""

    def update(self, job: JobRecord, **changes: Any) -> None:
        """Change the job, in the table and in this record."""

    def delete(self, job: JobRecord) -> None: ...
    def get(self, id: int) -> JobRecord | None: ...
    def keyed(self, key: str) -> JobRecord | None: ...
    def next_number(self) -> int:
        """Greater than all before: one sequence for ids, places, ready lists and fences."""

    # ---- lines
    def head(self, session: str) -> JobRecord | None:
        """Who stands first in that session's line."""

    def ready(self, lane: str, priority: int, after: int | None, limit: int) -> list[JobRecord]:
        """Whose turn it is there, in order, beyond place ``after``, without what is shelved."""

    def shelved(self, names: Iterable[str], limit: int) -> list[JobRecord]:
        """The unhandled ones of those names, up to a limit."""

    # ---- times
    def parked_due(self, now: float, limit: int, session: str | None = None) -> list[JobRecord]:
        """The parked jobs that are due, in order of that time.

        With a ``session``, those of it that have no place in its line.
        """

    def forget_due(self, now: float, limit: int) -> int: ...
    def pauses_due(self, now: float) -> list[str]:
        """The sessions whose pause is over."""

    def next_due(self) -> float | None:
        """When something is due next: a parked job, or the end of a pause."""

    # ---- runs
    def running(self, instance: str) -> list[JobRecord]: ...
    def cancelled_running(self, instance: str) -> list[JobRecord]: ...
    def slots_used(self, lane: str) -> int:
        """How many runs hold a slot of that lane: the size of a set, never a counter."""

    def wanting(self, lane: str) -> list[JobRecord]:
        """The runs that want their slots back, in order of their fences."""

    # ---- selections
    def clearable(
        self, lane: str | None, session: str | None, before: int, limit: int
    ) -> list[JobRecord]:
        """What waits or is parked there, with ids below ``before``.

        If that is more than ``limit``, the last of it: in the lane by id, in the session by place.
        """

    def dead(
        self, lane: str | None, session: str | None, after: int, limit: int
    ) -> list[JobRecord]:
        """The dead jobs with ids beyond ``after``, by id."""

    def failed(
        self, lane: str | None, session: str | None, after: int, limit: int, now: float
    ) -> list[JobRecord]:
        """The failed jobs with ids beyond ``after``, by id; none to be forgotten."""

    def beyond(
        self,
        states: Collection[DurableState],
        lane: str | None,
        session: str | None,
        after: int,
        limit: int,
        now: float,
    ) -> list[JobRecord]:
        """Those in one of the states with ids beyond ``after``, by id; none to be forgotten."""

    def all_live(self) -> Iterable[JobRecord]:
        """Every job that is not ended, by session and place."""

    # ---- sums
    def waiting_for(self, lane: str) -> int:
        """How many wait or are parked for that lane."""

    def counts(self) -> Mapping[tuple[str, str, str], int]:
        """{(lane, state, name): how many jobs}"""

    def sessions(self) -> int:
        """How many sessions have somebody in line."""

    def sessions_of_lanes(self) -> Mapping[str, int]:
        """By lane, how many sessions have somebody in line who is bound for it."""

    # ---- the rest
    def identity(self) -> str:
        """The store's name, given to it when it was made."""

    def rules(self) -> StoreRules | None:
        """The rules of the store; None: no worker has set them yet."""

    def put_rules(self, rules: StoreRules) -> None: ...
    def lanes(self) -> Mapping[str, LaneLimit]: ...
    def put_lane(self, name: str, limit: LaneLimit | None) -> None: ...
    def groups(self) -> Mapping[str, GroupLimit]: ...
    def put_group(self, name: str, group: GroupLimit | None) -> None: ...
    def marks(self, meter: str) -> Sequence[tuple[float, int]]:
        """What a rate limit remembers, in the order in which it was told."""

    def put_mark(self, meter: str, mark: tuple[float, int], keep: int) -> None:
        """Have it remember one more, and no more than the last ``keep``."""

    def forget_marks(self, meter: str) -> None: ...
    def pause_of(self, session: str) -> float | None: ...
    def put_pause(self, session: str, until: float | None) -> None: ...
    def instances(self) -> list[InstanceInfo]: ...
    def lease_of(self, instance: str) -> float | None: ...
    def put_instance(self, info: InstanceInfo) -> None: ...
    def drop_instance(self, id: str) -> None: ...
    def inspect(self) -> list[str]:
        """What the medium itself finds wrong with these tables."""

    def recount(self) -> bool:
        """Make the sums those of the jobs; False if they were."""
