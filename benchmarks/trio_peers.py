"""What people write by hand on Trio, each as small as it can be and still be right.

None of them has a handle to cancel by, a timeout, or a place in line that can be read; `Tasks` adds
the first, where cancelling is measured. A key is forgotten when its last job has ended.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from benchmarks.checks import WIDTH
from benchmarks.workloads import Body, Caller, Line, Loop, Sessions, Submit, Waiters

LOOP = Loop(run=trio.run, checkpoint=trio.lowlevel.checkpoint)


class _Kept:
    """Results by number, or nowhere: the same one call a job."""

    def __init__(self) -> None:
        self._results: list[object] = []
        self.store: Callable[[int, object], None] = lambda i, value: None

    def expect(self, n: int, keep: bool = True) -> None:
        if keep:
            self._results = [None] * n
            self.store = self._results.__setitem__

    async def results(self) -> Sequence[object]:
        return self._results


class BareNursery(_Kept):
    """A task per job and no rule at all: no order, no limit."""

    keeps = frozenset[str]()

    @asynccontextmanager
    async def open(self, n: int, *, keep: bool) -> AsyncIterator[Submit]:
        self.expect(n, keep)
        store = self.store

        async def one(body: Body, i: int) -> None:
            store(i, await body(i))

        async with trio.open_nursery() as nursery:

            def submit(body: Body, i: int, key: str) -> None:
                nursery.start_soon(one, body, i)

            yield submit


class KeyedLocks(_Kept):
    """A task per job; a `trio.Lock` per key that is in use, then one limiter.

    The jobs of a key exclude each other, but their order is that in which Trio happens to start
    their tasks: the place in line is taken by the task, not by the submitter.
    """

    keeps = frozenset({"exclusion", "limit"})

    @asynccontextmanager
    async def open(self, n: int, *, keep: bool) -> AsyncIterator[Submit]:
        self.expect(n, keep)
        store = self.store
        limiter = trio.CapacityLimiter(WIDTH)
        locks: dict[str, tuple[trio.Lock, list[None]]] = {}  # {key: (lock, its users)}

        async def one(body: Body, i: int, key: str) -> None:
            lock, users = locks[key]
            async with lock, limiter:
                store(i, await body(i))
            users.pop()
            if not users:
                del locks[key]

        async with trio.open_nursery() as nursery:

            def submit(body: Body, i: int, key: str) -> None:
                entry = locks.get(key)
                if entry is None:
                    entry = locks[key] = (trio.Lock(), [])
                entry[1].append(None)
                nursery.start_soon(one, body, i, key)

            yield submit


class KeyedTickets(_Kept):
    """A task per job that waits for the one before it of its key, then one limiter.

    As `KeyedLocks`, but first in, first out: the submitter draws the ticket.
    """

    keeps = frozenset({"order", "exclusion", "limit"})

    @asynccontextmanager
    async def open(self, n: int, *, keep: bool) -> AsyncIterator[Submit]:
        self.expect(n, keep)
        store = self.store
        limiter = trio.CapacityLimiter(WIDTH)
        last: dict[str, trio.Event] = {}  # {key: when the last job in line has ended}

        async def one(
            body: Body, i: int, key: str, before: trio.Event | None, mine: trio.Event
        ) -> None:
            try:
                if before is not None:
                    await before.wait()
                async with limiter:
                    store(i, await body(i))
            finally:
                mine.set()
                if last[key] is mine:
                    del last[key]

        async with trio.open_nursery() as nursery:

            def submit(body: Body, i: int, key: str) -> None:
                mine = trio.Event()
                nursery.start_soon(one, body, i, key, last.get(key), mine)
                last[key] = mine

            yield submit


class KeyedDrainers(_Kept):
    """A queue and one task per key that has work; the task takes the limiter for every job."""

    keeps = frozenset({"order", "exclusion", "limit"})

    @asynccontextmanager
    async def open(self, n: int, *, keep: bool) -> AsyncIterator[Submit]:
        self.expect(n, keep)
        store = self.store
        limiter = trio.CapacityLimiter(WIDTH)
        queues: dict[str, deque[tuple[Body, int]]] = {}

        async def drain(key: str, queue: deque[tuple[Body, int]]) -> None:
            while queue:
                body, i = queue.popleft()
                async with limiter:
                    store(i, await body(i))
            del queues[key]

        async with trio.open_nursery() as nursery:

            def submit(body: Body, i: int, key: str) -> None:
                queue = queues.get(key)
                if queue is None:
                    queue = queues[key] = deque()
                    nursery.start_soon(drain, key, queue)
                queue.append((body, i))

            yield submit


class SpawnedCall:
    """``async with limiter: await fn()`` in a task of its own, whose end is awaited."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Callable[[Body, int], Awaitable[object]]]:
        limiter = trio.CapacityLimiter(WIDTH)
        async with trio.open_nursery() as nursery:

            async def call(body: Body, i: int) -> object:
                value: object = None
                ended = trio.Event()

                async def limited() -> None:
                    nonlocal value
                    async with limiter:
                        value = await body(i)
                    ended.set()

                nursery.start_soon(limited)
                await ended.wait()
                return value

            yield call


class InlineCall:
    """A lock and a limiter in the caller's own task: no task to cancel, time out or outlive."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Callable[[Body, int], Awaitable[object]]]:
        lock = trio.Lock()
        limiter = trio.CapacityLimiter(WIDTH)

        async def call(body: Body, i: int) -> object:
            async with lock, limiter:
                return await body(i)

        yield call


class HeapLine(_Kept):
    """A heap, and one task that empties it without ever letting others run."""

    _nursery: trio.Nursery

    @asynccontextmanager
    async def open(self, n: int) -> AsyncIterator[Callable[[Body, int, int], None]]:
        self.expect(n)
        self._heap: list[tuple[int, int, Body]] = []

        def put(body: Body, i: int, priority: int) -> None:
            heapq.heappush(self._heap, (-priority, i, body))

        async with trio.open_nursery() as self._nursery:
            yield put

    def start(self) -> None:
        self._nursery.start_soon(self._drain)

    async def _drain(self) -> None:
        while self._heap:
            _, i, body = heapq.heappop(self._heap)
            self.store(i, await body(i))


class Tasks:
    """`KeyedLocks` with a cancel scope per job, behind a limiter of nothing."""

    _nursery: trio.Nursery

    def __init__(self) -> None:
        self._scopes: list[trio.CancelScope] = []
        self._count = 0

    @asynccontextmanager
    async def open(self, n: int) -> AsyncIterator[Submit]:
        limiter = trio.CapacityLimiter(0)
        locks: dict[str, tuple[trio.Lock, list[None]]] = {}
        self._all_ended = trio.Event()

        async def one(scope: trio.CancelScope, body: Body, i: int, key: str) -> None:
            lock, users = locks[key]
            with scope:
                try:
                    async with lock, limiter:
                        await body(i)
                except trio.Cancelled:
                    self._count += 1
                    if self._count == n:
                        self._all_ended.set()
                    raise
                finally:
                    users.pop()
                    if not users:
                        del locks[key]

        async with trio.open_nursery() as self._nursery:

            def submit(body: Body, i: int, key: str) -> None:
                entry = locks.get(key)
                if entry is None:
                    entry = locks[key] = (trio.Lock(), [])
                entry[1].append(None)
                scope = trio.CancelScope()
                self._scopes.append(scope)
                self._nursery.start_soon(one, scope, body, i, key)

            yield submit

    def clear(self) -> None:
        self._nursery.cancel_scope.cancel()

    def cancel(self, i: int) -> None:
        self._scopes[i].cancel()

    async def ended(self) -> None:
        # Shielded, because `clear` cancels the block in which this waits as well.
        with trio.CancelScope(shield=True):
            await self._all_ended.wait()

    async def cancelled(self) -> int:
        return self._count


SESSIONS: dict[str, Callable[[], Sessions]] = {
    "bare": BareNursery,
    "locks": KeyedLocks,
    "tickets": KeyedTickets,
    "drainers": KeyedDrainers,
}
CALLERS: dict[str, Callable[[], Caller]] = {"spawned": SpawnedCall, "inline": InlineCall}
LINES: dict[str, Callable[[], Line]] = {"heap": HeapLine}
WAITERS: dict[str, Callable[[], Waiters]] = {"locks": Tasks}
