"""Locks and quotas over instances, as the tasks of one instance use them.

A request is kept by the lease of this instance: when the lease is lost, the store serves others. So
the body of a lock is cancelled by the same deadline that cancels the runs. A request whose release
got no answer is released later, by a task of the lanes: else it would hold up others for as long as
this instance lives. One that may have been made, since its answer was lost, is withdrawn there.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from decimal import Decimal
from functools import partial
from socket import gethostname
from typing import Final, Protocol, final, runtime_checkable

import attrs
import trio

from ... import JobCancelledError, RateLimit
from ..._config import check as _check
from .._contract.act import new_ticket
from .._contract.amounts import MAX_DECIMAL, Costs, difference, fits, scale_of, to_data
from .._contract.errors import BudgetSpentError, LockLostError, StoreUnavailableError
from .._contract.protocol import Store
from .._contract.records import left_of
from .._options.names import checked_name
from .._options.submission import checked_amount
from .._runs.run import asked, current_job
from .._runs.worker import AGAIN_AFTER, Worker
from ..acts.locks import Acquire, Grant, LevelsOf, Release, Settle, Spend, Withdraw

logger: Final = logging.getLogger("trio_lanes.durable")

_A_LOCK: Final[tuple[None, tuple[RateLimit, ...], Costs]] = None, (), {}
"""What a `Withdraw` says of a request for a lock."""


def _may_be_made(error: BaseException) -> bool:
    """Whether a request may have been made, or may be made yet, though its caller got an error."""
    if isinstance(error, StoreUnavailableError):
        return error.unknown
    # a run that asks again and again ends so when it has lost its lease
    return isinstance(error, trio.Cancelled | JobCancelledError)


@final
@attrs.frozen
class HeldLock:
    """A lock that a task holds; see `DurableLanes.lock`."""

    key: str
    """The key of the lock."""
    shared: bool
    """Whether other tasks may hold it at the same time."""
    fence: int
    """A number that is greater than that of every earlier holder."""


@runtime_checkable
class WatchesQuotas(Protocol):
    """An instrument, given to `open_durable_lanes`, that hears that a quota is nearly used up."""

    def quota_low(self, quota: str, unit: str) -> None:
        """80 % of the ``unit`` of a ``quota`` are used, by what was spent on this instance.

        Once in a window over all instances, for limits of calendars and sliding windows of an hour
        or longer. One that raises is logged, and called no more.
        """


@final
class LockRequests:
    """The requests of one instance for locks and quotas."""

    def __init__(self, store: Store, worker: Worker, instruments: Iterable[object]) -> None:
        self._store: Final = store
        self._worker: Final = worker
        # Returns the task that asks; may be replaced: it may run outside of Trio
        self.asking_task: Callable[[], object] = trio.lowlevel.current_task
        self._held: Final[set[tuple[object, str]]] = set()  # {(task, key)}, or waited for
        # {number of a request that is not released: the scope of the body of its lock}
        self._made: Final[dict[int, trio.CancelScope | None]] = {}
        self._last = 0  # each request that is made later has a greater number
        # {ticket of an act whose answer is not known: `_last` when it was asked}
        self._asked: Final[dict[str, int]] = {}
        self._later: Final[deque[Callable[[], Awaitable[object]]]] = deque()
        self._more = trio.Event()
        self._watchers = [one for one in instruments if isinstance(one, WatchesQuotas)]

    def lock(self, key: str, shared: bool) -> AbstractAsyncContextManager[HeldLock]:
        """Hold a lock for the time of the block.

        Raises:
          RuntimeError: if this task holds the lock, or waits for it: it would wait for itself.
        """
        task = self.asking_task()
        self._check_not_held(task, key)
        return self._locked(task, key, shared)

    def _check_not_held(self, task: object, key: str) -> None:
        if (task, key) in self._held:
            raise RuntimeError(f"this task holds the lock {key!r} already")

    @asynccontextmanager
    async def _locked(self, task: object, key: str, shared: bool) -> AsyncIterator[HeldLock]:
        self._check_not_held(task, key)
        mine = task, key
        self._held.add(mine)
        try:
            job = self._job()
            request, fence, _ = await self._served(Acquire(key, shared, job))
            scope = self._made[request] = trio.CancelScope()
            self._worker.leased.add(scope)
            try:
                with scope:
                    yield HeldLock(key, shared, int(fence))
            finally:
                self._worker.leased.discard(scope)
                await self._release(request, used=True)
            if scope.cancelled_caught:
                raise LockLostError(
                    f"the lock {key!r} was lost: this instance has lost its lease, its lanes are"
                    " closed, or the store has come back with older data"
                )
        finally:
            self._held.discard(mine)

    async def spend(self, quota: Quota, costs: Costs, wait: bool) -> float:
        """Wait until costs are taken from a quota; return the store's time of that."""
        job, limits = self._job(), quota._limits
        request, at, low = await self._served(
            Spend(quota.name, limits, costs, job, quota._template, wait)
        )
        if request:
            low = await self._release(request, used=True)
        quota._warn(low)
        return at

    def _job(self) -> int | None:
        """Return the job whose run asks, if it is of this store."""
        run = current_job()
        return run.id if run is not None and run._store is self._store else None

    async def _served(self, act: Acquire | Spend) -> tuple[int, float, Sequence[str]]:
        """Make a request until it is served; return its number, and the fence or the time.

        And the units of which a budget is low by it.
        """
        while True:
            term, ticket, unknown = self._worker.term, new_ticket(), False
            self._asked[ticket] = self._last
            try:
                made = await asked(self._store, partial(self._store.do, act, ticket))
            except BaseException as error:
                unknown = _may_be_made(error)
                if unknown:
                    of = (act.quota, act.limits, act.costs) if isinstance(act, Spend) else _A_LOCK
                    self._do_later(partial(self._withdraw, Withdraw(ticket, *of), new_ticket()))
                raise
            finally:
                if not unknown:  # pragma: no branch - then an error goes on
                    del self._asked[ticket]
            if made is None:
                await trio.sleep(AGAIN_AFTER)  # until this instance has a lease again
                continue
            request, served, *low = made
            if request:
                self._made[request], self._last = None, max(self._last, request)
            used = False
            try:
                if served is None:
                    look = partial(self._store.served, request)
                    served = await asked(self._store, look, waits=True)
                # what was taken at once is no request, and the end of the lease changes nothing
                used = not request or term == self._worker.term
            finally:
                if request and not used:
                    await self._release(request, used=False)
            if served is not None and used:
                return request, served, low[0] if low else ()

    async def _release(self, request: int, *, used: bool) -> Sequence[str]:
        release = partial(self._end, Release(request, used), new_ticket())
        with trio.CancelScope(shield=True):
            try:
                return await release()
            except StoreUnavailableError:
                self._do_later(release)
        return ()

    async def _end(self, release: Release, ticket: str) -> Sequence[str]:
        low = await self._store.do(release, ticket)
        self._made.pop(release.request, None)
        return low

    @property
    def known(self) -> tuple[Sequence[int], int]:
        """The numbers of the requests that the store should have, and up to where all are known."""
        return [*self._made], min(self._asked.values(), default=self._last)

    def compared(self, requests: Iterable[int], last: int) -> None:
        """Cancel the bodies of locks of which the store knows nothing: it has older data.

        A request that waits for its turn hears from the store that it has ended, and is made again.

        Args:
          last: the last number that the store has given out.
        """
        self._last = max(self._last, last)
        for number in requests:
            scope = self._made.get(number)
            if scope is not None:
                scope.cancel()

    def announce_low(self, quota: str, unit: str) -> None:
        """Log that 80 % are used, and call the hook; one that raises is called no more."""
        logger.warning("80 %% of the %s of the quota %r are used", unit, quota)
        for one in [*self._watchers]:
            try:
                one.quota_low(quota, unit)
            except Exception:
                self._watchers.remove(one)
                logger.exception("%r raised; its hook quota_low is removed", one)

    def _do_later(self, act: Callable[[], Awaitable[object]]) -> None:
        self._later.append(act)
        self._more.set()

    async def _withdraw(self, withdraw: Withdraw, ticket: str) -> None:
        await self._store.do(withdraw, ticket)
        del self._asked[withdraw.ticket]

    async def end_later(self) -> None:
        """Do what got no answer, for as long as the lanes are open: releases, and withdrawals.

        Neither is ever refused.
        """
        while True:
            while self._later:
                try:
                    await self._later[0]()
                except StoreUnavailableError:
                    await trio.sleep(AGAIN_AFTER)
                else:
                    self._later.popleft()
            self._more = trio.Event()
            await self._more.wait()


@final
class Quota:
    """A quota over all instances; see `DurableLanes.quota`."""

    def __init__(
        self,
        name: str,
        template: str | None,
        limits: Sequence[RateLimit],
        store: Store,
        requests: LockRequests | None,
    ) -> None:
        self.name: Final = name
        self._template: Final = template
        self._limits: Final = limits
        self._units: Final = {limit.unit for limit in limits}
        self._store: Final = store
        self._requests: Final = requests

    def __repr__(self) -> str:
        return f"<trio_lanes.durable.Quota {self.name!r} of {', '.join(sorted(self._units))}>"

    async def spend(self, *, wait: bool = True, **amounts: int | Decimal) -> Spent:
        """Take amounts from the quota, by unit, as soon as all its limits admit them.

        Callers of all instances are served in the order in which they came. An amount above a limit
        waits until nothing of the limit is in use; above a limit of a day or a month it is refused.
        A quota of requests takes one, unless ``requests`` is given. A checkpoint; if it is
        cancelled, nothing is taken.

        Args:
          wait: False takes the amounts at once or not at all; it overtakes no other caller.

        Raises:
          TypeError, ValueError: for a bad amount, or a unit that the quota does not count.
          BudgetSpentError: without ``wait``, if a limit does not admit them now, or others wait;
            if they are above a limit of a calendar, and what was granted does not admit them.
          StoreUnavailableError: if the store is not available; with ``unknown``, the amounts may
            have been taken. They are given back when the store is there again, while these lanes
            are open.
        """
        _check.boolean("wait", wait)
        costs = self._checked(amounts)
        if "requests" in self._units:
            costs.setdefault("requests", 1)
        for limit in self._limits:
            unit = limit.unit
            if limit.algorithm == "calendar" and costs.get(unit, 0) > limit.limit:
                left, wait = await self.left(), False  # only what was granted can admit it
                if left[unit] < costs[unit]:
                    raise BudgetSpentError(self.name, left, None)
        assert self._requests is not None
        return Spent(self, costs, await self._requests.spend(self, costs, wait))

    async def left(self) -> Mapping[str, int | Decimal]:
        """Return what could be taken at once now, by unit: the least that a limit leaves.

        Below 0, more was used than a limit admits: by a settlement. A checkpoint.

        Raises:
          StoreUnavailableError: if the store is not available.
        """
        return left_of(await self._store.look(LevelsOf(self.name, self._limits)))

    async def grant(self, *, by: str | None = None, **amounts: int | Decimal) -> None:
        """Let more be spent than the limits of the units admit, for all instances, once.

        It is for a person. It counts until a limit's window has passed, from now. The log
        ``grants`` of the store (`DurableLanes.log`) has a record of it. A checkpoint.

        Args:
          by: who grants it, for the record; by default the process and its host.

        Raises:
          TypeError, ValueError: for a bad amount, or a unit that the quota does not count.
          StoreUnavailableError: if the store is not available.
        """
        costs = self._checked(amounts)
        by = checked_name("by", f"{os.getpid()} on {gethostname()}" if by is None else by)
        granted, at = to_data(costs), round(time.time(), 3)
        record = {"quota": self.name, "granted": granted, "by": by, "at": at}
        await self._store.do(
            Grant(self.name, self._limits, costs, json.dumps(record)), new_ticket()
        )

    def _warn(self, low: Sequence[str]) -> None:
        assert self._requests is not None  # by which it was spent
        for unit in low:
            self._requests.announce_low(self.name, unit)

    def _checked(self, amounts: Costs) -> dict[str, int | Decimal]:
        for unit, amount in amounts.items():
            if unit not in self._units:
                counted = ", ".join(map(repr, sorted(self._units)))
                raise ValueError(
                    f"quota {self.name!r} does not count {unit!r} (counted: {counted})"
                )
            checked_amount(unit, amount)
            for limit in self._limits:
                if limit.unit == unit and not fits(amount, scale_of(limit.limit)):
                    raise ValueError(
                        f"{unit} must be a whole number where the limit is an int, and at most"
                        f" {MAX_DECIMAL:,} where it is a Decimal, got {amount!r}"
                    )
        return dict(amounts)


@final
class Spent:
    """What a caller took from a quota.

    Attributes:
      costs: the amounts, by unit.
    """

    def __init__(self, quota: Quota, costs: Costs, at: float) -> None:
        self.costs: Final = costs
        self._quota: Final = quota
        self._at: Final = at
        self._settled = False

    def __repr__(self) -> str:
        spent = ", ".join(f"{amount} {unit}" for unit, amount in self.costs.items())
        return f"<trio_lanes.durable.Spent {spent} of {self._quota.name!r}>"

    async def settle(self, **used: int | Decimal) -> None:
        """Say which amounts were used in the end: the rest is given back, or is taken as well.

        What is given back can be spent at once, by the caller that is next. Amounts above those
        that were taken are taken now, without a wait. Units that are not named stay. A checkpoint.

        Raises:
          TypeError, ValueError: for a bad amount, or a unit that the quota does not count.
          RuntimeError: if it was settled before.
          StoreUnavailableError: if the store is not available; it may be tried again then.
        """
        quota = self._quota
        change = {
            unit: difference(amount, self.costs.get(unit, 0))
            for unit, amount in quota._checked(used).items()
        }
        if self._settled:
            raise RuntimeError(f"{self!r} was settled before")
        self._settled = True
        try:
            settle = Settle(quota.name, quota._limits, self._at, change, quota._template)
            quota._warn(await quota._store.do(settle, new_ticket()))
        except StoreUnavailableError as error:
            self._settled = error.unknown
            raise
