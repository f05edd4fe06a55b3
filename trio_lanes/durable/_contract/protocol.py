"""The `Store` protocol: the calls that durable lanes make to a store.

A `Store` object is the connection of one instance to an engine. A store keeps jobs and decides
which of them an instance may claim. Each call is atomic: it has happened as a whole, or not at all.

A reply can be lost, so each call that changes something can be asked again:

* `Store.step` has a number, counted from 1 in each incarnation. The number of the last step gives
  the same answer again and does nothing more; a lower number does nothing. So a step that gets no
  answer is asked again, unchanged, until it gets one or the lease is over. Without this, the jobs
  that the step claimed would run nowhere, under an instance that does not know of them. One step
  is asked for at a time, unless the store takes them ahead: see `Store.steps_ahead`.
* Every other call that changes something has a ticket, a string that no other call has. The same
  ticket is the same act, for `REMEMBERED_FOR` seconds: it gives the same answer and does nothing
  more. A store in which no reply can be lost may forget the oldest tickets earlier.
* `StoreUnavailableError.unknown` says whether the call may have happened.
* No call lasts longer than `Store.patience`, except `Store.wait`, `Store.events`, `Store.sent`,
  `Store.receive`, `Store.served`, `Store.wake` and the calls that read every job.

If the calling process dies:

===========================  ==================================================================
the process dies             the engine has, and then
===========================  ==================================================================
before `Store.enqueue`       nothing; the caller had no answer
during `Store.enqueue`       the job or nothing; the caller submits again with the same key
after `Store.enqueue`        the job, waiting
after `Store.step` claimed   the job, running under a fence; its recovery counts a crash
after the handler's effect   the same: the effect is repeated (a key or a fence can prevent that)
during the finishing step    the job, finished, or running as before
after the finishing step     the end; the session's next job is claimed or waiting
===========================  ==================================================================
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

from ... import RateLimit
from .records import (
    CheckReport,
    DurableBlocker,
    DurableStatistics,
    DurableStatus,
    Ended,
    Finish,
    GroupLimit,
    InstanceInfo,
    LaneLimit,
    Opening,
    QueuedJob,
    Selection,
    Step,
    StoreRules,
    SubmittedJob,
)

REMEMBERED_FOR: Final = 300.0
"""Seconds for which a store remembers the ticket of an act, and its answer."""
STEP_BYTES: Final = 4 * 1024 * 1024
"""The most bytes of payloads and checkpoint data in the claims of one step."""

EVENTS_KEPT: Final = 1_000
"""How many events of a job a store keeps."""
MESSAGES_KEPT: Final = 1_000
"""How many messages a job can have."""
EVENT_BYTES: Final = 64 * 1024
"""The most bytes of JSON text of an event or a message."""
PAGE: Final = 1_000
"""The most jobs that one call lists."""
LISTED: Final = 100
"""The most locks, quotas and paused sessions in `Store.statistics`, events and messages of a job
in `Store.status`."""
REQUESTS_LISTED: Final = 10
"""The most requests for one lock or quota in `Store.statistics`: of each kind."""


class Store(Protocol):
    """The connection of one instance to an engine that keeps jobs.

    No call stays half done: if a caller is cancelled, the call ends first. Every call raises
    `StoreUnavailableError` for a fault that may pass, and another `StoreError` for a fault that
    will not. It has changed nothing then, unless ``unknown`` is True.
    """

    max_payload: int
    """The largest payload, result or checkpoint, in bytes of its JSON text."""
    patience: float
    """Seconds after which a call that got no answer raises `StoreUnavailableError`."""
    steps_ahead: bool = False
    """Whether a step may be asked while the one before has no answer yet. The store does it after
    that one, and only if that one gets its answer: else it raises `StoreUnavailableError`, and has
    done nothing. A store without this attribute is asked for one step at a time."""

    def open(self, opening: Opening) -> AbstractAsyncContextManager[None]:
        """Connect, and write the lanes that the store lacks. Closing forgets no job, ends no run.

        Raises:
          StoreLockedError: if this is a second worker of an engine that takes only one.
          StoreVersionError: if the engine holds data of a version that this version cannot read.
        """

    async def join(
        self, ticket: str, lost: Sequence[tuple[int, int]] = (), held: Collection[int] = ()
    ) -> None:
        """Become a new incarnation with a lease; give back the jobs of instances without a lease.

        The runs of the former incarnation of this `Store` object are given back too, and no crash
        is counted, since its process is well.

        Args:
          ticket: it is also the id of the new incarnation. With the ticket of an earlier call,
            this only prolongs the lease of that incarnation, unless it is over.
          lost: (id, fence) of runs that were cancelled with the lease of the former incarnation. If
            another instance has counted their crash already, it is taken back. A run that ended at
            the time of its cancellation may be in ``held`` as well.
          held: the fences of runs of the former incarnation that have ended and are not reported
            yet. They belong to the new incarnation, whose next step finishes them.
        """

    async def leave(self) -> None:
        """End this incarnation. Each job that it still runs is given back and counts a crash."""

    async def bury(self, host: str, pid: int) -> None:
        """End the incarnations of a process that has ended, as `leave` does. It can be repeated."""

    async def beat(self) -> bool:
        """Prolong the lease, then give back the jobs of instances whose lease has expired.

        Return False if the lease of this instance is over, and its incarnation with it.
        """

    @property
    def leased(self) -> bool:
        """Whether the store has leases; else `beat` need not be called."""

    def wake(self) -> AsyncIterator[None]:
        """Yield whenever the worker should take a step: a hint, possibly superfluous or late."""

    # ---- jobs

    async def enqueue(self, batch: Sequence[SubmittedJob], ticket: str) -> list[int]:
        """Accept all jobs, in this order, or none. Return their ids.

        A job whose key is known is not accepted again: its id is that of the job with the key.

        Raises:
          UnknownLaneError, LaneFullError, KeyConflictError: for the first job that is refused.
          ValueError: if its cost names a unit, other than requests, that no rate of its lane and of
            its group counts.
        """

    async def step(self, number: int, finished: Sequence[Finish], room: int) -> Step:
        """Finish runs, then claim up to ``room`` jobs, in one atomic call.

        The claims have at most ``STEP_BYTES`` of payloads and checkpoint data, or are a single job.

        Args:
          number: counted from 1 in each incarnation. The number of the last step gives the claims
            and the stale fences of that step again, and does nothing more. A lower number does
            nothing and gives an empty `Step`: its answer has been used already.
        """

    async def checkpoint(self, id: int, fence: int, data: str, ticket: str) -> bool:
        """Keep ``data`` for the next attempt; False if the fence is no longer the run's."""

    async def take(
        self, id: int, fence: int, taken: Mapping[int, str], data: str, ticket: str
    ) -> bool | None:
        """Keep ``data`` for the next attempt, and end jobs of the run's session; all or nothing.

        Args:
          taken: the outcome, as JSON text, of each job that ends, by its id.

        Return True if it is done; False if one of the jobs neither waits nor is parked in the
        session; None if the fence is no longer the run's.
        """

    async def lend_slot(self, id: int, fence: int, ticket: str) -> bool:
        """Free the run's slot; False if the fence is no longer the run's."""

    async def regain_slot(self, id: int, fence: int, ticket: str) -> bool | None:
        """Take the slot back: False if no slot is free; None if the fence is not the run's.

        A run that got False goes ahead of every claim; the caller tries again after each step.
        """

    async def emit(self, id: int, fence: int, event: str, ticket: str) -> int | None:
        """Keep an event of a run (JSON text), for tasks that read the events of its job.

        Return its number: a job's events are counted from 1, over all attempts. None: the fence is
        no longer the run's. The last ``EVENTS_KEPT`` events are kept, as long as the job.
        """

    async def events(self, id: int, after: int) -> Sequence[tuple[int, str]] | None:
        """Wait for events with numbers above ``after``; return the first of them, at most 100.

        Empty: the job has ended or is dead, and there are no more. None: the job is unknown. It can
        be cancelled.
        """

    async def send(
        self, session: str | None, id: int | None, message: str, key: str | None, ticket: str
    ) -> tuple[int, int] | str:
        """Keep a message (JSON text) for the run of a job, or for the job that runs in a session.

        Return the job and the message's number; a message with the same key is the same message.
        Else return why not: ``"no_active_run"``, or ``"not_streaming"`` if the job has
        ``MESSAGES_KEPT`` messages already.
        """

    async def sent(self, id: int, number: int) -> bool:
        """Wait until a run has taken a message: True; or until none can take it any more: False.

        That is when the run that it was sent to has ended. It can be cancelled.
        """

    async def receive(self, id: int, fence: int, after: int) -> tuple[int, str] | None:
        """Wait for the next message of a job with a number above ``after``, and take it.

        Messages that an earlier run of the job has taken are taken again; messages that it has not
        taken are gone. None: the fence is no longer the run's. It can be cancelled, and asked again
        with the same ``after``, which gives the same message.
        """

    # ---- locks and quotas

    async def acquire(
        self, key: str, shared: bool, ticket: str, job: int | None = None
    ) -> tuple[int, float | None] | None:
        """Ask for a lock. Return the number of the request, and its fence, or None if it waits.

        Requests have a lock in the order in which they came; those that are shared have it
        together. The fence is greater than every earlier one of the lock. A request ends with
        `release`, or with the incarnation of this instance. None: the incarnation has ended.

        Args:
          job: the job whose run asks, for `blocked_by` and `statistics`.
        """

    async def spend(
        self,
        quota: str,
        limits: Sequence[RateLimit],
        costs: Mapping[str, int],
        ticket: str,
        job: int | None = None,
    ) -> tuple[int, float | None] | None:
        """Take costs, by unit, from a quota. Return the number of the request, and the time.

        That is the store's time at which they were taken; None if the request waits. They are
        taken when all limits admit them, in the order of the requests. The number is 0 if they were
        taken at once: there is no request then. None: the incarnation has ended.

        Args:
          limits: the same of all instances. What they remember is kept under the quota's name.
          job: as with `acquire`.
        """

    async def served(self, request: int) -> float | None:
        """Wait until a request is served; return the fence of the lock, or when costs were taken.

        None: the request has ended. It can be cancelled, and asked again.
        """

    async def release(self, request: int, used: bool, ticket: str) -> None:
        """End a request, whether it waits or was served.

        Args:
          used: False gives back what was taken from the quota.
        """

    async def settle(
        self,
        quota: str,
        limits: Sequence[RateLimit],
        at: float,
        change: Mapping[str, int],
        ticket: str,
    ) -> None:
        """Change the costs that were taken at a time: less than 0 gives back, more takes now."""

    async def reset_quota(self, quota: str, ticket: str) -> bool:
        """Forget what was spent from a quota; the first request that waits is served again.

        Return False if the store knows no such quota.
        """

    # ---- logs

    async def write_log(self, log: str, record: str, ticket: str) -> int | None:
        """Add a record (JSON text) to a log, which needs not exist; return its number, from 1 up.

        None: the incarnation of this instance has ended, and nothing was added.
        """

    async def read_log(self, log: str, after: int) -> list[tuple[int, str, str]]:
        """Return the first records of a log with numbers above ``after``, in order.

        Each is its number, the incarnation that added it, and its text. They are at most ``PAGE``,
        and have at most ``STEP_BYTES`` of text, or are a single record.
        """

    async def drop_log(self, log: str, ticket: str) -> bool:
        """Forget a log with all its records; False if there is none."""

    async def wait(self, id: int) -> Ended | None:
        """Wait until the job has ended or is dead; None if it is unknown. Cancellable."""

    # ---- control

    async def cancel(self, id: int, outcome: str, ticket: str, running: bool = True) -> bool:
        """End a job that does not run; record the cancellation of a job that runs.

        Return False if the job had ended; with ``running=False`` also if it runs.
        """

    async def put_first(self, id: int, ticket: str) -> bool:
        """Put a waiting job before the other waiting jobs of its session.

        Jobs that were put first keep the order in which they were. Return False if the job does not
        wait, or has no session.
        """

    async def abort(self, session: str, outcome: str, ticket: str) -> bool:
        """Record the cancellation of the job that runs in a session; jobs that wait are left.

        Return False if none runs.
        """

    async def clear(self, lane: str | None, session: str | None, outcome: str, ticket: str) -> int:
        """End the waiting and parked jobs of a lane or a session. Return how many they were.

        The name of a template means all its lanes, here and in `pause`, `resume`.
        """

    async def pause(
        self, lane: str | None, session: str | None, seconds: float, ticket: str
    ) -> None:
        """Claim no job of a lane or session for some seconds; `math.inf`: until `resume`.

        It can prolong a pause, never shorten it. A lane of a template is paused while the template
        is, whatever its own pause.
        """

    async def resume(self, lane: str | None, session: str | None, ticket: str) -> None:
        """End a pause; with the name of a template, also the pauses of its lanes."""

    async def configure(
        self,
        lanes: Mapping[str, LaneLimit | int | float | None],
        groups: Mapping[str, GroupLimit] | None,
        rules: Mapping[str, Any],
        ticket: str,
    ) -> None:
        """Set lanes: a number sets the concurrency alone, None removes the lane. All or nothing.

        Args:
          groups: if given, they replace all groups.
          rules: the fields of `StoreRules` to change, by name.

        Raises:
          ValueError: for the removal of a lane or template of whose lanes jobs have not ended,
            unless a template matches them, or that is in a group; for a lane in two groups.
        """

    async def requeue(self, of: Selection, ticket: str) -> int:
        """Queue dead and failed jobs again, with attempts and crashes at 0. Return how many.

        The oldest come first, in portions of at most 500, each in one atomic call. A job that dies
        again meanwhile is not queued twice.
        """

    async def purge(self, of: Selection, ticket: str) -> int:
        """Forget dead and failed jobs, in portions of at most 500. Return how many."""

    # ---- inspection

    async def lanes(self) -> Mapping[str, LaneLimit]:
        """Return the limits of lanes and templates, by name."""

    async def groups(self) -> Mapping[str, GroupLimit]:
        """Return the groups and their limits."""

    async def rules(self) -> StoreRules:
        """Return the rules that hold for all instances."""

    async def queue(self, session: str, limit: int) -> list[QueuedJob]:
        """Return the oldest waiting, parked and running jobs of a session, in order of their ids.

        They are at most ``PAGE``, and have at most ``STEP_BYTES`` of payloads, or are a single job.
        """

    async def status(self, id: int, texts: bool = False) -> DurableStatus | None:
        """Return the state of a job, with what it carries if ``texts``; None if it is unknown."""

    async def running(self, session: str) -> DurableStatus | None:
        """Return the job that runs in a session; None if none runs."""

    async def blocked_by(self, id: int) -> tuple[DurableBlocker, ...] | None:
        """Return why a job does not go on; None if it is unknown.

        The answer is empty if the job has ended, or runs and has its slot, and waits for no lock
        and no quota; or if the next step that has room for it claims it. Reads only. A store reads
        no more than the head of the session, the fronts of the lane's ready lists, the limits and
        runs of the lanes of its group, and the requests of the instance that runs it.
        """

    async def jobs(self, of: Selection, after: int, limit: int) -> list[DurableStatus]:
        """Return the first ``limit`` jobs with ids above ``after``, in order of their ids.

        Args:
          limit: at most ``PAGE``; fewer jobs mean that there are no more.
        """

    async def statistics(self) -> DurableStatistics:
        """Return the numbers of jobs and sessions, by lane and in all; and who has and who waits
        for locks and quotas, with the levels of these; and the paused sessions."""

    async def instances(self) -> list[InstanceInfo]:
        """Return the instances that claim from this store."""

    async def check(self, repair: bool) -> CheckReport:
        """Compare all jobs with the rules, and repair what differs if ``repair`` is True."""
