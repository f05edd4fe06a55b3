"""`open_durable_lanes` for asyncio: the same lanes and stores, with handlers of asyncio's.

The lanes, their jobs and what else they return stand behind doors: a `_Door` has the attributes of
the object behind it, and its async verbs are coroutines of asyncio's. To type checkers, and to
`isinstance`, it is the object behind it: the signatures are the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from functools import cache, partial, wraps
from inspect import iscoroutinefunction, ismethod
from typing import Any, Final, TypeVar, cast, final

import attrs
import trio

from .. import durable
from .._actors.job import Job
from .._actors.options import LaneConfig
from .._config.names import DEFAULT_LANES
from ..durable import DurableLanes, DurableRun, Store
from ..durable import current_job as current_run
from ..durable import open_durable_lanes as open_trio_lanes
from ._bodies import awaited, to_trio
from ._bridge import Hosted, HostedInside, call, in_asyncio

T = TypeVar("T")


@final
class _Door:
    """An object of durable lanes, for asyncio."""

    def __init__(self, behind: Any) -> None:
        self.trio: Final = behind

    @property  # type: ignore[misc]  # as `unittest.mock` does
    def __class__(self) -> Any:
        return type(self.trio)

    def __repr__(self) -> str:
        return repr(self.trio)

    def __eq__(self, other: object) -> bool:
        return type(other) is _Door and bool(self.trio == other.trio)

    def __hash__(self) -> int:
        return hash(self.trio)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.trio, name)
        if not ismethod(value):
            return at_door(value)
        if name in ("children", "lock", "yield_slot"):
            return partial(_opened, value)
        return partial(_awaited if iscoroutinefunction(value) else _called, value)

    def __aiter__(self) -> _Door:
        return self

    async def __anext__(self) -> Any:
        return await _awaited(self.trio.__anext__)


def check_door(lanes: object) -> None:
    """Refuse durable lanes that are not asyncio's.

    Raises:
      TypeError: for them.
    """
    if type(lanes) is not _Door:
        raise TypeError(
            f"lanes must be those of trio_lanes.aio.open_durable_lanes, not {lanes!r}; "
            "for lanes of Trio use trio_lanes.agents"
        )


def at_door(value: Any) -> Any:
    """Return ``value`` behind a door, if it has verbs of Trio's; and a list of such likewise."""
    kind: Any = type(value)
    if _has_verbs(kind):
        return _Door(value)
    if isinstance(value, list):
        return [*map(at_door, value)]
    return value


@cache
def _has_verbs(kind: Any) -> bool:
    """Whether it is a class of durable lanes with async methods, which are Trio's."""
    of_durable = kind.__module__.startswith(durable.__name__)
    return of_durable and any(map(iscoroutinefunction, vars(kind).values()))


def _called(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return at_door(method(*args, **options))


def _opened(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    context = method(*args, **options)
    return context if trio.lowlevel.in_trio_task() else HostedInside(context, at_door)


async def _awaited(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    in_trio = trio.lowlevel.in_trio_task()
    return at_door(await (method(*args, **options) if in_trio else call(method, *args, **options)))


def _door_to(lanes: DurableLanes) -> DurableLanes:
    if lanes._requests is not None:
        lanes._requests.asking_task = _asking_task
    return cast("DurableLanes", _Door(lanes))


def _asking_task() -> object:
    in_trio = trio.lowlevel.in_trio_task()
    return trio.lowlevel.current_task() if in_trio else asyncio.current_task()


def current_durable_job() -> DurableRun | None:
    """Return the run whose handler this is; None elsewhere: `trio_lanes.durable.current_job`."""
    return cast("DurableRun | None", at_door(current_run()))


def open_durable_lanes(
    store: Store,
    handlers: Mapping[str, Callable[..., Awaitable[object]]],
    lanes: Mapping[str, int | float | LaneConfig] = DEFAULT_LANES,
    **options: Any,
) -> OpenedDurableLanes:
    """Open durable lanes in an asyncio application: the handlers, and each ``wrap`` of a lane, are
    functions of asyncio's.

    Takes the other arguments of `trio_lanes.durable.open_durable_lanes`, and is as that in all
    else. ``trio-lanes worker`` runs its result, too.
    """
    open_trio_lanes(store, handlers, lanes, **options)  # checks all arguments
    of_trio = {name: _handler(fn) for name, fn in handlers.items()}
    return OpenedDurableLanes(open_trio_lanes(store, of_trio, _with_wraps(lanes), **options))


def _with_wraps(lanes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``lanes`` with functions of Trio's in the place of each ``wrap`` of asyncio's."""
    return {
        name: attrs.evolve(config, wrap=_wrap(config.wrap))
        if isinstance(config, LaneConfig) and config.wrap is not None
        else config
        for name, config in lanes.items()
    }


def _wrap(fn: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    @wraps(fn)
    async def wrap(job: Job[Any], body: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await in_asyncio(awaited, fn, (_Door(job), partial(call, body)))

    return wrap


def _handler(fn: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
    """Return ``fn`` for Trio: what it has by itself, as an `on_both_sides`, or a crossing."""
    return getattr(fn, "of_trio", None) or to_trio(fn)


@final
class OpenedDurableLanes(Hosted[DurableLanes]):
    """What `open_durable_lanes` returns.

    Attributes:
      trio: the context manager for a task of Trio's in the loop's guest run.
    """

    def __init__(self, context: AbstractAsyncContextManager[DurableLanes]) -> None:
        super().__init__(context, _door_to)
        self.trio: Final = context

    def run(self, fn: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run Trio's ``fn(*args)`` in a new loop, where `trio` can be entered."""
        return asyncio.run(call(fn, *args))
