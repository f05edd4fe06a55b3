"""The same by hand on asyncio, aiojobs, and limiters without keys.

`asyncio` starts tasks in the order of their creation and its `Lock` is first in, first out, so
that here the keyed lock keeps the order too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiojobs

try:
    import aiolimiter
except ImportError:  # then it is not measured, as the row says
    pass

from benchmarks.checks import WIDTH
from benchmarks.sample import Sample
from benchmarks.workloads import Body, Caller, Line, Loop, Sessions, Submit, Waiters


def _run(main: Callable[[], Coroutine[Any, Any, Sample]]) -> Sample:
    return asyncio.run(main())


async def _checkpoint() -> None:
    await asyncio.sleep(0)


LOOP = Loop(run=_run, checkpoint=_checkpoint)


class _Locks:
    """A FIFO lock per key that is in use, then what limits all keys together."""

    def __init__(self, limit: asyncio.Semaphore | None) -> None:
        self._limit = limit
        self._locks: dict[str, tuple[asyncio.Lock, list[None]]] = {}  # {key: (lock, its users)}

    def job(self, body: Body, i: int, key: str) -> Coroutine[Any, Any, int]:
        """Takes the lock's place among the users of its key now, and the lock when it runs."""
        entry = self._locks.get(key)
        if entry is None:
            entry = self._locks[key] = (asyncio.Lock(), [])
        entry[1].append(None)
        return self._run(body, i, key, *entry)

    async def _run(
        self, body: Body, i: int, key: str, lock: asyncio.Lock, users: list[None]
    ) -> int:
        try:
            async with lock:
                if self._limit is None:
                    return await body(i)
                async with self._limit:
                    return await body(i)
        finally:
            users.pop()
            if not users:
                del self._locks[key]


class KeyedLocks:
    """A task per job in a task group; a lock per key, then one semaphore."""

    keeps = frozenset({"order", "exclusion", "limit"})

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[int]] = []

    @asynccontextmanager
    async def open(self, n: int, *, keep: bool) -> AsyncIterator[Submit]:
        locks = _Locks(asyncio.Semaphore(WIDTH))
        async with asyncio.TaskGroup() as group:

            def submit(body: Body, i: int, key: str) -> None:
                self._tasks.append(group.create_task(locks.job(body, i, key)))

            def submit_and_forget(body: Body, i: int, key: str) -> None:
                group.create_task(locks.job(body, i, key))

            yield submit if keep else submit_and_forget

    async def results(self) -> Sequence[object]:
        return [task.result() for task in self._tasks]


class KeyedDrainers:
    """A queue and one task per key that has work; the task takes the semaphore for every job."""

    keeps = frozenset({"order", "exclusion", "limit"})

    def __init__(self) -> None:
        self._results: list[object] = []

    @asynccontextmanager
    async def open(self, n: int, *, keep: bool) -> AsyncIterator[Submit]:
        if keep:
            self._results = [None] * n
        results = self._results
        limit = asyncio.Semaphore(WIDTH)
        queues: dict[str, deque[tuple[Body, int]]] = {}

        async def drain(key: str, queue: deque[tuple[Body, int]]) -> None:
            while queue:
                body, i = queue.popleft()
                async with limit:
                    value = await body(i)
                if keep:
                    results[i] = value
            del queues[key]

        async with asyncio.TaskGroup() as group:

            def submit(body: Body, i: int, key: str) -> None:
                queue = queues.get(key)
                if queue is None:
                    queue = queues[key] = deque()
                    group.create_task(drain(key, queue))
                queue.append((body, i))

            yield submit

    async def results(self) -> Sequence[object]:
        return self._results


class AioJobs:
    """One scheduler for the limit. It knows no keys, so that the job takes a lock per key.

    The job writes its result down itself: `Job.wait` would make another task for each.
    """

    keeps = frozenset({"order", "exclusion", "limit"})

    def __init__(self) -> None:
        self._results: list[object] = []

    @asynccontextmanager
    async def open(self, n: int, *, keep: bool) -> AsyncIterator[Submit]:
        if keep:
            self._results = [None] * n
        results = self._results
        locks = _Locks(None)

        async def store(job: Coroutine[Any, Any, int], i: int) -> None:
            value = await job
            if keep:
                results[i] = value

        # No pending limit, so that `spawn` never blocks; no time limit on the wait for the rest.
        async with aiojobs.Scheduler(limit=WIDTH, pending_limit=0, wait_timeout=None) as scheduler:

            def submit(body: Body, i: int, key: str) -> Awaitable[object]:
                return scheduler.spawn(store(locks.job(body, i, key), i))

            yield submit

    async def results(self) -> Sequence[object]:
        return self._results


class Limited:
    """A task per job in a task group, under one limiter: no keys, and no order that is promised."""

    keeps: frozenset[str] = frozenset({"limit"})

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[int]] = []

    def limiter(self) -> AbstractAsyncContextManager[None]:
        return asyncio.Semaphore(WIDTH)

    @asynccontextmanager
    async def open(self, n: int, *, keep: bool) -> AsyncIterator[Submit]:
        limiter = self.limiter()

        async def limited(body: Body, i: int) -> int:
            async with limiter:
                return await body(i)

        async with asyncio.TaskGroup() as group:

            def submit(body: Body, i: int, key: str) -> None:
                task = group.create_task(limited(body, i))
                if keep:
                    self._tasks.append(task)

            yield submit

    async def results(self) -> Sequence[object]:
        return [task.result() for task in self._tasks]


class RateLimited(Limited):
    """The same under aiolimiter, with a rate that is never reached: it limits no jobs at once."""

    keeps = frozenset()

    def limiter(self) -> AbstractAsyncContextManager[None]:
        return aiolimiter.AsyncLimiter(1e9, 1)


class SpawnedCall:
    """``async with semaphore: await fn()`` in a task of its own, which is awaited."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Callable[[Body, int], Awaitable[object]]]:
        limit = asyncio.Semaphore(WIDTH)

        async def limited(body: Body, i: int) -> int:
            async with limit:
                return await body(i)

        def call(body: Body, i: int) -> Awaitable[object]:
            return asyncio.create_task(limited(body, i))

        yield call


class AioJobsCall:
    """``await (await scheduler.spawn(fn())).wait()``."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Callable[[Body, int], Awaitable[object]]]:
        async with aiojobs.Scheduler(limit=WIDTH, pending_limit=0) as scheduler:

            async def call(body: Body, i: int) -> object:
                job = await scheduler.spawn(body(i))
                return await job.wait()

            yield call


class QueueLine:
    """An `asyncio.PriorityQueue` and one task that empties it."""

    def __init__(self) -> None:
        self._results: list[object] = []

    @asynccontextmanager
    async def open(self, n: int) -> AsyncIterator[Callable[[Body, int, int], None]]:
        self._results = [None] * n
        self._queue: asyncio.PriorityQueue[tuple[int, int, Body]] = asyncio.PriorityQueue()

        def put(body: Body, i: int, priority: int) -> None:
            self._queue.put_nowait((-priority, i, body))

        yield put
        await self._queue.join()
        self._worker.cancel()

    def start(self) -> None:
        self._worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while True:
            _, i, body = await self._queue.get()
            self._results[i] = await body(i)
            self._queue.task_done()

    async def results(self) -> Sequence[object]:
        return self._results


class Tasks:
    """`KeyedLocks` behind a semaphore of nothing; a task's own `cancel`."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[int]] = []

    @asynccontextmanager
    async def open(self, n: int) -> AsyncIterator[Submit]:
        locks = _Locks(asyncio.Semaphore(0))

        def submit(body: Body, i: int, key: str) -> None:
            self._tasks.append(asyncio.create_task(locks.job(body, i, key)))

        yield submit

    def clear(self) -> None:
        for task in self._tasks:
            task.cancel()

    def cancel(self, i: int) -> None:
        self._tasks[i].cancel()

    async def ended(self) -> None:
        await asyncio.wait(self._tasks)

    async def cancelled(self) -> int:
        return sum(task.cancelled() for task in self._tasks)


SESSIONS: dict[str, Callable[[], Sessions]] = {
    "locks": KeyedLocks,
    "drainers": KeyedDrainers,
    "aiojobs": AioJobs,
    "semaphore": Limited,
    "aiolimiter": RateLimited,
}
CALLERS: dict[str, Callable[[], Caller]] = {"spawned": SpawnedCall, "aiojobs": AioJobsCall}
LINES: dict[str, Callable[[], Line]] = {"queue": QueueLine}
WAITERS: dict[str, Callable[[], Waiters]] = {"locks": Tasks}
