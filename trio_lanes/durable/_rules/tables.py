"""The `Tables` protocol: the lookups and writes that the rules need.

The rules (`Engine` and the modules of this package) are written once, over this protocol.
`MemoryTables` defines each lookup in a few lines of Python; `SqliteTables` does the same in SQL.
Tables decide nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, final

import attrs

from ... import RateLimit
from ..._limits.meters import Marks
from .._contract.records import GroupLimit, InstanceInfo, LaneLimit, Selection, StoreRules
from .job_record import JobRecord
from .request import Request


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


class Tables(Protocol):
    """The tables of a store, inside of one transaction."""

    # ---- jobs
    def insert(self, job: JobRecord) -> None:
        """Add a new job, which has its id."""

    def update(self, job: JobRecord, **changes: Any) -> None:
        """Change a job, in the table and in the record."""

    def delete(self, job: JobRecord) -> None: ...
    def get(self, id: int) -> JobRecord | None: ...
    def keyed(self, key: str) -> JobRecord | None: ...
    def next_number(self) -> int:
        """Return a number greater than all before: for ids, places, ready lists and fences."""

    def last_number(self) -> int:
        """Return the last number, or one between it and the next."""

    # ---- queues and ready lists
    def head(self, session: str) -> JobRecord | None:
        """Return the first job in the queue of a session."""

    def ready(
        self, lane: str, priority: int, name: str, after: int | None, limit: int
    ) -> list[JobRecord]:
        """Return jobs of a ready list in order, behind place ``after``, without shelved jobs."""

    def has_waiting(self, lane: str, name: str) -> bool:
        """Whether a lane has waiting jobs for the handler of that name."""

    def waiting_lanes(self, names: Collection[str]) -> Iterable[str]:
        """Return the lanes that have waiting jobs for the handlers of these names."""

    def turns(self) -> Mapping[str, str | int]:
        """Return whose turn it is, as `Claims` keeps it."""

    def put_turn(self, key: str, value: str | int | None) -> None:
        """Set whose turn it is under a key; None: forget it."""

    # ---- times
    def parked_due(self, now: float, limit: int, session: str | None = None) -> list[JobRecord]:
        """Return the parked jobs that are due, in order of that time.

        With a ``session``, only its jobs that have no place in its queue.
        """

    def forget_due(self, now: float, limit: int) -> int: ...
    def pauses_due(self, now: float) -> list[str]:
        """Return the sessions whose pause is over."""

    def next_due(self) -> float | None:
        """Return when the next parked job or the end of a pause is due."""

    def next_over(self) -> float | None:
        """Return when the next ended job is to be forgotten, as far as it is known."""

    # ---- runs
    def running(self, instance: str) -> list[JobRecord]: ...
    def run_count_and_suspects(self, instance: str) -> tuple[int, list[JobRecord]]:
        """Return how many runs of an instance have not lent their slots, and its suspects.

        A suspect is a run of a job that has run in a crash: its ``crashed_with`` is not 0.
        """

    def cancelled_running(self, instance: str) -> list[JobRecord]: ...
    def slots_used(self, lane: str) -> int:
        """Return how many runs hold a slot of a lane: the size of a set, never a counter."""

    def first_holder(self, lane: str) -> JobRecord | None:
        """Return the run that was claimed first of those that hold a slot of a lane."""

    def ready_before(self, job: JobRecord, limit: int) -> int:
        """Return how many jobs of its lane are before a job on ready lists, up to ``limit``.

        They are of higher priority, or stand before it in the lists of its own.
        """

    def running_lanes(self) -> Iterable[str]:
        """Return the lanes of which a run holds a slot or wants it back."""

    def slot_requests(self, lane: str) -> list[JobRecord]:
        """Return the runs of a lane that want their slots back, in order of their fences."""

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

    def drop_items(self, name: str, *, taken: bool) -> bool:
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

    def quotas(self) -> Mapping[str, tuple[RateLimit, ...]]:
        """Return the quotas from which something was spent, with the limits applied last."""

    def put_quota(self, name: str, limits: tuple[RateLimit, ...]) -> None: ...

    # ---- sums
    def waiting_for(self, lane: str) -> int:
        """Return how many jobs of a lane are waiting or parked."""

    def counts(self) -> Mapping[tuple[str, str, str], int]:
        """Return {(lane, state, name): how many jobs}."""

    def sessions(self) -> int:
        """Return how many sessions have a queued job."""

    def sessions_of_lanes(self) -> Mapping[str, int]:
        """Return, by lane, how many sessions have a queued job for it."""

    # ---- answers that may be asked for again
    def last_step(self, instance: str) -> LastStep | None:
        """Return the last step of an instance; None: it has taken none."""

    def put_last_step(self, instance: str, step: LastStep | None) -> None: ...
    def answer(self, ticket: str, now: float) -> tuple[Any] | None:
        """Return the answer of the act with a ticket, in a tuple; None: it is not known."""

    def put_answer(self, ticket: str, answer: Any, now: float) -> None:
        """Keep the answer of an act for `REMEMBERED_FOR` seconds from now."""

    # ---- limits, rules and instances
    def identity(self) -> str:
        """Return the store's identity, which it got when it was made."""

    def rules(self) -> StoreRules | None:
        """Return the rules of the store; None: no worker has set them yet."""

    def put_rules(self, rules: StoreRules) -> None: ...
    def lanes(self) -> Mapping[str, LaneLimit]:
        """Return the limits of lanes and templates, and the pauses of lanes of templates."""

    def put_lane(self, name: str, limit: LaneLimit | None) -> None: ...
    def groups(self) -> Mapping[str, GroupLimit]: ...
    def put_group(self, name: str, group: GroupLimit | None) -> None: ...
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
    def pauses(self) -> Mapping[str, float]:
        """Return the paused sessions, and until when they are paused."""

    def pause_of(self, session: str) -> float | None: ...
    def put_pause(self, session: str, until: float | None) -> None: ...
    def instances(self) -> list[InstanceInfo]: ...
    def lease_of(self, instance: str) -> float | None: ...
    def put_instance(self, info: InstanceInfo) -> None: ...
    def drop_instance(self, id: str) -> None: ...
    def forget_unused(self, now: float) -> None:
        """Forget the marks of rate limits that are replenished, and counts of 0.

        Lanes of templates leave them behind. To forget them changes no answer.
        """

    def inspect(self) -> list[str]:
        """Return the problems that the storage itself finds in these tables."""

    def recount(self) -> bool:
        """Count the jobs anew; return False if the counts were right."""
