"""One contract, two doors: tests that are written for Trio, run in asyncio as well.

Tests that are about asyncio alone have the mark ``asyncio_only``. They are plain asyncio.

A module or test with the mark ``both_doors`` is run twice. The second time its own globals
``trio`` and ``open_lanes``, and those of `MODULES`, stand for asyncio: `IN_ASYNCIO` has those names
of Trio's that these tests and their bodies use, each by the plainest thing of asyncio's. So the
bodies are asyncio's, and the test is an asyncio task. A test, or a case, that is about Trio itself
has the mark ``trio_only``, and says why.

Time is virtual there, too. `VirtualLoop` is a loop whose time stands still while there is anything
to do, and then jumps to the next timer. Trio's guest run has the time of its loop and no thread, so
that is all there is to it. (`trio.testing.MockClock` could not do it: it knows nothing of what the
host waits for.)
"""

from __future__ import annotations

import asyncio
import math
import selectors
import sys
import types
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from inspect import iscoroutinefunction
from typing import Any, Final
from weakref import WeakSet

import pytest
import trio
import trio.testing
from pytest_trio.plugin import TrioFixture
from trio.testing import MockClock

import trio_lanes
import trio_lanes.agents
import trio_lanes.aio
import trio_lanes.aio.agents
import trio_lanes.durable
from tests.support import hangs

MODULES: Final = (
    "tests.support.bodies",
    "tests.support.track",
    "tests.agents.conftest",
    "tests.agents.durable_stage",
    "tests.agents.inbox_stage",
)

LONGEST: Final = 1e6
"""How many seconds no test takes."""

MOST_TURNS: Final = 100_000
"""How many turns of a loop no test takes at one moment."""

WAIT_FOR_EVER: Final = "all tasks wait for ever"


class _Selector(selectors.DefaultSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        # a thread takes real time, in which the time of the loop stands still
        waits = timeout is None or (timeout and self.loop.threads)
        events: list[Any] = super().select(hangs.patience() if waits else 0)
        self.loop.turns += 1
        if not events and timeout != 0:
            if waits:
                raise hangs.Hang(hangs.stacks(WAIT_FOR_EVER))
            self.loop.jump()
        elif self.loop.turns > MOST_TURNS:
            raise hangs.Hang(hangs.stacks("the loop is busy for ever"))
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time jumps to its next timer when there is nothing to do."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = 0  # at this time
        self.threads = 0  # that work for this loop
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        self._clock_resolution = 1e-6  # that of a float at a thousand years

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        self.threads += 1
        future: asyncio.Future[Any] = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, future: object) -> None:
        self.threads -= 1

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        self.threads += 1
        await super().shutdown_default_executor(*timeout)

    def time(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.turns = 0
        self.now += seconds

    def jump(self) -> None:
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        if not timers or self.now > LONGEST:
            raise hangs.Hang(hangs.stacks(WAIT_FOR_EVER))
        self.turns = 0
        self.now = max(self.now, timers[0].when())


def run(test: Callable[..., Coroutine[Any, Any, None]], **arguments: Any) -> None:
    """Run an async test in asyncio, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(_with_fixtures(test, arguments))


async def _with_fixtures(
    test: Callable[..., Coroutine[Any, Any, None]], arguments: dict[str, Any]
) -> None:
    """Run ``test`` inside its async fixtures, which `pytest_trio` has left for later."""
    async with AsyncExitStack() as stack:
        for name, value in arguments.items():
            if isinstance(value, TrioFixture):
                fixture = asynccontextmanager(value._func)(**value._pytest_kwargs)
                arguments[name] = await stack.enter_async_context(fixture)
        await test(**arguments)


def _advance(clock: object, seconds: float) -> None:
    """As `MockClock.jump`, for a clock that a test has and does not use: the loop's is its own."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.advance(seconds)


_shields: Final[WeakSet[asyncio.Task[Any]]] = WeakSet()
"""The tasks that are inside a shield: cancellations are lost on them."""


async def _sleep(seconds: float) -> None:
    task = asyncio.current_task()
    assert task is not None
    if task not in _shields:
        await asyncio.sleep(seconds)
        return
    asleep = asyncio.ensure_future(asyncio.sleep(seconds))
    while not asleep.done():
        try:
            await asyncio.wait([asleep])
        except asyncio.CancelledError:
            pass


class CancelScope:
    """As `trio.CancelScope`, by `asyncio.Task.cancel`. A shield is one around `sleep` alone."""

    def __init__(
        self,
        *,
        deadline: float = math.inf,
        relative_deadline: float = math.inf,
        shield: bool = False,
    ) -> None:
        self._deadline = deadline
        self._relative = relative_deadline
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._shield = shield
        self._delivered = False
        self.cancel_called = self.cancelled_caught = False

    def __enter__(self) -> CancelScope:
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        when = min(self._deadline, loop.time() + self._relative)
        if when < math.inf:
            self._timer = loop.call_at(when, self.cancel)
        if self.cancel_called:
            self._deliver()
        if self._shield:
            assert self._task is not None
            _shields.add(self._task)
        return self

    def cancel(self, reason: str | None = None) -> None:
        if not self.cancel_called:
            self.cancel_called = True
            if self._task is not None:
                self._deliver()

    def _deliver(self) -> None:
        assert self._task is not None
        self._delivered = True
        self._task.cancel()

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        if self._shield:
            assert self._task is not None
            _shields.discard(self._task)
        if self._delivered:
            assert self._task is not None
            self.cancelled_caught = not self._task.uncancel() and (
                isinstance(error, asyncio.CancelledError)
            )
        self._task = None
        return self.cancelled_caught


class _FailAfter(CancelScope):
    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        if super().__exit__(kind, error, traceback):
            raise trio.TooSlowError
        return bool(self._shield)  # of which it has none


class Nursery:
    """As `trio.Nursery`, by `asyncio.TaskGroup`."""

    def __init__(self) -> None:
        self.cancel_scope = CancelScope()
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Nursery:
        self.cancel_scope.__enter__()
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool:
        try:
            await self._group.__aexit__(*error)
        except BaseException as exc:
            if self.cancel_scope.__exit__(type(exc), exc, None):
                return True
            raise
        return self.cancel_scope.__exit__(*error)

    def start_soon(self, fn: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        self._group.create_task(fn(*args))


async def settle_down(cushion: float = 0) -> None:
    """As `trio.testing.wait_all_tasks_blocked`: nothing takes this many turns of a loop."""
    for _ in range(100):
        await asyncio.sleep(0)


async def _sleep_until(when: float) -> None:
    await asyncio.sleep(when - asyncio.get_running_loop().time())


async def _sleep_forever() -> None:
    await asyncio.get_running_loop().create_future()


def _move_on_after(seconds: float) -> CancelScope:
    return CancelScope(relative_deadline=seconds)


def _fail_after(seconds: float) -> CancelScope:
    return _FailAfter(relative_deadline=seconds)


def _move_on_at(when: float) -> CancelScope:
    return CancelScope(deadline=when)


async def _checkpoint() -> None:
    await asyncio.sleep(0)


IN_ASYNCIO: Final = types.SimpleNamespace(
    sleep=_sleep,
    sleep_until=_sleep_until,
    sleep_forever=_sleep_forever,
    current_time=lambda: asyncio.get_running_loop().time(),
    Event=asyncio.Event,
    CancelScope=CancelScope,
    move_on_after=_move_on_after,
    move_on_at=_move_on_at,
    fail_after=_fail_after,
    open_nursery=Nursery,
    Cancelled=asyncio.CancelledError,
    CapacityLimiter=trio.CapacityLimiter,  # an object of the library's configuration
    BusyResourceError=RuntimeError,
    ClosedResourceError=RuntimeError,
    TooSlowError=trio.TooSlowError,
    WouldBlock=trio.WouldBlock,
    lowlevel=types.SimpleNamespace(checkpoint=_checkpoint),
    to_thread=types.SimpleNamespace(run_sync=trio_lanes.aio.to_thread),
)

STANDS_FOR: Final[list[tuple[object, object]]] = [
    (trio, IN_ASYNCIO),
    (trio_lanes.open_lanes, trio_lanes.aio.open_lanes),
    (trio_lanes.durable.open_durable_lanes, trio_lanes.aio.open_durable_lanes),
    (trio_lanes.durable.current_job, trio_lanes.aio.current_durable_job),
    *(
        (value, vars(trio_lanes.aio.agents)[name])
        for name, value in vars(trio_lanes.agents).items()
        if not name.startswith("_")
    ),
    (trio.testing.wait_all_tasks_blocked, settle_down),
    (trio.testing.assert_checkpoints, nullcontext),
    (trio.testing.assert_no_checkpoints, nullcontext),
]


def enter_asyncio(item: pytest.Function, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the names of ``item``, an async test for Trio, stand for asyncio."""
    monkeypatch.setattr(MockClock, "jump", _advance)
    patched = []
    if not item.get_closest_marker("asyncio_only"):
        loaded = (sys.modules.get(name) for name in MODULES)
        patched = [item.module, *(module for module in loaded if module is not None)]
    for module in patched:
        for name, value in list(vars(module).items()):
            for original, other in STANDS_FOR:
                if value is original:
                    monkeypatch.setattr(module, name, other)


def run_in_asyncio(item: pytest.Function) -> None:
    """Have ``item``, whose fixtures `pytest_trio` has made, run in asyncio, if it is async."""
    test: Callable[..., Coroutine[Any, Any, None]] = item.obj
    if iscoroutinefunction(test):
        item.own_markers = [mark for mark in item.own_markers if mark.name != "trio"]
        item.obj = lambda **arguments: run(test, **arguments)
