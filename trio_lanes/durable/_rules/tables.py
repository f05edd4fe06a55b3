"""The `Tables` protocol: the lookups and writes that the rules need.

The rules (`Engine` and the modules of this package) are written once, over this protocol.
`MemoryTables` defines each lookup in a few lines of Python; `SqliteTables` does the same in SQL.
Tables decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar, final

import attrs

from ... import RateLimit
from ..._limits.meters import Marks
from .._contract.records import (
    GroupLimit,
    HeldSnapshot,
    InstanceInfo,
    LaneLimit,
    Selection,
    StoreRules,
)
from .._contract.state import DurableState
from .._options.schedule import DurableSchedule
from .counts import Counts
from .job_record import JobRecord
from .request import Request
from .running import Running

T = TypeVar("T")


class ListItem(NamedTuple):
    """An item of a list."""

    number: int
    data: str
    """JSON."""
    tag: str | None = None
    """Of a message, its key; of a record of a log, the incarnation that added it."""
    taken: bool = True
    """Of a message, whether a run of the job has taken it."""


@final
@attrs.frozen
class LastStep:
    """The last step of an instance, for the case that its answer is asked for again."""

    number: int
    fences_after: int
    """The fences of the step's claims are above this number."""
    stale: tuple[int, ...]
    """The fences of the finishes that came too late."""
    room: int = 0
    """How many more jobs it could have claimed."""


@final
class Kind(Generic[T]):
    """A kind of setting: a small record, of which the tables have one for each name."""

    def __init__(self, name: str) -> None:
        self.name: Final = name


LIMITS: Final = Kind[LaneLimit]("lane")
"""The limits of lanes and templates, and the pauses of lanes of templates, in order of names."""
GROUPS: Final = Kind[GroupLimit]("group")
RULES: Final = Kind[StoreRules]("rules")
"""The rules of the store, under the name ``""``, when a worker has set them."""
PAUSES: Final = Kind[float]("pause")
"""The paused sessions, and until when they are paused."""
FAIR_TURNS: Final = Kind[str | int]("turn")
"""Whose turn it is, as `Claims` keeps it."""
SHARES: Final = Kind[Mapping[str, tuple[int, float]]]("share")
"""By priority and fair lane with weights: {ring: (its owners with ready jobs, what it is owed)}."""
QUOTAS: Final = Kind[tuple[RateLimit, ...]]("quota")
"""The quotas and templates from which something was spent, with the limits applied last."""
HOLDS: Final = Kind[tuple[tuple[float, str], ...]]("hold")
"""By lane, what kept its ready jobs from a start: (since when, a cause of waits, or `""`)."""
GRANTS: Final = Kind[tuple[tuple[float, int], ...]]("grant")
"""By the key of a meter of a quota, what was granted to it: (until when, how much)."""
FIRES: Final = Kind[float]("fires")
"""The first due time of all schedules, under the name ``""``: no step looks for it."""
INSTANCES: Final = Kind[InstanceInfo]("instance")
STEPS: Final = Kind[LastStep]("step")
"""The last steps of instances, in tables that keep them as settings."""
SETTING_KINDS: Final = (
    *(LIMITS, GROUPS, RULES, PAUSES, FAIR_TURNS, SHARES, QUOTAS, HOLDS, GRANTS, FIRES),
    *(INSTANCES, STEPS),
)


def silent_for(info: InstanceInfo, now: float) -> float:
    """Return the seconds since the last heartbeat of an instance."""
    without = info.lease_ttl == math.inf
    return 0.0 if without else max(0.0, now - info.lease_until + info.lease_ttl)


class Tables(Protocol):
    """The tables of a store, inside of one transaction."""

    # ---- jobs
    def insert(self, job: JobRecord) -> None:
        """Add a new job, which has its id."""

    def before_change(self, job: JobRecord) -> None:
        """Know that the rules change the record of a job before they `update` it."""

    def update(self, job: JobRecord, **changes: Any) -> None:
        """Change a job, in the table and in the record."""

    def delete(self, job: JobRecord) -> None: ...
    def get(self, id: int) -> JobRecord | None: ...
    def keyed(self, key: str) -> JobRecord | None: ...
    def coalesced(self, key: str, *, begun: bool) -> JobRecord | None:
        """Return the first job whose ``coalesce`` is a key, and that was claimed, or was not."""

    def next_number(self) -> int:
        """Return a number greater than all before: for ids, places, ready lists and fences."""

    def last_number(self) -> int:
        """Return the last number, or one between it and the next."""

    # ---- queues and ready lists
    def head(self, session: str) -> JobRecord | None:
        """Return the first job in the queue of a session."""

    def ready(
        self, lane: str, priority: int, name: str, after: int | None, limit: int, ring: str = ""
    ) -> list[JobRecord]:
        """Return jobs of a ready list in order, behind place ``after``, without shelved jobs."""

    def look_ahead(self, lanes: Collection[str], names: Collection[str]) -> None:
        """Be ready to be asked for the ready lists of lanes that have waiting jobs."""

    def suspected(self) -> Collection[str]:
        """Return the lanes in which a job waits that was running in a crash."""

    # ---- fair lanes: see `fair`
    fair: bool
    """Whether a lane may be fair."""

    def heads_of(self, lane: str, priority: int, party: str) -> list[JobRecord]:
        """Return the jobs that stand for an owner on ready lists: one of each handler at most."""

    def first_behind(self, lane: str, priority: int, name: str, party: str) -> JobRecord | None:
        """Return the first job of a handler that is shelved behind another of its owner."""

    def listed(self, lane: str) -> list[JobRecord]:
        """Return the ready jobs of a lane that are not paused and were not given back.

        They are in order of their places, shelved ones last.
        """

    # ---- times
    def due(self, now: float, limit: int, session: str | None = None) -> list[JobRecord]:
        """Return the jobs that have expired, then the parked jobs that are due, by these times.

        A job may be among both. With a ``session``, only its parked jobs that are due and have no
        place in its queue.
        """

    def forget_due(self, now: float, limit: int) -> int: ...
    def next_due(self) -> float | None:
        """Return when the next parked job or the end of a pause is due, or a job expires."""

    def parked_until(self, time: float, limit: int) -> Mapping[str, int]:
        """Return, by lane, how many of the first parked jobs are due at a time."""

    def next_over(self) -> float | None:
        """Return when the next ended job is to be forgotten, as far as it is known."""

    # ---- runs
    def running(self, instance: str) -> list[JobRecord]: ...
    def fences_of(self, instance: str) -> Mapping[int, int]:
        """Return the ids of the running jobs of an instance, by fence; no payload is read."""

    def runs(self) -> Running:
        """Return the sets of running jobs; they may follow the changes of this transaction."""

    def first_holder(self, lane: str) -> JobRecord | None:
        """Return the run that was claimed first of those that hold a slot of a lane."""

    def ready_before(self, job: JobRecord, limit: int) -> int:
        """Return how many jobs of its lane are before a job on ready lists, up to ``limit``.

        They are of higher priority, or stand before it in the lists of its own.
        """

    # ---- selections
    def clearable(
        self, lane: str | None, session: str | None, before: int, limit: int
    ) -> list[JobRecord]:
        """Return waiting and parked jobs of a lane or session, with ids below ``before``.

        If they are more than ``limit``, return the last of them: by id in a lane, by place in a
        session.
        """

    def select(self, of: Selection, after: int, limit: int, now: float) -> list[JobRecord]:
        """Return the first jobs of a selection with ids above ``after``, by id; no forgotten job.

        With a negative ``limit``, return all.
        """

    def all_live(self) -> Iterable[JobRecord]:
        """Return every job that has not ended, by session and place."""

    # ---- lists: the events of a job, the messages to it, and logs
    def append(self, name: str, item: ListItem, keep: int | None = None) -> None:
        """Add an item to a list, or replace it; then keep only the last ``keep`` numbers."""

    def items(self, name: str, after: int, limit: int) -> Iterable[ListItem]:
        """Return the first items of a list with numbers above ``after``, in order."""

    def last_item(self, name: str) -> int:
        """Return the number of the last item of a list; 0: it has none."""

    def drop_items(self, name: str, *, taken: bool) -> None:
        """Delete the items of a list, those that were taken only with ``taken``.

        Return whether there were any. The lists of a job are deleted with it.
        """

    # ---- requests for locks and quotas
    def request(self, id: int) -> Request | None: ...
    def put_request(self, request: Request) -> None: ...
    def drop_request(self, id: int) -> None: ...
    def first_request(self, line: str, served: bool) -> Request | None:
        """Return the first request of a line that was served, or that waits."""

    def requests_of(self, instance: str | None) -> list[Request]:
        """Return the requests of an instance, or with None all, in order of their numbers."""

    # ---- schedules
    def schedule(self, name: str) -> DurableSchedule | None: ...
    def schedules(self, after: int, limit: int) -> list[DurableSchedule]:
        """Return the first schedules with ids above ``after``, by id."""

    def schedules_due(self, time: float, limit: int) -> list[DurableSchedule]:
        """Return the first schedules that are due at a Unix time, by their due times."""

    def put_schedule(self, schedule: DurableSchedule) -> None: ...
    def drop_schedule(self, id: int) -> None: ...

    # ---- sums
    def counts(self) -> Counts:
        """Return how many jobs have not ended; the numbers may follow, as `runs` does."""

    def count_end(self, label: str, state: DurableState) -> None:
        """Count an end of a job, of a lane or template; no later change takes it away."""

    def ends(self) -> Iterable[tuple[str, str, int]]:
        """Return (lane or template, state, how many times a job of it has ended so)."""

    def sessions(self) -> int:
        """Return how many sessions have a queued job."""

    def sessions_of_lanes(self) -> Mapping[str, int]:
        """Return, by lane, how many sessions have a queued job for it."""

    # ---- answers that may be asked for again
    def last_step(self, instance: str) -> LastStep | None:
        """Return the last step of an instance; None: it has taken none."""

    def put_last_step(self, instance: str, step: LastStep | None) -> None: ...
    def answer(self, ticket: str, now: float) -> tuple[Any] | None:
        """Return the answer of the act with a ticket, in a tuple; None: it is not known.

        The answer to an act that was refused is its error.
        """

    def put_answer(self, ticket: str, answer: Any, now: float) -> None:
        """Keep the answer of an act for `REMEMBERED_FOR` seconds from now."""

    # ---- settings, and marks of rates
    def identity(self) -> str:
        """Return the store's identity, which it got when it was made."""

    def of(self, kind: Kind[T]) -> Mapping[str, T]:
        """Return the settings of a kind, by name."""

    def put(self, kind: Kind[T], name: str, value: T | None) -> None:
        """Set a setting; None: forget it."""

    def ahead_of_wall(self) -> float:
        """Return the seconds by which the store's time is ahead of Unix time."""

    def marks(self, meter: str) -> Marks:
        """Return the marks of a rate limit, in the order in which they were put."""

    def meters(self) -> Collection[str]:
        """Return the rate limits that have marks."""

    def put_marks(self, meter: str, added: Marks, keep: int, until: float) -> None:
        """Add marks to a rate limit, and keep only its last ``keep`` marks.

        Args:
          until: when the limit is fully replenished, if nothing more is charged to it. From then
            on the store may forget its marks.
        """

    def forget_marks(self, meter: str) -> None: ...
    def forget_unused(self, now: float) -> None:
        """Forget the marks of rate limits that are replenished, and counts of 0.

        Lanes of templates leave them behind. To forget them changes no answer.
        """

    def held_snapshots(self) -> list[HeldSnapshot]:
        """Return what keeps the storage from forgetting rows that were changed since."""

    def inspect(self) -> list[str]:
        """Return the problems that the storage itself finds in these tables."""

    def recount(self) -> bool:
        """Count the jobs anew; return False if the counts were right."""
