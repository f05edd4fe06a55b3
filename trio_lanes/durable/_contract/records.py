"""The records that lanes and stores exchange. They have no behaviour.

The records of which each job has one (`SubmittedJob`, `Claim`, `Finish`, `Succeeded`, `Ended`) are
not frozen, since it takes twice as long to make a frozen object. No code changes them, either.

All times are in the store's time: seconds that never run backwards, close to Unix time.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Final, Literal, TypeAlias, final

import attrs

from ... import Coalesce, RateLimit
from ..._config.exact import bucket_shape, exact
from ..._config.reasons import REASONS
from .amounts import Costs, amount_of, counted_in, scale_of
from .state import DurableState

Seconds: TypeAlias = float
"""A length of time of which every digit is kept, also where times are whole microseconds."""

# ---- from lanes to a store


@final
@attrs.define(kw_only=True, unsafe_hash=True)
class SubmittedJob:
    """One job for a store to accept. `DurableLanes` has checked its values."""

    name: str
    """The handler's name."""
    payload: str = "null"
    """JSON text."""
    session: str | None = None
    lane: str = "main"
    priority: int = 0
    key: str | None = None
    delay: float = 0.0
    """Seconds from the acceptance until the job joins its session's queue."""
    run_at: float | None = None
    """The Unix time at which the delay ends. A store whose time does not follow the wall clock may
    move the end when that clock is set. None: the delay is counted by the store's time."""
    timeout: float = math.inf
    retry: str | None = None
    """JSON text of the job's own retry policy; None: the policy of the instance that runs it."""
    cost: Costs | None = None
    """What each start takes from the rates of its lane and group, by unit; None: one request."""
    headers: str | None = None
    """JSON text, {name: text}: what instruments of its submitter say to those of its runs."""
    key_after: Literal["result_ttl", "failure"] = "result_ttl"
    """Whether it begins anew if the job that has its key has ended without a result."""
    owner: str | None = None
    """For whom it takes turns in a fair lane; None: its session."""
    expires: float | None = None
    """Seconds from the acceptance after which it ends as EXPIRED, unless it was claimed before."""
    coalesce: Coalesce | None = None
    """Whose key is a text, and whose ``debounce`` is the ``delay``. It excludes a ``key``."""


@final
@attrs.frozen
class LaneLimit:
    """The limits of one lane, or of each lane of a template, as a store keeps them.

    A name that ends with ``*`` is a template: its limits hold for each lane that no limits of its
    own, and no longer template, match. A lane of a template exists while the store has jobs for it
    that have not ended, or while it is paused. What its rates remember outlives it until they are
    fully replenished.
    """

    concurrency: int | float
    max_waiting: int | float = math.inf
    paused_until: float | None = None
    """None: the lane is not paused. `math.inf`: it is paused until ``resume``."""
    rates: tuple[RateLimit, ...] = ()
    proposed: bool = False
    """Whether an instance with ``worker=False`` wrote it: the first worker's limits replace it."""
    pause_only: bool = False
    """Whether it is the pause of a lane of a template, whose other limits are the template's. Only
    a store writes it, and `AllLanes` leaves it out."""
    fair: bool = False
    """Whether the owners of jobs take turns, inside a priority."""
    weights: Mapping[str, float] = attrs.field(factory=dict)
    """By owner, or template of owners, its weight; 1 unless it is there. Only of a fair lane."""
    aging: Seconds = math.inf
    """Seconds of waiting that are worth one step of priority; `math.inf` for none. Each priority
    counts with the wait of its next job, since its submission or, after a delay or a retry, since
    it was due. A job that is given back keeps that time; requeued, it counts from its submission.
    """


@final
@attrs.frozen
class StoreRules:
    """The rules of a store that hold for all instances, besides the limits."""

    result_ttl: float
    """Seconds for which the store remembers an ended job and its key."""
    max_crashes: int | float
    """A job is dead when this many processes have died while they ran no other job."""
    hold: bool
    """Whether a dead job keeps its session closed."""


@final
@attrs.frozen
class GroupLimit:
    """The limits that the lanes of a group share, as a store keeps them."""

    members: tuple[str, ...]
    concurrency: int | float = math.inf
    reserve: Mapping[str, int] = attrs.field(factory=dict)
    rates: tuple[RateLimit, ...] = ()


@final
@attrs.frozen(kw_only=True)
class Opening:
    """The arguments with which an instance opens a store."""

    names: frozenset[str]
    """The names of this instance's handlers."""
    lanes: Mapping[str, LaneLimit]
    """Written where the store has no such lane; else the store's limits win, unless an instance
    with ``worker=False`` proposed them: a worker replaces these."""
    groups: Mapping[str, GroupLimit] = attrs.field(factory=dict)
    """Written by a worker where the store has no such group; else the store's group wins. The
    same holds for the three rules."""
    max_crashes: int | float
    hold: bool
    """Whether a dead job keeps its session closed."""
    result_ttl: float
    lease_ttl: float
    worker: bool
    """Whether this instance claims jobs; else it only submits and inspects."""
    affinity: float = 0.0
    """Seconds for which it leaves the next job of a session to the instance that ran the last."""
    host: str = attrs.field(factory=socket.gethostname)
    pid: int = attrs.field(factory=os.getpid)
    """The process of this instance; the store may be in another."""

    @property
    def rules(self) -> StoreRules:
        """The rules that a worker writes into a store without rules."""
        return StoreRules(self.result_ttl, self.max_crashes, self.hold)


@final
@attrs.define(unsafe_hash=True)
class Succeeded:
    """The outcome of a run whose handler returned ``result`` (JSON text)."""

    result: str


@final
@attrs.frozen
class Failed:
    """The outcome of a run that failed and is not retried. ``error`` is JSON text."""

    error: str


@final
@attrs.frozen
class Died:
    """The outcome of a run that failed with its last attempt. ``error`` is JSON text."""

    error: str


@final
@attrs.frozen
class Postponed:
    """The outcome of a run after which the job is attempted again, later."""

    delay: float
    counts: bool
    """Whether the run counts as an attempt."""
    requeue: bool
    """Whether the job gives up its place, and joins the tail of its session when it is due."""
    error: str | None = None
    """Why the run failed, in one line, for `DurableStatus.history`."""


@final
@attrs.frozen
class Cancelled:
    """The outcome of a run that ended because the job was cancelled."""


@final
@attrs.frozen
class Released:
    """The outcome of a run that gives its job back to the front: neither attempt nor crash."""


@final
@attrs.define(unsafe_hash=True)
class Finish:
    """The end of a claimed run. A store ignores it unless the fence is still the run's."""

    id: int
    fence: int
    outcome: Succeeded | Failed | Died | Postponed | Cancelled | Released


Outcome: TypeAlias = Succeeded | Failed | Died | Postponed | Cancelled | Released


@final
@attrs.frozen(kw_only=True)
class Selection:
    """The jobs that a listing or an order is for: each field that is given narrows it."""

    id: int | None = None
    states: frozenset[DurableState] = frozenset(DurableState)
    lane: str | None = None
    session: str | None = None
    name: str | None = None
    """The handler's name."""
    error: str | None = None
    """The type of the error of a dead or failed job, as ``DurableJobError.type``."""
    since: float | None = None
    """Only jobs that were submitted at this Unix time or later."""
    until: float | None = None
    """Only jobs that were submitted before this Unix time."""


# ---- from a store to lanes


@final
@attrs.define(unsafe_hash=True)
class Claim:
    """A job that a store has given to this instance to run."""

    id: int
    fence: int
    """Greater than the fence of every earlier claim."""
    name: str
    payload: str
    session: str | None
    lane: str
    attempt: int
    crashes: int
    timeout: float
    retry: str | None
    checkpoint: str | None
    headers: str | None = None


@final
@attrs.frozen
class Step:
    """The answer of `Store.step`."""

    claims: tuple[Claim, ...]
    stale: tuple[int, ...]
    """The fences of finishes that came too late: the store has recorded nothing of them."""
    cancels: tuple[tuple[int, int], ...]
    """(id, fence) of the runs of this instance whose cancellation is recorded."""
    next_due: float | None
    """Seconds until a job or a limit falls due by itself; None: nothing will."""
    fires: float | None = None
    """Seconds until a schedule falls due; None: none will."""


@final
@attrs.define(unsafe_hash=True)
class Ended:
    """The end of a job: SUCCEEDED, FAILED, CANCELLED, EXPIRED, or DEAD."""

    state: DurableState
    outcome: str
    """JSON text: the result, the error, or the reason of the cancellation."""


@final
@attrs.frozen
class DurableAttempt:
    """One run of a job, from its claim to its end."""

    number: int
    """The number of the attempt. A run that does not count has the number of the next run too."""
    fence: int
    host: str
    pid: int
    """The process of the instance that ran it."""
    started_at: float
    """Unix time of the claim."""
    ended_at: float | None
    """Unix time; None: it runs."""
    how: str | None
    """How it ended: ``"succeeded"``, ``"failed"``, ``"dead"``, ``"cancelled"``, ``"retried"``,
    ``"released"`` (given back by a drain, a reset or a lost lease), ``"crashed"`` (its process
    died, or did not answer for longer than its lease); None: it runs."""
    error: str | None
    """Why it failed, in one line."""
    due_at: float | None = None
    """Until when the job had waited before it for ``due_by``, in Unix time."""
    due_by: str | None = None
    """``"delay"``, ``"retry"``, or ``"session"``: other jobs were before it; None: for none."""


@final
@attrs.frozen
class JobTexts:
    """What a job carries, as JSON texts."""

    payload: str | None
    """None: the job has succeeded or was cancelled, so the store has it no more."""
    checkpoint: str | None
    """The checkpoint data for the next attempt."""
    outcome: str | None
    """The result, the error, or the reason of the cancellation; None: the job has not ended."""
    events: tuple[tuple[int, str], ...]
    """The number and the text of the last 100 events."""
    messages: tuple[tuple[int, bool, str], ...]
    """The number of the last 100 messages, whether a run has taken it, and the text."""


@final
@attrs.frozen
class DurableStatus:
    """The state of one job at one moment."""

    id: int
    name: str
    session: str | None
    lane: str
    priority: int
    key: str | None
    state: DurableState
    why: str | None
    """Why the job is parked: ``"delay"`` or ``"retry"``; None if it is not parked."""
    until: float | None
    """The Unix time until which the job is parked."""
    attempt: int
    """The number of the running attempt; if the job does not run, how many attempts there were."""
    crashes: int
    """How often a process died while it ran, or did not answer for longer than its lease."""
    instance: str | None
    """The id of the instance that runs the job."""
    cancelling: bool
    """Whether the job runs and its cancellation is recorded."""
    error: str | None
    """The error of a dead or failed job, in one line."""
    submitted_at: float
    """Unix time."""
    history: tuple[DurableAttempt, ...] = ()
    """The last ten runs of the job, the oldest first; the running one is among them."""
    waits: Mapping[str, float] = attrs.field(factory=dict)
    """Where its waits went, until now, in seconds by cause: ``"delay"``, ``"retry"`` (back-off),
    ``"session"`` (other jobs were before it; not told apart if it was delayed or parked as well),
    what kept its lane from a start: ``"pause"`` of the lane, ``"slots"``, ``"group"`` (slots or
    reservations), ``"rate"``; ``"queue"``: the rest, as its turn and the room of instances. Claims
    note it, of a lane for its last 20 changes. The waits before the last ten runs are not in it."""
    timeout: float = math.inf
    """Seconds that an attempt may run."""
    seen_at: float = attrs.field(default=0.0, eq=False)
    """When the store gave this answer, in its time."""
    expires_at: float | None = None
    """When the job ends as EXPIRED, as Unix time; None: never, or a run of it has begun."""
    texts: JobTexts | None = None
    """What the job carries; None unless it was asked for."""
    owner: str | None = None
    """For whom it takes turns in a fair lane; None: its session."""

    @property
    def waited(self) -> float:
        """For how many seconds a job that waits has: since its delay was over, or its last run."""
        since = self.history[-1].ended_at if self.history else None
        return self.seen_at - (since or self.submitted_at + self.waits.get("delay", 0.0))


_REASONS: Final[Mapping[str, str]] = {
    **REASONS,
    "delay": "it is not due",
    "retry": "it is between two attempts",
    "session": "{lane} runs {job}",
    "order": "{job} is before it in {lane}",
    "dead": "{job} is dead and keeps {lane} closed",
    "handler": "no live instance has its handler",
    "suspect": "one more crash could make it dead, so it waits for an instance that runs few jobs",
    "lock": "it runs, and waits for the lock {lane}, which {job} has",
    "quota": "it runs, and waits for the quota {lane}",
    "job": "it runs, and waits for {job}",
}
"""By `DurableBlocker.kind`: those of lanes, but for the kinds that name a job here, and more."""


@final
@attrs.frozen
class DurableBlocker:
    """A reason why a job does not go on: see `DurableLanes.blocked_by`."""

    kind: Literal[
        "delay",
        "retry",
        "pause",
        "session",
        "order",
        "dead",
        "handler",
        "suspect",
        "concurrency",
        "group",
        "reservation",
        "rate",
        "lent",
        "lock",
        "quota",
        "job",
    ]
    """``delay``: the job is not due. ``retry``: it is between attempts. ``pause``: its session or
    lane is paused. ``session``: its session runs ``job``. ``order``: ``job`` is before it, in the
    queue of its session or in its lane. ``dead``: ``job`` is dead and keeps the session closed.
    ``handler``: no live instance has its handler. ``suspect``: one more crash could make it dead,
    so it waits for an instance that runs few jobs. ``concurrency``: the lane has no free slot.
    ``group``: the group has none. ``reservation``: the free slots of the group are reserved for
    other lanes. ``rate``: a rate limit of the lane or group. ``lent``: it runs, and has lent its
    slot. ``lock``: it runs, and waits for a lock, which ``job`` has. ``quota``: it runs, and waits
    for a quota, and ``job`` is the first that waits for it; None: this job is the first. ``job``:
    it runs on this instance, and waits for ``job``."""
    lane: str
    """The name of a lane, of a session lane (``session:KEY``), of a group, of a lock or of a
    quota."""
    job: int | None = None
    """The id of the job that is before it, or that it waits for; None also if that is no job, but
    a task outside of a run. Of a lane or group without a free slot: the run that has held one for
    the longest time."""
    until: float | None = None
    """When the reason ends, in the store's time, which is close to Unix time; None: unknown."""
    before: int = 0
    """``order`` in a lane: how many jobs are before it there, ``job`` included: 1,000 at most. In a
    fair lane only the first job of each owner is counted."""

    def __str__(self) -> str:
        """The reason in words, as a sentence of which the job is the subject."""
        job = "a task outside of a job" if self.job is None else f"job {self.job}"
        text = _REASONS[self.kind].format(lane=self.lane, job=job)
        return f"{text}, behind {job}" if self.kind == "quota" and self.job is not None else text


@final
@attrs.frozen
class QueuedJob:
    """A job of a session that has not ended, with its payload."""

    id: int
    name: str
    key: str | None
    state: DurableState
    """WAITING, PARKED or RUNNING."""
    payload: str
    """JSON text."""
    begun: bool
    """Whether an attempt or a crash of it was counted, or it has checkpoint data."""
    age: float
    """Seconds since its acceptance, by the store's clock."""


@final
@attrs.frozen
class DurableLaneStatistics:
    """The state of one lane of a store at one moment."""

    waiting: int
    """Jobs that are queued and do not run."""
    parked: int
    """Jobs that are delayed or between attempts."""
    running: int
    """Jobs that an instance has claimed and not finished."""
    dead: int
    """Dead jobs that have been neither requeued nor purged."""
    unhandled: int
    """Waiting and parked jobs whose handler no live instance has."""
    sessions: int
    """Sessions that have a queued job for this lane."""
    concurrency: int | float
    """How many jobs may run at once, over all instances."""
    max_waiting: int | float
    """How many jobs may be waiting or parked."""
    paused: bool
    """Whether the lane is paused: no instance claims its jobs."""
    due: int = 0
    """Of what is parked or scheduled, that whose time has come: the next step of an instance makes
    it wait. Of the first 1,000 jobs, and of 100 schedules, which count one each."""


@final
@attrs.frozen
class LineRequest:
    """A request for a lock or a quota: it has the lock, or it waits."""

    instance: str
    """The incarnation whose task made it."""
    job: int | None
    """The job whose run made it; None: a task outside of a run."""
    since: float
    """Since when it has the lock, or waits, in Unix time."""


@final
@attrs.frozen
class LockStatistics:
    """A lock that some task has."""

    key: str
    holding: int
    """How many requests have it: more than one only of shared requests."""
    waiting: int
    holders: tuple[LineRequest, ...]
    """The first ten that have it."""
    waiters: tuple[LineRequest, ...]
    """The next ten that get it, in their order."""


SHORTEST_BUDGET: Final = 3600.0
"""Seconds; a limit on a shorter time is used up and replenished all the time."""


@final
@attrs.frozen
class QuotaLevel:
    """How much of one limit of a quota is in use."""

    limit: RateLimit
    """As the last spend applied it."""
    used: int | Decimal
    """The amount that counts against the limit now; more than the limit after a settlement. It is a
    `Decimal` if the limit is."""
    full_at: float | None
    """When all of it may be used again if nothing more is spent, as Unix time; None: it may now."""

    granted: int | Decimal = 0
    """How much more than the limit a person has granted, for now."""

    @property
    def left(self) -> int | Decimal:
        """How much could be taken at once, at least; below 0 after a settlement above the limit."""
        most, scale = exact(self.limit.limit), scale_of(self.limit.limit)
        if self.limit.algorithm == "gcra":
            most = bucket_shape(self.limit.limit, self.limit.longest, self.limit.burst)[0]
        parts = math.floor(most * scale) + counted_in(self.granted, scale)
        return amount_of(parts - counted_in(self.used, scale), scale)

    @property
    def is_low(self) -> bool:
        """Whether 80 % or more are used."""
        scale = scale_of(self.limit.limit)
        most = math.floor(exact(self.limit.limit) * scale) + counted_in(self.granted, scale)
        return counted_in(self.used, scale) * 5 >= most * 4


def is_budget(limit: RateLimit) -> bool:
    """Whether it is low with 80 % in use: an exact cap on an hour or longer."""
    return limit.algorithm != "gcra" and limit.longest >= SHORTEST_BUDGET


def left_of(levels: Iterable[QuotaLevel]) -> dict[str, int | Decimal]:
    """Return what could be taken at once from a quota, by unit: the least of its limits."""
    left: dict[str, int | Decimal] = {}
    for level in levels:
        unit = level.limit.unit
        left[unit] = min(level.left, left.get(unit, level.left))
    return left


@final
@attrs.frozen
class QuotaStatistics:
    """A quota from which something was spent."""

    name: str
    levels: tuple[QuotaLevel, ...]
    waiting: int
    waiters: tuple[LineRequest, ...]
    """The next ten that are served, in their order."""
    template: str | None = None
    """The template that has its limits; None: they are its own."""


@final
@attrs.frozen
class DurableStatistics:
    """The state of a store at one moment: the sums over its lanes, and the lanes."""

    waiting: int
    parked: int
    running: int
    dead: int
    unhandled: int
    sessions: int
    """Sessions that have a queued job."""
    lanes: Mapping[str, DurableLaneStatistics]
    store: str
    """The identity of the store; a copy of the store has the same identity."""
    paused: Mapping[str, float | None] = attrs.field(factory=dict)
    """The first 100 paused sessions, and until which Unix time; None: until ``resume``."""
    locks: tuple[LockStatistics, ...] = ()
    """The locks that are held or waited for: the 100 for which most requests wait."""
    quotas: tuple[QuotaStatistics, ...] = ()
    """The first 100 quotas, or the one that was asked for."""
    ended: Mapping[str, Mapping[str, int]] = attrs.field(factory=dict)
    """By lane, how many jobs have ended, ever, by the value of the state in which they ended.

    All lanes of a template are counted together, under its name. A job that died, was requeued and
    then succeeded counts as ``dead`` and as ``succeeded``. Nothing takes an end away: neither
    ``purge``, nor that the store forgets the job, nor the removal of its lane.
    """
    due: int = 0
    next_due: float | None = None
    """The first Unix time at which an instance has, or had, something to do that does not wait yet:
    a delay or a backoff ends, a job expires, the pause of a session is over, or a schedule falls
    due. In the past if no instance has taken a step since. None: there is none."""


@final
@attrs.frozen
class HeldSnapshot:
    """What keeps a database from forgetting rows that were changed since."""

    kind: Literal["session", "prepared", "slot", "log"]
    """A session, a prepared transaction or a replication slot of PostgreSQL; the log of a SQLite
    file, which a reader keeps."""
    name: str
    """The pid of the session, the name of the transaction or of the slot, the path of the file."""
    application: str = ""
    """The name that the application of the session has given, or the plugin of the slot."""
    held: str = ""
    """The oldest transaction that it may see: another one means that it has gone on."""
    age: float | None = None
    """For how many seconds it has been held; None: this role may not see that, or nobody knows."""
    size: int = 0
    """The bytes of the log that it keeps."""


@final
@attrs.frozen(kw_only=True)
class StoreActivity:
    """How the commits of one instance to its store go: what its last heartbeat said.

    A commit is a transaction that wrote something, with all the acts that it took. The counts begin
    when the instance opens the store. Of a SQLite file that is served to several workers, all say
    the same: what the process that serves it does.
    """

    batch: int = 0
    """The number of the newest batch of changes that the instance knows; 0: the store has none."""
    commits: int
    """How many commits it has made."""
    late: int = 0
    """How often a commit of it came late, and was done again: another instance had committed first.
    One that came late twice counts twice."""
    longest_wait: float = 0.0
    """The longest wait of a transaction for the lock of the store, in seconds and with the way to
    the server, of the waits that ended in this minute and the one before; 0: none waited. On
    PostgreSQL, of those that took it before their acts were done."""
    image_at: float | None = None
    """The store's time at which the image, its copy of the store, was last known to be the newest.
    None: it has none, or each transaction makes sure."""
    image_age: float | None = None
    """The seconds from then until the heartbeat."""
    commits_a_second: float | None = None
    """How many commits it made a second between its last two heartbeats; None: it has sent one."""
    late_share: float | None = None
    """Which part of the commits that it tried between them came late, from 0 to 1."""


@final
@attrs.frozen
class InstanceInfo:
    """One instance that claims jobs from a store: a process, or a part of a process."""

    id: str
    """The id of its incarnation; it changes with each start and each lost lease."""
    host: str
    pid: int
    since: float
    """Unix time."""
    lease_until: float
    """When its lease ends, in the store's time; `math.inf` in a store with a lock, not leases."""
    names: tuple[str, ...]
    """The names of its handlers."""
    running: int
    """How many jobs it runs."""
    lanes: Mapping[str, int] = attrs.field(factory=dict)
    """How many of these by lane: of 1,000 of them, if there are more."""
    alive: bool = True
    """Whether it had its lease when the store gave this answer, by the store's time."""
    lease_ttl: float = math.inf
    """For how many seconds a heartbeat prolongs its lease; `math.inf` in a store with a lock."""
    silent: float = 0.0
    """Seconds since its last heartbeat, by the store's time; 0 in a store with a lock."""
    activity: StoreActivity | None = None
    """How its commits go; None: nobody says it, as in a store without heartbeats, or on Valkey."""


@final
@attrs.frozen
class SendResult:
    """The result of `DurableLanes.send`: true if a run has taken the message."""

    reason: Literal["no_active_run", "not_streaming", "stopped"] | None = None
    """Why it was refused; None if it was taken. ``"no_active_run"``: the session or job has no run.
    ``"not_streaming"``: the job has 1,000 messages already. ``"stopped"``: the run has ended, and
    had not taken it. The words are those of `trio_lanes.agents.SendRefused`."""

    def __bool__(self) -> bool:
        return self.reason is None


@final
@attrs.frozen
class CheckReport:
    """The result of a check of a store."""

    problems: tuple[str, ...]
    """One line for each problem; empty if the store is consistent."""
    repaired: int
    """How many problems were repaired."""
