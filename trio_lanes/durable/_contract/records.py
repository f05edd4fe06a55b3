"""What crosses the border between lanes and store: plain records, and no behaviour.

Times in here are the store's: seconds that never run backwards, on one machine close to Unix time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias, final

import attrs

from ..._rate import RateLimit
from .state import DurableState

# ---- what lanes ask


@final
@attrs.frozen(kw_only=True)
class Submission:
    """One job to accept. `DurableLanes.submit_many` takes these; a store gets them checked."""

    name: str
    """The handler's name."""
    payload: object = None
    """JSON; in a store's hands it is its text."""
    session: str | None = None
    lane: str = "main"
    priority: int = 0
    key: str | None = None
    delay: float = 0.0
    run_at: float | None = None
    """Unix time; in a store's hands it is None, and part of ``delay``."""
    timeout: float = math.inf
    retry: object = None
    """A `RetryPolicy` or None; in a store's hands it is its text."""


@final
@attrs.frozen
class LaneLimit:
    """What a store keeps of a lane."""

    concurrency: int | float
    max_waiting: int | float = math.inf
    paused_until: float | None = None
    """None: not paused. `math.inf`: until it is resumed."""
    rates: tuple[RateLimit, ...] = ()
    proposed: bool = False
    """Whether an instance that does not work wrote it: the first worker's limits replace it."""


@final
@attrs.frozen
class StoreRules:
    """What a store keeps for all instances besides limits."""

    result_ttl: float
    """Seconds for which an ended job and its key are remembered."""
    max_crashes: int | float
    """A job is dead when this many processes have died while they ran it alone."""
    hold: bool
    """Whether a dead job keeps its session closed."""


@final
@attrs.frozen
class GroupLimit:
    """What a store keeps of a group: the limits that its lanes share."""

    members: tuple[str, ...]
    concurrency: int | float = math.inf
    reserve: Mapping[str, int] = attrs.field(factory=dict)
    rates: tuple[RateLimit, ...] = ()


@final
@attrs.frozen(kw_only=True)
class Opening:
    """With what an instance comes to a store."""

    names: frozenset[str]
    """The handlers that it has."""
    lanes: Mapping[str, LaneLimit]
    """Written where absent; what is there wins. A worker replaces what is only proposed."""
    groups: Mapping[str, GroupLimit] = attrs.field(factory=dict)
    """Written where absent, by a worker; what is there wins. So are the three rules."""
    max_crashes: int | float
    hold: bool
    """Whether a dead job keeps its session closed."""
    result_ttl: float
    lease_ttl: float
    worker: bool
    """Whether it claims; else it only submits and inspects."""

    @property
    def rules(self) -> StoreRules:
        """The rules that a worker writes where the store has none."""
        return StoreRules(self.result_ttl, self.max_crashes, self.hold)


@final
@attrs.frozen
class Succeeded:
    """The handler returned ``result`` (JSON text)."""

    result: str


@final
@attrs.frozen
class Failed:
    """The handler failed, for good. ``error`` is JSON text."""

    error: str


@final
@attrs.frozen
class Died:
    """The handler failed, and its attempts are used up. ``error`` is JSON text."""

    error: str


@final
@attrs.frozen
class Postponed:
    """Another attempt, later."""

    delay: float
    counts: bool
    """Whether that was an attempt."""
    requeue: bool
    """Whether it leaves its place, and goes to the tail of its session when it is due."""


@final
@attrs.frozen
class Cancelled:
    """It was asked to stop, and stopped."""


@final
@attrs.frozen
class Released:
    """Given back to the front, unfinished: neither an attempt nor a crash."""


@final
@attrs.frozen
class Finish:
    """How a claimed run ended. It counts only under its fence."""

    id: int
    fence: int
    outcome: Succeeded | Failed | Died | Postponed | Cancelled | Released


Outcome: TypeAlias = Succeeded | Failed | Died | Postponed | Cancelled | Released

# ---- what stores answer


@final
@attrs.frozen
class Claim:
    """A run that this instance was admitted to."""

    id: int
    fence: int
    """Greater than that of every earlier claim."""
    name: str
    payload: str
    session: str | None
    lane: str
    attempt: int
    crashes: int
    timeout: float
    retry: str | None
    checkpoint: str | None


@final
@attrs.frozen
class Step:
    """What a step did besides."""

    claims: tuple[Claim, ...]
    stale: tuple[int, ...]
    """The fences of finishes that came too late: nothing of them was recorded."""
    cancels: tuple[tuple[int, int], ...]
    """(id, fence) of the runs of this instance whose cancellation is recorded."""
    next_due: float | None
    """Seconds until something falls due by itself; None: nothing will."""


@final
@attrs.frozen
class Ended:
    """How a job ended: SUCCEEDED, FAILED, CANCELLED, or DEAD."""

    state: DurableState
    outcome: str
    """JSON text: the result, or what is told instead."""


@final
@attrs.frozen
class DurableStatus:
    """One job at one moment."""

    id: int
    name: str
    session: str | None
    lane: str
    priority: int
    key: str | None
    state: DurableState
    why: str | None
    """Why it is parked: ``"delay"`` or ``"retry"``. None: it is not."""
    until: float | None
    """Until when it is parked, in Unix time."""
    attempt: int
    """The attempt that runs; else how many there were."""
    crashes: int
    """How often a process died while it ran."""
    instance: str | None
    """The instance that runs it."""
    cancelling: bool
    """Whether it runs and its cancellation is recorded."""
    error: str | None
    """What it died or failed of, in one line."""
    submitted_at: float
    """Unix time."""


@final
@attrs.frozen
class DurableLaneStatistics:
    """One lane of a store at one moment."""

    waiting: int
    """Jobs that have a place in line and do not run."""
    parked: int
    """Jobs that are delayed or between attempts."""
    running: int
    """Jobs that are claimed."""
    dead: int
    """Dead jobs that nobody has dealt with."""
    unhandled: int
    """Waiting and parked jobs whose handler no live instance has."""
    sessions: int
    """Sessions that have a job in line which is bound for it."""
    concurrency: int | float
    """How many may run at once, over all instances."""
    max_waiting: int | float
    """How many may wait or be parked."""
    paused: bool
    """Whether nothing of it is claimed now."""


@final
@attrs.frozen
class DurableStatistics:
    """A store at one moment: the sums over its lanes, and the lanes."""

    waiting: int
    parked: int
    running: int
    dead: int
    unhandled: int
    sessions: int
    """Sessions that have a job in line."""
    lanes: Mapping[str, DurableLaneStatistics]
    store: str
    """The identity of the store; a copy of it has the same."""


@final
@attrs.frozen
class InstanceInfo:
    """A process, or a part of one, that claims from a store."""

    id: str
    """Its incarnation; another after each start and each lost lease."""
    host: str
    pid: int
    since: float
    """Unix time."""
    lease_until: float
    """When its lease ends, in the store's time; `math.inf`: a lock takes the place of leases."""
    names: tuple[str, ...]
    """The handlers that it has."""
    running: int
    """Jobs that it runs."""


@final
@attrs.frozen
class CheckReport:
    """What a check of a store found."""

    problems: tuple[str, ...]
    """One line for each; none: all is well."""
    repaired: int
    """How many were repaired."""
