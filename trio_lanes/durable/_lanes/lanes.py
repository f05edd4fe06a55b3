"""`DurableLanes`: what users hold, and ask."""

from __future__ import annotations

import json
import logging
import math
import time
import weakref
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal, final

from ... import _check
from ..._config import LaneConfig, LaneGroup, lane_config
from ..._lanes import Lanes
from ..._names import SESSION_PREFIX, resolve_global_lane, session_key
from .._contract.errors import UnknownHandlerError
from .._contract.protocol import Store
from .._contract.records import (
    CheckReport,
    DurableStatistics,
    DurableStatus,
    InstanceInfo,
    LaneLimit,
    StoreRules,
    Submission,
)
from .._contract.state import DurableState
from .._options.json_text import encode
from .._options.limits import (
    checked_crashes,
    checked_hold,
    group_limit,
    lane_configs,
    lane_limit,
)
from .._options.retry import RetryPolicy
from .._runs.worker import Handler
from .ending import Endable
from .job import DurableJob

logger: Final = logging.getLogger("trio_lanes.durable")

DEFAULT_RETRY: Final = RetryPolicy()
GREATEST: Final = 2**63 - 1
"""No store counts further."""
LONGEST_NAME: Final = 1_000
"""Characters of a name, session or key: each listing and many a log line repeats it."""


@final
class DurableLanes(Endable):
    """Lanes whose jobs are kept in a store. Only `open_durable_lanes` makes one.

    Wherever a ``name`` is taken it is that of a global lane, or of a session if it begins with
    ``session:``. Every async method is a checkpoint; those that ask the store raise
    `StoreUnavailableError`, having changed nothing, when it cannot do that now, and end first what
    they have begun when they are cancelled.
    """

    def __init__(self, store: Store, handlers: Mapping[str, Handler], grace: float) -> None:
        super().__init__(None)
        self._store: Final = store
        self._handlers: Final = handlers
        self._grace: Final = grace
        self._jobs: weakref.WeakValueDictionary[int, DurableJob] = weakref.WeakValueDictionary()
        self.local: Lanes | None = None
        """The core's lanes, on which this instance runs what it claims; None if it claims none."""

    def __repr__(self) -> str:
        running = 0 if self._worker is None else len(self._worker.running)
        closed = ", closed" if self._closing.is_set() else ""
        return f"<trio_lanes.durable.DurableLanes at {id(self):#x}, {running} running{closed}>"

    def _failed(self, id: int, told: str, error: BaseException) -> None:
        """Keep what a handler raised for those who hold the job here."""
        job = self._jobs.get(id)
        if job is not None:
            job._cause = told, error

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
        delay: float = 0.0,
        run_at: float | None = None,
        timeout: float = math.inf,
        retry: RetryPolicy | None = None,
    ) -> DurableJob:
        """Have a job accepted; it is when this returns.

        Args:
          name: of the handler that is called.
          payload: JSON, which it is called with.
          session: jobs of a session run one after the other, in the order of acceptance.
          lane: whose slot it takes.
          priority: -1, 0 or 1; chooses between sessions, never inside one.
          key: the same key is the same job, for as long as that is remembered: submitting it
            again gives the job that is there.
          delay: seconds after which it joins its session's tail.
          run_at: the same, as a Unix time.
          timeout: seconds that an attempt may run.
          retry: this job's own policy; which exceptions are retried is always the worker's.

        Raises:
          TypeError, ValueError: for a bad argument; also for a ``retry`` with ``retry_on``.
          PayloadError: if the payload is no JSON, or larger than the store's ``max_payload``.
          UnknownHandlerError: if this instance has handlers, but none of that name.
          UnknownLaneError, LaneFullError: if the lane is not there, or has no room.
          KeyConflictError: if the key's job has another name, session, lane or payload.
          LanesClosedError: if these lanes are closed; a running handler may still submit.
        """
        one = self._checked(
            name, payload, session, lane, priority, key, delay, run_at, timeout, retry
        )
        (job,) = await self._enqueue([one])
        return job

    async def submit_many(self, submissions: Iterable[Submission]) -> list[DurableJob]:
        """Have all of them accepted, in this order, or none. Raises what `submit` raises."""
        return await self._enqueue(
            [
                self._checked(
                    one.name,
                    one.payload,
                    one.session,
                    one.lane,
                    one.priority,
                    one.key,
                    one.delay,
                    one.run_at,
                    one.timeout,
                    one.retry,
                )
                for one in submissions
            ]
        )

    async def _enqueue(self, batch: list[Submission]) -> list[DurableJob]:
        self._check_open()
        return [self.job(id) for id in await self._store.enqueue(batch)]

    def _checked(
        self,
        name: str,
        payload: object,
        session: str | None,
        lane: str,
        priority: int,
        key: str | None,
        delay: float,
        run_at: float | None,
        timeout: float,
        retry: object,
    ) -> Submission:
        """What a store is given of that."""
        name = text("name", name)
        if self._handlers and name not in self._handlers:
            raise UnknownHandlerError(name, self._handlers)
        if _check.whole("priority", priority) not in (-1, 0, 1):
            raise ValueError(f"priority must be -1, 0 or 1, got {priority!r}")
        delay = _check.finite_seconds("delay", delay)
        if run_at is not None:
            if delay:
                raise ValueError(
                    f"delay and run_at exclude each other, got {delay!r} and {run_at!r}"
                )
            delay = max(0.0, _check.finite_seconds("run_at", run_at) - time.time())
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise TypeError(f"retry must be a RetryPolicy or None, not {retry!r}")
        return Submission(
            name=name,
            payload=encode("the payload", payload, self._store.max_payload),
            session=None if session is None else text("session", session_key(session)),
            lane=text("lane", resolve_global_lane(lane)),
            priority=priority,
            key=None if key is None else text("key", key),
            delay=delay,
            timeout=_check.seconds("timeout", timeout),
            retry=None if retry is None else retry.to_json(),
        )

    def job(self, id: int) -> DurableJob:
        """The handle of that job, whoever submitted it. Not a checkpoint; asks nothing."""
        job = self._jobs.get(id)
        if job is None:
            job = self._jobs[id] = DurableJob(self._store, _check.whole("id", id))
        return job

    # ---- acting

    async def cancel(self, id: int, reason: str | None = None) -> bool:
        """Cancel that job; True if it had not ended and is not dead.

        A job that does not run has ended when this returns. For one that runs it is recorded, so
        that it is never claimed again; then its instance is told.
        """
        return await self._store.cancel(_check.whole("id", id), json.dumps({"reason": reason}))

    async def clear(self, name: str, reason: str | None = None) -> int:
        """Cancel what waits, is delayed or between attempts there; returns how many.

        Running jobs are not touched. A session that a dead job held closed is open again.

        Raises:
          UnknownLaneError: if there is no such lane.
        """
        outcome = json.dumps({"lane": name, "reason": reason})
        return await self._store.clear(*_target(name), outcome)

    async def pause(self, name: str) -> None:
        """Claim nothing there until `resume`, on any instance. Running jobs are not touched."""
        await self._store.pause(*_target(name), math.inf)

    async def pause_for(self, name: str, seconds: float) -> None:
        """Claim nothing there for that long; only ever prolongs a pause."""
        await self._store.pause(*_target(name), _check.finite_seconds("seconds", seconds))

    async def resume(self, name: str) -> None:
        """Undo `pause` and `pause_for`."""
        await self._store.resume(*_target(name))

    async def configure(
        self,
        lanes: Mapping[str, int | float | LaneConfig | None],
        groups: Mapping[str, LaneGroup] | None = None,
        *,
        result_ttl: float | None = None,
        max_crashes: int | float | None = None,
        on_dead: Literal["continue", "hold"] | None = None,
    ) -> None:
        """Set limits, for all instances; all of it, or nothing if anything of it is bad.

        A number changes only that lane's concurrency, a `LaneConfig` all of its limits, a new name
        is a new lane, None removes one; ``groups``, when given, replaces all groups. Running jobs
        are not touched, and rates go on with their past. The rules of the store hold for jobs that
        end or die from then on; None leaves a rule as it is.

        Raises:
          TypeError, ValueError: for a bad limit, or the removal of a lane that has jobs or is in a
            group.
        """
        limits: dict[str, LaneLimit | int | float | None] = {}
        present = {name: value for name, value in lanes.items() if value is not None}
        lane_configs(present)  # raises for what is bad in any of them
        for given, value in lanes.items():
            name = resolve_global_lane(given)
            if value is None:
                limits[name] = None
            else:
                limit = lane_limit(name, lane_config(name, value))
                limits[name] = limit if isinstance(value, LaneConfig) else limit.concurrency
        shared = None
        if groups is not None:
            shared = {name: group_limit(name, group) for name, group in groups.items()}
        rules: dict[str, object] = {}
        if result_ttl is not None:
            rules["result_ttl"] = _check.finite_seconds("result_ttl", result_ttl)
        if max_crashes is not None:
            rules["max_crashes"] = checked_crashes(max_crashes)
        if on_dead is not None:
            rules["hold"] = checked_hold(on_dead)
        await self._store.configure(limits, shared, rules)

    async def rules(self) -> StoreRules:
        """The rules of the store that are no limits: the same for all instances."""
        return await self._store.rules()

    # ---- dead letters

    async def dead(
        self,
        name: str | None = None,
        *,
        limit: int = 100,
        after: int = 0,
        failed: bool = False,
    ) -> list[DurableStatus]:
        """The oldest dead jobs: of all, or of that lane or session.

        Args:
          after: only jobs with ids beyond this one.
          failed: also jobs that failed for good; they are kept until ``result_ttl`` is over.
        """
        lane, session = _target(name)
        limit, after = _number("limit", limit), _number("after", after)
        _check.boolean("failed", failed)
        return await self._store.dead(lane, session, limit, after=after, failed=failed)

    async def requeue(self, id: int) -> bool:
        """Take a dead or failed job back into line; False if it is neither.

        Its attempts and crashes are counted from 0. It stands at its session's tail, or in its old
        place if it held its session closed. Its checkpoint data is kept: it may say which effects
        are not to be repeated.
        """
        return await self._store.requeue(_check.whole("id", id))

    async def purge(
        self, id: int | None = None, *, name: str | None = None, failed: bool = False
    ) -> int:
        """Forget that dead or failed job; or all dead ones, or those of a lane or session.

        Their keys are free again, and sessions that they held closed are open. Returns how many.

        Args:
          failed: without an ``id``, forget failed jobs as well.
        """
        if id is not None:
            _check.whole("id", id)
        _check.boolean("failed", failed)
        return await self._store.purge(id, *_target(name), failed=failed)

    # ---- looking

    async def statistics(self) -> DurableStatistics:
        """How things stand in the store."""
        return await self._store.statistics()

    async def jobs(
        self,
        name: str | None = None,
        *,
        states: Collection[DurableState] = tuple(DurableState),
        after: int = 0,
        limit: int = 100,
    ) -> list[DurableStatus]:
        """Up to ``limit`` jobs in order of their ids: of all, or of that lane or session.

        To see more, call it again with the last id as ``after``. Ended jobs are among them until
        ``result_ttl`` is over.
        """
        lane, session = _target(name)
        after, limit = _number("after", after), _number("limit", limit)
        wanted = frozenset(map(DurableState, states))
        return await self._store.jobs(wanted, lane, session, after, limit)

    async def instances(self) -> list[InstanceInfo]:
        """Who claims from the store."""
        return await self._store.instances()

    async def check(self, repair: bool = False) -> CheckReport:
        """Look for what contradicts itself in the store; and repair it, if asked.

        It looks at every job, so it takes a while where there are many.
        """
        return await self._store.check(_check.boolean("repair", repair))


def _target(name: str | None) -> tuple[str | None, str | None]:
    """(lane, session), one of which is None."""
    if name is None:
        return None, None
    if name.strip().startswith(SESSION_PREFIX):
        return None, text("session", session_key(name))
    return resolve_global_lane(name), None


def _number(field: str, value: Any) -> int:
    """A whole number, as far as stores count."""
    return max(-1, min(_check.whole(field, value), GREATEST))


def text(field: str, value: Any) -> str:
    """A string that can be written down."""
    if not isinstance(value, str):
        raise TypeError(f"{field} must be a string, not {value!r}")
    try:
        if not value.isascii():
            value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{field} must be text that UTF-8 can write, got {value!r}") from None
    if not value:
        raise ValueError(f"{field} must not be empty, got {value!r}")
    if len(value) > LONGEST_NAME:
        most = f"{LONGEST_NAME:,} characters"
        raise ValueError(f"{field} must have at most {most}, got {len(value):,}")
    return value
