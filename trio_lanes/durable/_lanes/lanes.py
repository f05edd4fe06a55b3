"""`DurableLanes`: submits, controls and inspects the jobs of a store."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from decimal import Decimal
from functools import partial
from operator import attrgetter
from typing import Any, Final, Literal, TypeVar, final

import attrs
import trio

from ... import (
    Cause,
    Coalesce,
    LaneConfig,
    LaneGroup,
    Lanes,
    Problems,
    RateLimit,
    resolve_global_lane,
)
from ..._config import check as _check
from ..._config.names import SESSION_PREFIX, is_template, session_key, template_of
from ..._config.reasons import STANDSTILL_AFTER
from .._contract.act import Act, new_ticket
from .._contract.amounts import Costs
from .._contract.errors import ResultGoneError, UnknownHandlerError
from .._contract.protocol import JOBS_LISTED, Store
from .._contract.records import (
    CheckReport,
    DurableBlocker,
    DurableStatistics,
    DurableStatus,
    GroupLimit,
    InstanceInfo,
    LaneLimit,
    QueuedJob,
    Selection,
    SendResult,
    StoreRules,
    SubmittedJob,
)
from .._contract.state import DurableState
from .._contract.weak_values import WeakValues
from .._options.json_text import encode, small
from .._options.limits import (
    as_config,
    checked_hold,
    group_limit,
    lane_configs,
    lane_limit,
)
from .._options.names import checked_name
from .._options.retry import RetryPolicy
from .._options.schedule import DurableSchedule, checked_schedule
from .._options.submission import (
    Submission,
    check_coalesce,
    checked_cost,
    checked_expires,
    checked_key_after,
    checked_priority,
)
from .._runs.job import DurableJob
from .._runs.run import SendsHeaders, asked
from .._runs.worker import Handler
from ..acts import inspection, orders
from ..acts.jobs import Enqueue
from ..acts.locks import LevelsOf, ResetQuota
from ..acts.runs import Send
from ..acts.schedules import DropSchedule
from .causes import root_causes
from .ending import HasEnd
from .failures import FailureGroups, failures
from .health import Memory, health
from .locks import HeldLock, LockRequests, Quota
from .log import DurableLog
from .schedules import listed, put, set_paused

logger: Final = logging.getLogger("trio_lanes.durable")

T = TypeVar("T")

MAX_INTEGER: Final = 2**63 - 1
"""The greatest integer that every store can keep."""


_fields: Final = attrgetter(*(field.name for field in attrs.fields(Submission)))


@final
class DurableLanes(HasEnd):
    """Lanes whose jobs are kept in a store. Only `open_durable_lanes` makes one.

    An argument ``name`` is the name of a global lane, or of a session if it begins with
    ``session:``. For `clear`, `pause`, `pause_for` and `resume` the name of a template means all
    its lanes. Every async method is a checkpoint. A method that calls the store raises
    `StoreUnavailableError`, having changed nothing, if the store cannot do the call now; when it is
    cancelled, it ends the call first.
    """

    def __init__(
        self,
        store: Store,
        handlers: Mapping[str, Handler],
        grace: float,
        instruments: Iterable[object],
    ) -> None:
        super().__init__(None)
        self._senders: Final = [one for one in instruments if isinstance(one, SendsHeaders)]
        self._store: Final = store
        self._handlers: Final = handlers
        self._grace: Final = grace
        self._jobs: Final[WeakValues[DurableJob]] = WeakValues()
        self._requests: LockRequests | None = None
        self._memory: Final = Memory()
        self._quotas: Mapping[str, Sequence[RateLimit]] = {}
        self._nursery: trio.Nursery  # from the opening on
        self.local: Lanes | None = None
        """The core lanes on which this instance runs its jobs; None with ``worker=False``."""

    def __repr__(self) -> str:
        running = 0 if self._worker is None else len(self._worker.running)
        closed = ", closed" if self._closing.is_set() else ""
        return f"<trio_lanes.durable.DurableLanes at {id(self):#x}, {running} running{closed}>"

    def _failed(self, id: int, data: str, error: BaseException) -> None:
        """Keep a handler's exception for the handles of its job in this process."""
        job = self._jobs.get(id)
        if job is not None:
            job._cause = data, error

    def _beside(self, task: Callable[[DurableLanes], Awaitable[None]]) -> None:
        """Have a task until these lanes are left; a RuntimeError if they were. In asyncio, too."""
        # not in the context of a job that may be the caller
        Context().run(self._nursery.start_soon, task, self)

    def _do(self, act: Act[T]) -> Awaitable[T]:
        return self._store.do(act, new_ticket())

    # ---- submitting

    async def submit(
        self,
        name: str,
        payload: object = None,
        *,
        session: str | None = None,
        lane: str = "main",
        priority: int = 0,
        key: str | None = None,
        key_after: Literal["result_ttl", "failure"] = "result_ttl",
        coalesce: Coalesce | None = None,
        delay: float = 0.0,
        run_at: float | None = None,
        expires: float | None = None,
        timeout: float | None = math.inf,
        retry: RetryPolicy | None = None,
        cost: int | Decimal | Costs = 1,
        owner: str | None = None,
    ) -> DurableJob:
        """Submit a job. When this returns, the store has accepted it.

        Args:
          name: the name of the handler.
          payload: the JSON value that the handler is called with.
          session: jobs of a session run one at a time, in the order of acceptance.
          lane: the lane whose slot the job takes.
          priority: -1, 0 or 1; chooses between sessions, never inside one.
          key: a unique key. While the store remembers a job with this key, submitting the key
            again returns the handle of that job.
          key_after: what it does if that job has failed, is dead, was cancelled or has expired.
            ``"result_ttl"``: the same. ``"failure"``: this submission begins anew, and the key is
            the new job's; the former job keeps its end, and a dead one is kept, without the key.
          coalesce: while a job of its key waits, whichever instance submitted it, this submission
            gives the handle of that job. ``keep="latest"`` replaces payload, priority, timeout,
            retry, cost and expires; the job keeps its place and its owner. ``debounce`` is a delay,
            which each further submission begins anew until the job has joined its session. A job
            that was claimed once waits no more, also between attempts. Excludes ``key``, ``delay``
            and ``run_at``; its key must be a string.
          delay: seconds after which the job joins the tail of its session.
          run_at: the Unix time at which it does, in place of ``delay``. If the
            clock is set later, a SQLite store follows it; see the page about durability.
          expires: seconds from the acceptance, by the store's clock. If no run of the job has
            begun by then, it never begins: its state is EXPIRED, and the next of its session goes
            on. A worker notices it in time; without one, the next that comes does. None: never.
          timeout: seconds that an attempt may run; None: no timeout.
          retry: the job's own policy, except ``retry_on``, which is always the worker's.
          cost: what each start of the job, a retry included, takes from the rates of its lane and
            group. A whole number is requests; a mapping is by unit, and costs one request unless it
            names requests. An amount above the limit waits until nothing of the limit is in use.
          owner: for whom it takes turns in a fair lane; its session by default.

        Raises:
          TypeError, ValueError: for a bad argument; also for a ``retry`` with ``retry_on``, and for
            a ``cost`` in a unit that no rate of the lane and its group counts.
          PayloadError: if the payload is not JSON, or larger than the store's ``max_payload``.
          UnknownHandlerError: if this instance has handlers, but none of that name.
          UnknownLaneError, LaneFullError: if the lane does not exist, or has no room.
          KeyConflictError: if the key's job has another name, session, lane or payload; or the
            job that ``coalesce`` finds another name, session or lane.
          LanesClosedError: if these lanes are closed; a running handler may still submit.
        """
        checked = self._checked(
            name,
            payload,
            session,
            lane,
            priority,
            key,
            key_after,
            coalesce,
            delay,
            run_at,
            expires,
            timeout,
            retry,
            cost,
            owner,
        )
        (id,) = await self._enqueue([checked])
        return self.job(id)

    async def submit_many(self, submissions: Iterable[Submission]) -> list[DurableJob]:
        """Submit jobs: the store accepts all, in this order, or none. Raise as `submit` does."""
        batch = [self._checked(*_fields(one)) for one in submissions]
        return list(map(self.job, await self._enqueue(batch)))

    async def _enqueue(self, batch: list[SubmittedJob]) -> tuple[int, ...]:
        if self._worker is not None and self._worker.request_step_for(batch):
            await trio.lowlevel.checkpoint()
        if self._closing.is_set():
            self._refuse_from_outside()
        return await self._do(Enqueue(batch))

    def _checked(
        self,
        name: str,
        payload: object,
        session: str | None,
        lane: str,
        priority: int,
        key: str | None,
        key_after: Literal["result_ttl", "failure"],
        coalesce: Coalesce | None,
        delay: float,
        run_at: float | None,
        expires: float | None,
        timeout: float | None,
        retry: RetryPolicy | None,
        cost: int | Decimal | Costs,
        owner: str | None,
    ) -> SubmittedJob:
        """Check the values of a submission; return the record for the store."""
        checked_name("name", name)
        if self._handlers and name not in self._handlers:
            raise UnknownHandlerError(name, self._handlers)
        checked_priority(priority)
        delay = _check.finite_seconds("delay", delay)
        if coalesce is not None:
            check_coalesce(coalesce, key=key, delay=delay, run_at=run_at)
            delay = coalesce.debounce
        if run_at is not None:
            if delay:
                raise ValueError(
                    f"delay and run_at exclude each other, got {delay!r} and {run_at!r}"
                )
            delay = max(0.0, _check.finite_seconds("run_at", run_at) - time.time())
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise TypeError(f"retry must be a RetryPolicy or None, not {retry!r}")
        return SubmittedJob(
            name=name,
            payload=encode("the payload", payload, self._store.max_payload),
            session=None if session is None else _session(session),
            lane=checked_name("lane", resolve_global_lane(lane)),
            priority=priority,
            key=None if key is None else checked_name("key", key),
            delay=delay,
            run_at=run_at,
            timeout=_check.timeout("timeout", timeout),
            retry=None if retry is None else retry.to_json(),
            cost=checked_cost(cost),
            headers=self._headers() if self._senders else None,
            key_after="result_ttl"
            if key_after == "result_ttl"
            else checked_key_after(key_after, key),
            expires=None if expires is None else checked_expires(expires, delay),
            coalesce=coalesce,
            owner=None if owner is None else checked_name("owner", owner),
        )

    def _headers(self) -> str | None:
        headers: dict[str, str] = {}
        for sender in self._senders:
            headers |= sender.job_headers()
        return json.dumps(headers) if headers else None

    def job(self, id: int) -> DurableJob:
        """Return the handle of any job, also of another process. Not a checkpoint."""
        job = self._jobs.get(id)
        if job is None:
            job = DurableJob(self._store, _check.whole("id", id), self)
            self._jobs.put(id, job)
        return job

    # ---- control

    async def cancel(self, id: int, reason: str | None = None, *, running: bool = True) -> bool:
        """Ask a job to stop; return True if it had not ended and is not dead.

        A job that does not run has ended when this returns. If the job runs, the cancellation is
        recorded, so that the job is never claimed again; then its instance cancels the run. True
        does not say that the job ends as cancelled: a claimed job may begin in the next moment, and
        a run that returns or raises before its instance has heard of this ends by that.

        Args:
          running: False: a job that runs is not touched, and the result is False.
        """
        outcome = json.dumps({"reason": reason})
        _check.boolean("running", running)
        return await self._do(orders.Cancel(_check.whole("id", id), outcome, running))

    async def put_first(self, id: int) -> bool:
        """Put a job that waits before the other waiting jobs of its session.

        Several jobs that are put first keep the order in which they were. A job that runs, or holds
        the session closed between attempts, stays before it. Return False if the job does not wait,
        or has no session; nothing has changed then. A checkpoint.
        """
        return await self._do(orders.PutFirst(_check.whole("id", id)))

    async def promote(self, id: int) -> bool:
        """Make a job that is delayed, or between two attempts, due now.

        It joins the tail of its session, behind jobs that were due before; a job that kept its
        place between attempts has it again. Return False if the job is not parked; nothing has
        changed then. A checkpoint.
        """
        return await self._do(orders.Promote(_check.whole("id", id)))

    async def abort(self, session: str, reason: str | None = None) -> bool:
        """Cancel the job that runs in a session, on whichever instance; jobs that wait are left.

        The cancellation is recorded when this returns, as by `cancel`; the instance that runs the
        job cancels it at once. Return False if none runs. `clear` takes jobs that wait.
        """
        outcome = json.dumps({"reason": reason})
        return await self._do(orders.AbortRun(_session(session), outcome))

    async def clear(self, name: str, reason: str | None = None) -> int:
        """Cancel the jobs of a lane or session that wait, are delayed, or are between attempts.

        Return how many. Running jobs are not touched. A session that a dead job kept closed is open
        again.

        Raises:
          UnknownLaneError: if the lane does not exist.
        """
        outcome = json.dumps({"lane": name, "reason": reason})
        return await self._do(orders.Clear(*_target(name), outcome))

    async def pause(self, name: str) -> None:
        """Pause a lane or session on all instances, until `resume`. Running jobs go on.

        ``schedule:NAME`` pauses a schedule: its due times are skipped; LookupError: there is none.
        """
        if (schedule := _schedule(name)) is not None:
            await set_paused(self._store, schedule, True)
        else:
            await self._do(orders.Pause(*_target(name), math.inf))

    async def pause_for(self, name: str, seconds: float) -> None:
        """Pause a lane or session for some seconds. It can prolong a pause, never shorten it."""
        seconds = _check.finite_seconds("seconds", seconds)
        await self._do(orders.Pause(*_target(name), seconds))

    async def resume(self, name: str) -> None:
        """End the pause of a lane, a session or, from its next due time on, a schedule."""
        if (schedule := _schedule(name)) is not None:
            await set_paused(self._store, schedule, False)
        else:
            await self._do(orders.Resume(*_target(name)))

    # ---- schedules

    async def schedule(
        self,
        name: str,
        handler: str,
        payload: object = None,
        *,
        cron: str | None = None,
        every: float | None = None,
        timezone: str = "UTC",
        overlap: Literal["skip", "queue", "cancel"] = "skip",
        catch_up: int = 1,
        jitter: float = 0.0,
        **options: Any,
    ) -> None:
        """Submit a job at each due time, on whichever instance, under the key ``NAME@TIME``.

        The store keeps the schedule. With the name of another it replaces that, so call it at each
        start of a program: the next due time stays if ``cron``, ``every`` and ``timezone`` do.

        Args:
          cron: five fields, as Debian's cron reads them; the extra ``cron`` brings what it needs.
          every: seconds, in place of ``cron``: due times are their multiples since 1970.
          timezone: of ``cron``, such as ``"Europe/Berlin"``.
          overlap: what a due time does if the job before waits or runs yet: ``"skip"``: nothing;
            ``"queue"``: it submits its job; ``"cancel"``: it also cancels the job before.
          catch_up: how many of the due times are made up at which no instance was there for a
            minute: the last ones, and only one unless ``overlap="queue"``. The rest are counted.
          jitter: seconds; each job is delayed by a part of them that follows from its key.
          options: as for `submit`; no keys, and no delays.

        Raises:
          TypeError, ValueError: for a bad argument, such as a cron line that never comes.
          ImportError: if the extra ``cron`` is needed, and is not here.
          UnknownHandlerError, UnknownLaneError, PayloadError: as `submit` does.
        """
        for option in ("key", "key_after", "coalesce", "delay", "run_at"):
            if option in options:
                raise TypeError(f"{option} is not an option of schedules, got {options[option]!r}")
        job = self._checked(*_fields(Submission(name=handler, payload=payload, **options)))
        given = DurableSchedule(
            name=name,
            job=attrs.evolve(job, headers=None),
            cron=cron,
            every=every,
            timezone=timezone,
            overlap=overlap,
            catch_up=catch_up,
            jitter=jitter,
        )
        await put(self._store, checked_schedule(given))

    async def schedules(self, limit: int | None = None) -> list[DurableSchedule]:
        """Return all schedules, or the oldest, by name. The store is read in pages of 100."""
        return await listed(self._store, MAX_INTEGER if limit is None else _number("limit", limit))

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule; its jobs stay. False: there is none of that name."""
        return await self._do(DropSchedule(checked_name("name", name)))

    async def configure(
        self,
        lanes: Mapping[str, int | float | LaneConfig | LaneLimit | None],
        groups: Mapping[str, LaneGroup] | None = None,
        *,
        result_ttl: float | None = None,
        max_crashes: int | float | None = None,
        on_dead: Literal["continue", "hold"] | None = None,
    ) -> None:
        """Set limits and rules for all instances: all of them, or none if an argument is bad.

        A number changes only the lane's concurrency, a `LaneConfig` all of its limits; a
        `LaneLimit`, as `limits` gives it, all of its limits and its pause. A new name is a new
        lane, None removes the lane; a template is named as a lane is. ``groups``, if given,
        replaces all groups. Running jobs are not touched, and rates remember past starts. The rules
        hold for jobs that end or die from now on; None leaves a rule as it is.

        Raises:
          TypeError, ValueError: for a bad limit, or the removal of a lane that has jobs, unless a
            template matches it, or that is in a group.
        """
        limits: dict[str, LaneLimit | int | float | None] = {}
        present = {name: as_config(value) for name, value in lanes.items() if value is not None}
        configs = lane_configs(present)
        for given, value in lanes.items():
            name = resolve_global_lane(given)
            if value is None:
                limits[checked_name("lane", name)] = None
            else:
                limit = lane_limit(name, configs[name])
                if isinstance(value, LaneLimit):
                    limit = attrs.evolve(limit, paused_until=value.paused_until)
                whole = isinstance(value, LaneConfig | LaneLimit)
                limits[name] = limit if whole else limit.concurrency
        shared = None
        if groups is not None:
            shared = {name: group_limit(name, group) for name, group in groups.items()}
        rules: dict[str, object] = {}
        if result_ttl is not None:
            rules["result_ttl"] = _check.finite_seconds("result_ttl", result_ttl)
        if max_crashes is not None:
            rules["max_crashes"] = _check.positive_count("max_crashes", max_crashes)
        if on_dead is not None:
            rules["hold"] = checked_hold(on_dead)
        await self._do(orders.Configure(limits, shared, rules))

    async def limits(self) -> Mapping[str, LaneLimit]:
        """Return the limits of the lanes and templates that are configured, by name."""
        return await self._store.look(inspection.AllLanes())

    async def groups(self) -> Mapping[str, GroupLimit]:
        """Return the groups and their limits, by name."""
        return await self._store.look(inspection.AllGroups())

    async def rules(self) -> StoreRules:
        """Return the rules of the store, which hold for all instances."""
        return await self._store.look(inspection.AllRules())

    async def send(
        self, session_or_id: str | int, message: object, *, key: str | None = None
    ) -> SendResult:
        """Send a message to the run of a job, or of a session, on whichever instance it is.

        It returns when the run has taken the message by `DurableRun.messages`, or can take it no
        more: also if its process has died, when its lease is over. A message that was taken belongs
        to the job: if it runs again, it takes the message again. If this is cancelled, the message
        may be taken or not.

        Args:
          session_or_id: the key of a session, or the number of a job.
          message: JSON; its text has at most 64 KiB.
          key: a unique key: messages to one job with the same key are one message.

        Raises:
          TypeError, ValueError: for a bad argument.
          PayloadError: if the message is not JSON, or too large.
        """
        if isinstance(session_or_id, str):
            session, id = _session(session_or_id), None
        else:
            session, id = None, _number("session_or_id", session_or_id)
        text = small("a message", message)
        if key is not None:
            checked_name("key", key)
        sent = await self._do(Send(session, id, text, key))
        if isinstance(sent, str):
            return SendResult("no_active_run" if sent == "no_active_run" else "not_streaming")
        return SendResult() if await self._store.sent(*sent) else SendResult("stopped")

    # ---- locks and quotas

    def lock(self, key: str, *, shared: bool = False) -> AbstractAsyncContextManager[HeldLock]:
        """Hold a lock over all instances for the time of a block.

        ::

            async with lanes.lock("index") as held:
                await rebuild(fence=held.fence)

        Tasks get a lock in the order in which they asked for it; those with ``shared=True`` that
        follow one another hold it together. A session needs none: its jobs run one at a time.

        The lock is kept by the lease of this instance. If the lease is lost, or the lanes are
        closed, or the server has come back with older data that lack the lock, the body is
        cancelled, and the block raises `LockLostError`; after that another task may have the lock.
        A body that cannot be cancelled then should give ``held.fence`` to what it writes to.
        Entering is a checkpoint; cancelled there, the task gives its place back.
        Leaving ends the lock, cancelled or not, within the patience of the store.

        Raises:
          TypeError, ValueError: for a bad argument, at the call.
          RuntimeError: if this task holds the lock already, or without a worker.
          StoreUnavailableError: on entering, if the store is not available.
        """
        checked_name("key", key)
        _check.boolean("shared", shared)
        return self._working().lock(key, shared)

    def quota(self, name: str) -> Quota:
        """Return a quota over all instances, which `open_durable_lanes` got as ``quotas``.

        Of a template, ``{"tenant:*": RateLimit(90)}``, each name that matches is a quota of its
        own, from its first use until nothing of it is in use; the longest template applies.

        ::

            spent = await lanes.quota("openai").spend(requests=1, tokens=900)
            answer = await ask(question)
            await spent.settle(tokens=answer.tokens)

        Raises:
          TypeError, ValueError: for a bad name.
          LookupError: if there is no quota of that name, nor a template that it matches.
          RuntimeError: without a worker.
        """
        requests = self._working()
        checked_name("name", name)
        template = None if name in self._quotas else template_of(name, self._quotas)
        limits = self._quotas.get(template or name)
        if limits is None or is_template(name):
            known = ", ".join(map(repr, self._quotas)) or "none"
            raise LookupError(f"there is no quota {name!r}; there are: {known}")
        return Quota(name, template, limits, self._store, requests)

    async def grant(self, quota: str, *, by: str | None = None, **amounts: int | Decimal) -> None:
        """Let more be spent from a quota than its limits admit: `Quota.grant`, for all instances.

        The limits are those that were applied last. It needs no worker.

        Raises:
          LookupError: if the store knows no quota of that name, nor a template that it matches.
        """
        levels = await self._store.look(LevelsOf(checked_name("quota", quota)))
        if not levels:
            raise LookupError(f"nothing was ever spent from {quota!r}, nor from its template")
        limits = [level.limit for level in levels]
        await Quota(quota, None, limits, self._store, None).grant(by=by, **amounts)

    async def reset_quota(self, name: str) -> bool:
        """Forget what was spent from a quota, for all instances; who waits is served anew.

        For the case that a settlement was wrong, or the provider has raised the limit. A later
        settlement of what was spent before gives nothing back. With ``worker=False``, too. Return
        False if the store knows no quota of that name: nothing was ever spent from it.

        Raises:
          TypeError, ValueError: for a bad name.
        """
        return await self._do(ResetQuota(checked_name("name", name)))

    def log(self, name: str) -> DurableLog:
        """Return an append-only log of the store: for records that outlive jobs and instances.

        Not a checkpoint. The log begins with its first record, and is kept until it is deleted. Its
        writers need the lease of a worker; any instance reads it.

        Raises:
          TypeError, ValueError: for a bad name: a string of at most 1,000 characters.
        """
        return DurableLog(checked_name("name", name), self._store, self._worker)

    def _working(self) -> LockRequests:
        if self._requests is None:
            raise RuntimeError(
                "locks and quotas are kept by the lease of an instance, and one with worker=False "
                "has none: open the lanes with worker=True; the handlers may be empty"
            )
        return self._requests

    # ---- dead letters

    async def dead(
        self,
        name: str | None = None,
        *,
        handler: str | None = None,
        error: str | None = None,
        failed: bool = False,
        after: int = 0,
        limit: int = 100,
    ) -> list[DurableStatus]:
        """Return the oldest dead jobs: of the store, or of a lane or session.

        Args:
          handler: only jobs for the handler of this name.
          error: only jobs whose error has this type, as ``DurableJobError.type`` shows it:
            ``"ValueError"``, ``"httpx.ConnectError"``, or ``"crash"``.
          failed: also failed jobs, which the store keeps for ``result_ttl``.
          after: only jobs with ids greater than this.

        Raises:
          TypeError, ValueError: for a bad argument.
        """
        of = _selection(name, handler=handler, error=error, states=_letters(failed))
        return await self._list(of, after, limit)

    async def failures(
        self,
        name: str | None = None,
        *,
        handler: str | None = None,
        since: float | None = None,
        limit: int = 1000,
    ) -> FailureGroups:
        """Return what has gone wrong: dead and failed jobs by handler, lane and error.

        The 20 largest groups, each with the traceback of its last job. Failed jobs are among them
        for ``result_ttl``. If there are more than ``limit``, the last that were submitted are
        searched for about five seconds, and ``between`` says which were looked at.

        Args:
          name, handler, since: as for `jobs`.
          limit: how many jobs are in the groups at most.

        Raises:
          TypeError, ValueError: for a bad argument.
        """
        return await failures(self, name, handler, since, limit)

    async def requeue(
        self,
        id: int | None = None,
        *,
        name: str | None = None,
        handler: str | None = None,
        error: str | None = None,
        failed: bool = False,
    ) -> int:
        """Queue a dead or failed job again; or all dead jobs of the store, or a part of them.

        Attempts and crashes are counted from 0. A job joins the tail of its session, or has its
        old place if it kept its session closed; the oldest job comes first. Checkpoint data are
        kept: they may say which effects must not be repeated. Return how many jobs were queued: 0
        if the job is neither dead nor failed. Many jobs are queued in portions of 500, and it is
        not cancelled between them.

        Args:
          name: without an ``id``, only jobs of this lane or session.
          handler, error: without an ``id``, only these jobs; see `dead`.
          failed: without an ``id``, failed jobs as well.

        Raises:
          TypeError, ValueError: for a bad argument.
        """
        of = _one_or_many(id, name, handler, error, failed)
        return await self._do(orders.Requeue(of))

    async def purge(
        self,
        id: int | None = None,
        *,
        name: str | None = None,
        handler: str | None = None,
        error: str | None = None,
        failed: bool = False,
    ) -> int:
        """Forget a dead or failed job; or all dead jobs of the store, or a part of them.

        Their keys are free again, and sessions that they kept closed are open. Return how many.
        `requeue` has the same arguments, portions and errors.
        """
        of = _one_or_many(id, name, handler, error, failed)
        return await self._do(orders.Purge(of))

    # ---- inspection

    async def statistics(self, *, quota: str | None = None) -> DurableStatistics:
        """Return the numbers of jobs and sessions in the store, by lane and in all.

        And the paused sessions, the levels of quotas, and which jobs have locks or wait for locks
        and quotas. The quotas are the first 100 in use, by name, or the one of the name ``quota``.
        """
        if quota is not None:
            checked_name("quota", quota)
        return await self._store.look(inspection.AllStatistics(quota))

    async def jobs(
        self,
        name: str | None = None,
        *,
        states: Collection[DurableState] = tuple(DurableState),
        handler: str | None = None,
        error: str | None = None,
        since: float | None = None,
        until: float | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[DurableStatus]:
        """Return up to ``limit`` jobs in order of their ids: of the store, or of a lane or session.

        For more, call it again with the last id as ``after``. Ended jobs are among them for
        ``result_ttl``. The store is read in pages of 1,000 jobs, and may change between two.

        Args:
          handler: only jobs for the handler of this name.
          error: only dead and failed jobs whose error has this type; see `dead`.
          since: only jobs that were submitted at this Unix time or later.
          until: only jobs that were submitted before this Unix time.

        Raises:
          TypeError, ValueError: for a bad argument.
        """
        of = _selection(
            name,
            handler=handler,
            error=error,
            states=frozenset(map(DurableState, states)),
            since=since,
            until=until,
        )
        return await self._list(of, after, limit)

    async def _list(self, of: Selection, after: int, limit: int) -> list[DurableStatus]:
        after, limit = _number("after", after), _number("limit", limit)
        if limit < 0:
            limit = MAX_INTEGER
        found: list[DurableStatus] = []
        while True:
            most = min(JOBS_LISTED, limit - len(found))
            page = await self._store.look(inspection.JobsOf(of, after, most))
            found += page
            if len(page) < most or len(found) == limit:
                return found
            after = page[-1].id

    async def running(self, session: str) -> DurableStatus | None:
        """Return the status of the job that runs in a session, on any instance; else None."""
        return await self._store.look(inspection.RunningIn(_session(session)))

    async def keyed(self, key: str) -> DurableStatus | None:
        """Return the state of the job that has a key, which may have ended, or None.

        A submission with that key now would be that job, unless it gives its key up (`submit`).

        Raises:
          TypeError, ValueError: for a key that no job can have.
        """
        return await self._store.look(inspection.Keyed(checked_name("key", key)))

    async def blocked_by(self, id: int) -> tuple[DurableBlocker, ...]:
        """Return why a job does not go on, as the next step would find it.

        Empty: the job has ended, or runs and waits for none of these things, or the next step that
        has room for it starts it. A job that waits in its session names the head of the session,
        and a run that waits for a lock names the job that has it; ask again for that job. Whether
        an instance has room is not among the reasons: the store does not know it.

        Raises:
          ResultGoneError: if the store does not know the job.
        """
        found = await self._store.look(inspection.BlockersOf(_check.whole("id", id)))
        if found is None:
            raise ResultGoneError(id)
        runs = () if self._worker is None else self._worker.running
        waits = (wait.job for run in runs if run.id == id for wait in run._waiting_for)
        return (*found, *(DurableBlocker("job", job.lane, job.id) for job in waits))

    async def root_causes(self, id: int) -> tuple[Cause, ...]:
        """Return the roots of a job's wait: the reasons of `blocked_by`, each followed to its end.

        ``str(cause)`` is a line for people, and ``cause.advice`` is what would help there.
        ``cause.kind`` is that of a `DurableBlocker`; or ``"body"``: a job that runs and waits for
        no other, as far as the store knows; ``"overdue"``: it does past its timeout; ``"gone"``:
        its instance is gone; ``"instance"``: no instance lives; ``"capacity"``: each that lives
        runs others; ``"deadlock"``; or ``"unknown"``, where the search was cut: at most 50 jobs are
        looked at. Empty if the job does not wait, or the next step starts it.

        Raises:
          ResultGoneError: if the store does not know the job.
        """
        return await root_causes(self, _check.whole("id", id))

    async def health(self, *, standstill_after: float = STANDSTILL_AFTER) -> Problems:
        """Return what is wrong, each with what to do; empty: nothing that was looked at is wrong.

        It looks at the store, at the longest wait of each of the 100 lanes with most of them, for
        five seconds, at jobs without a handler, at jobs that have died within the last hour or keep
        their sessions closed, at instances, schedules, quotas and snapshots of the database, and
        at the bodies of this instance as `Lanes.health <trio_lanes.Lanes.health>` does. The bodies
        of others are looked at if they hold up such a wait. A wait for what is at work, or is over
        by itself, is no problem. Its ``left_out`` says what was not looked at.

        A store that cannot be reached is a problem, of kind ``"store"``; it is not raised.

        Args:
          standstill_after: seconds for which no run of a lane has begun or ended, though jobs wait
            for its slots, after which that is a problem; `math.inf`: never.
        """
        return await health(self, _check.positive_seconds("standstill_after", standstill_after))

    async def queue(self, session: str, limit: int = 100) -> list[QueuedJob]:
        """Return the oldest waiting, parked and running jobs of a session, with their payloads.

        They are in order of their ids. They are fewer than ``limit`` if their payloads are more
        than 4 MiB together.
        """
        return await self._store.look(
            inspection.QueueOf(_session(session), max(0, _number("limit", limit)))
        )

    async def instances(self) -> list[InstanceInfo]:
        """Return the instances that claim jobs from the store.

        Each has its host and process, since when it lives, until when it has its lease and how
        long it is silent, its handlers, how many jobs it runs; and as ``activity`` how its commits
        go, as its last heartbeat said: how many a second, which part came late, the longest wait
        for the lock of the store, the newest batch that it knows, and the age of its image. With
        ``worker=False`` an instance is not among them.

        A checkpoint. It changes nothing, and can be cancelled.

        Raises:
          StoreUnavailableError: if the store does not answer now.
        """
        return await asked(self._store, partial(self._store.look, inspection.AllInstances()))

    async def check(self, repair: bool = False) -> CheckReport:
        """Check the store for contradictions, and repair them if ``repair`` is True.

        It reads every job, so it takes a while in a large store.
        """
        _check.boolean("repair", repair)
        report = await self._store.look(inspection.Check())
        if repair and report.problems:  # mostly there is nothing to repair
            report = attrs.evolve(report, repaired=await self._do(inspection.Repair()))
        return report


def _target(name: str | None) -> tuple[str | None, str | None]:
    """Return (lane, session) of a name; one of them, or both for None, is None."""
    if name is None:
        return None, None
    if name.strip().startswith(SESSION_PREFIX):
        return None, _session(name)
    return checked_name("lane", resolve_global_lane(name)), None


def _schedule(name: str) -> str | None:
    """Return NAME of ``schedule:NAME``; None: it is the name of a lane or a session."""
    kind, _, schedule = name.strip().partition(":")
    return checked_name("name", schedule) if kind == "schedule" else None


def _selection(
    name: str | None,
    *,
    handler: str | None,
    error: str | None,
    states: frozenset[DurableState],
    since: float | None = None,
    until: float | None = None,
) -> Selection:
    """Check the arguments that choose jobs; return the record for the store."""
    lane, session = _target(name)
    return Selection(
        states=states,
        lane=lane,
        session=session,
        name=None if handler is None else checked_name("handler", handler),
        error=None if error is None else checked_name("error", error),
        since=None if since is None else _check.finite_seconds("since", since),
        until=None if until is None else _check.finite_seconds("until", until),
    )


def _one_or_many(
    id: int | None, name: str | None, handler: str | None, error: str | None, failed: bool
) -> Selection:
    of = _selection(name, handler=handler, error=error, states=_letters(failed))
    if id is None:
        return of
    if of != Selection(states=of.states):
        raise ValueError("give the id of a job, or a name, handler or error, not both")
    return Selection(id=_number("id", id), states=_letters(True))


def _letters(failed: bool) -> frozenset[DurableState]:
    _check.boolean("failed", failed)
    return frozenset({DurableState.DEAD, DurableState.FAILED} if failed else {DurableState.DEAD})


def _session(key: str) -> str:
    return checked_name("session", session_key(key))


def _number(field: str, value: Any) -> int:
    """Return a whole number, reduced to the range of stores."""
    return max(-1, min(_check.whole(field, value), MAX_INTEGER))
