"""`open_durable_lanes`: checks its arguments, and opens store, lease, worker and core lanes."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import MappingProxyType
from typing import Final, Literal, TypeVar, cast

import attrs
import trio

from ... import LaneConfig, LaneGroup, LaneInstrument, RateLimit, open_lanes
from ..._config import check as _check
from ..._config.names import DEFAULT_LANES, TEMPLATE_MARK
from ..._config.protected import needs_trio
from .._contract.errors import StoreUnavailableError
from .._contract.protocol import Store
from .._contract.records import GroupLimit, LaneLimit, Opening, StoreRules
from .._options.limits import (
    checked_hold,
    checked_rates,
    group_limit,
    lane_configs,
    lane_limit,
)
from .._options.names import checked_name
from .._options.retry import RetryPolicy
from .._runs.lease import Lease, check_lease
from .._runs.worker import Handler, Worker
from .._wire.substitute import substitute
from ..acts.inspection import AllGroups, AllLanes, AllRules
from .lanes import DurableLanes
from .locks import LockRequests

logger: Final = logging.getLogger("trio_lanes.durable")

DEFAULT_RETRY: Final = RetryPolicy()
NO_GROUPS: Final[Mapping[str, LaneGroup]] = MappingProxyType({})
NO_QUOTAS: Final[Mapping[str, RateLimit]] = MappingProxyType({})


def open_durable_lanes(
    store: Store,
    handlers: Mapping[str, Handler],
    lanes: Mapping[str, int | float | LaneConfig] = DEFAULT_LANES,
    *,
    groups: Mapping[str, LaneGroup] = NO_GROUPS,
    capacity: int | float = 100,
    retry: RetryPolicy = DEFAULT_RETRY,
    max_crashes: int | float = 3,
    on_dead: Literal["continue", "hold"] = "continue",
    result_ttl: float = 3600.0,
    lease_ttl: float = 30.0,
    grace: float = 30.0,
    worker: bool = True,
    affinity: float = 0.0,
    quotas: Mapping[str, RateLimit | Sequence[RateLimit]] = NO_QUOTAS,
    instruments: Iterable[LaneInstrument] = (),
) -> AbstractAsyncContextManager[DurableLanes]:
    """Open lanes whose accepted jobs survive a crash, for the time of a block.

    ::

        async with open_durable_lanes(SqliteStore("jobs.db"), {"answer": answer}) as lanes:
            job = await lanes.submit("answer", {"text": "hello"}, session="alice", key="msg-42")
            print(await job.wait())

    Leaving the block drains: no more jobs are claimed, running jobs may end within ``grace``
    seconds, and the rest are cancelled and given back. Leaving the block with an exception, or by
    cancellation, cancels and gives back at once. Waiting jobs stay in the store. Entering and
    leaving are checkpoints. Exceptions leave as an `ExceptionGroup`, as from a nursery.

    Args:
      store: the store that keeps the jobs.
      handlers: by name, an async function that is called with a job's payload and returns JSON.
      lanes: limits over all instances, of lanes and of templates: ``{"tenant:*": 2}`` is the limit
        of each lane whose name begins so. A lane that the store lacks is written to it; else the
        store's limits win, and a difference is logged. `DurableLanes.configure` and ``trio-lanes
        limit`` change the limits in the store. With ``worker=False`` the limits are a proposal,
        so that jobs can be submitted before the first worker starts; its limits replace them.
        Of a `LaneConfig`, the store keeps ``concurrency``, ``max_waiting``, ``paused``, ``fair``,
        ``weights``, ``aging`` and ``rate``, to which each start is charged with the ``cost`` of its
        job; ``limiter`` is refused.
      groups: limits that lanes share, over all instances; only workers write them, as lanes.
      capacity: how many jobs this instance runs at once.
      retry: which failures are retried, and when, unless a job has a policy of its own.
      max_crashes: a job is dead when this many processes have died while they ran no other job. A
        job that one more crash could make dead runs beside fewer jobs, and at last alone. This
        argument and the next two are rules of the store: the first worker writes them; after that
        the store's rules win, and a difference is logged. `DurableLanes.configure` and
        ``trio-lanes rules`` change them.
      on_dead: whether a dead job's session goes on, or is closed until the job is requeued, purged
        or its session cleared.
      result_ttl: seconds for which the store remembers an ended job and its key.
      lease_ttl: seconds without a heartbeat after which an instance has lost its runs; at least
        1.25 times the ``patience`` of the store. Not used by a store that takes only one worker.
      worker: whether this instance runs jobs; else it only submits and inspects.
      affinity: seconds for which this instance leaves the next job of a session to the instance
        that ran the one before, if that is alive, has room and has the handler. Give all
        instances the same.
      quotas: by name, the limits of what all instances together may spend: see
        `DurableLanes.quota`. ``{"openai": [RateLimit(500), RateLimit(200_000, unit="tokens")]}``.
        A name that ends in ``*`` is a template: each name that matches it has these limits. Each
        instance applies its limits to the common past, so give all instances the same.
      instruments: instruments of the core lanes on which this instance runs its jobs. One that
        `SendsHeaders` may send something along with each job that is submitted here; one that
        `WatchesQuotas` hears when 80 % of a quota are used.

    Raises:
      TypeError, ValueError: for a bad argument, at the call.
      StoreError: on entering, if the store cannot be opened; `StoreLockedError`,
        `StoreVersionError` and `StoreUnavailableError` say why.
    """
    configs = lane_configs(lanes, groups)
    if not callable(getattr(store, "step", None)):
        raise TypeError(f"store must be a Store, such as SqliteStore(path), not {store!r}")
    if not isinstance(handlers, Mapping):
        raise TypeError(f"handlers must be a mapping of names to functions, not {handlers!r}")
    for name, handler in handlers.items():
        checked_name("a handler's name", name)
        if not callable(handler):
            raise TypeError(f"handler {name!r} must be an async function, not {handler!r}")
    if not isinstance(retry, RetryPolicy):
        raise TypeError(f"retry must be a RetryPolicy, not {retry!r}")
    _check.positive_count("capacity", capacity)
    if _check.finite_seconds("lease_ttl", lease_ttl) == 0:
        raise ValueError(f"lease_ttl must not be 0, got {lease_ttl!r}")
    opening = Opening(
        names=frozenset(handlers) if _check.boolean("worker", worker) else frozenset(),
        lanes={name: lane_limit(name, config) for name, config in configs.items()},
        groups={name: group_limit(name, group) for name, group in groups.items()},
        max_crashes=_check.positive_count("max_crashes", max_crashes),
        hold=checked_hold(on_dead),
        result_ttl=_check.finite_seconds("result_ttl", result_ttl),
        lease_ttl=lease_ttl,
        worker=worker,
        affinity=_check.finite_seconds("affinity", affinity),
    )
    _check.seconds("grace", grace)
    limits = {
        checked_name("a quota's name", name): _limits(name, of) for name, of in quotas.items()
    }
    store = substitute(store)
    if worker and store.leased:
        check_lease(lease_ttl, store.patience)
    instruments = tuple(instruments)
    durable = DurableLanes(store, handlers, grace, instruments)
    if not worker:
        return _asking(durable, opening)
    durable._worker = Worker(store, handlers, retry, capacity, durable._failed)
    durable._worker.submit = durable.submit
    durable._requests = LockRequests(store, durable._worker, instruments)
    durable._quotas = limits
    # the store alone decides which jobs run: the core's lanes have no limits of their own
    local = {
        name: attrs.evolve(
            config, concurrency=math.inf, max_waiting=math.inf, paused=False, rate=()
        )
        # the store may get lanes that this instance does not know
        for name, config in {TEMPLATE_MARK: LaneConfig(), **configs}.items()
    }
    return _working(durable, durable._worker, opening, local, instruments)


def _limits(name: str, limits: RateLimit | Sequence[RateLimit]) -> tuple[RateLimit, ...]:
    """Return the limits of a quota; raise an error for a bad value."""
    found = (limits,) if isinstance(limits, RateLimit) else tuple(limits)
    if not found or not all(isinstance(limit, RateLimit) for limit in found):
        raise TypeError(f"quota {name!r} must be a RateLimit, or some of them, not {limits!r}")
    return checked_rates(found)


@asynccontextmanager
async def _asking(durable: DurableLanes, opening: Opening) -> AsyncIterator[DurableLanes]:
    needs_trio("trio_lanes.durable.open_durable_lanes")
    async with durable._store.open(opening):
        async with trio.open_nursery() as nursery:
            durable._nursery = nursery
            nursery.start_soon(_hear, durable._store)
            yield durable
            durable.close("the block was left")
            nursery.cancel_scope.cancel()


async def _hear(store: Store) -> None:
    async for _ in store.wake():
        pass


@asynccontextmanager
async def _working(
    durable: DurableLanes,
    worker: Worker,
    opening: Opening,
    local: dict[str, LaneConfig],
    instruments: tuple[LaneInstrument, ...],
) -> AsyncIterator[DurableLanes]:
    needs_trio("trio_lanes.durable.open_durable_lanes")
    store = durable._store
    async with store.open(opening):
        await _log_differences(store, opening)
        assert durable._requests is not None
        lease = Lease(store, worker, durable._requests, opening.lease_ttl)
        await lease.join()
        try:
            async with trio.open_nursery() as nursery:
                try:
                    async with open_lanes(
                        local, instruments=(cast("LaneInstrument", worker), *instruments)
                    ) as core:
                        durable.local = worker.core = core
                        durable._nursery = worker.nursery = nursery
                        await nursery.start(worker.pump)
                        if worker.steps_ahead:
                            nursery.start_soon(worker.ask_ahead)
                        nursery.start_soon(worker.listen)
                        nursery.start_soon(durable._requests.end_later)
                        nursery.start_soon(lease.keep)
                        if store.leased:
                            nursery.start_soon(lease.beat)
                        try:
                            yield durable
                            await durable.drain(grace=durable._grace)
                        finally:
                            durable.close("the block was left")
                            worker.give_back("the block was left")
                finally:
                    with trio.CancelScope(shield=True):
                        await worker.stop()
                    nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await _leave(store)


async def _leave(store: Store) -> None:
    try:
        await store.leave()
    except Exception as error:
        # a store that is away is no fault of the program, so its traceback would be noise
        known = isinstance(error, StoreUnavailableError)
        logger.error(
            "this instance could not sign off from its store: %r; jobs that it still ran are run"
            " again, with one crash more",
            error,
            exc_info=None if known else error,
        )


async def _log_differences(store: Store, opening: Opening) -> None:
    lanes, groups = await store.look(AllLanes()), await store.look(AllGroups())
    for name, limit in opening.lanes.items():
        _log_difference(f"lane {name!r}", lanes[name], limit)
    for name, group in opening.groups.items():
        if name in groups:
            _log_difference(f"group {name!r}", groups[name], group)
        else:
            logger.warning(
                "group %r was not written to the store, since the store has its lanes in another"
                " group; DurableLanes.configure(groups=...) replaces the groups",
                name,
            )
    _log_difference("the store", await store.look(AllRules()), opening.rules, by="rules")


T = TypeVar("T", LaneLimit, GroupLimit, StoreRules)


def _log_difference(what: str, there: T, here: T, by: str = "limit") -> None:
    for field in attrs.fields_dict(type(here)):
        wins, given = getattr(there, field), getattr(here, field)
        if wins == given or field == "paused_until":
            continue
        logger.warning(
            "%s has %s=%r in the store, which wins over the %r given here; `trio-lanes %s` or"
            " DurableLanes.configure() changes it",
            *(what, field, wins, given, by),
        )
