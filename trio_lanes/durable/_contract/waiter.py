"""`Waiters`: the tasks of this process that wait for news of jobs and requests."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Self, TypeVar, final

import trio

from .protocol import ServedAt
from .records import Ended

T = TypeVar("T")

MAX_KNOWN: Final = 10_000
"""How many jobs are remembered at most: of those that live, and of those of which news came."""


class _NewsWaiter:
    """A task that waits for news. For one task it does what a `trio.Event` does, in fewer objects.

    Many tasks wait at the same time, and Python's collector goes through all their objects.

    Attributes:
      how: how the job has ended; None: its state must be read.
    """

    __slots__ = ("_by_id", "_id", "_seen", "_task", "how")

    def __init__(self, by_id: dict[int, set[_NewsWaiter | _Hearer]], id: int) -> None:
        self._by_id: Final = by_id
        self._id: Final = id
        self._seen = False
        self._task: trio.lowlevel.Task | None = None
        self.how: Ended | None = None

    def __enter__(self) -> Self:
        self._by_id.setdefault(self._id, set()).add(self)
        return self

    def __exit__(self, *_: object) -> None:
        waiters = self._by_id.get(self._id)
        if waiters is not None:
            waiters.discard(self)
            if not waiters:
                del self._by_id[self._id]

    def see(self, how: Ended | None) -> None:
        """Give the news to the task."""
        self.how, self._seen = how, True
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def wait(self) -> None:
        """Wait for news. A checkpoint."""
        if self._seen:
            await trio.lowlevel.checkpoint()
        else:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


@final
class _Hearer:
    """A function that hears of the end of a job, in the place of a task that waits."""

    __slots__ = ("_hear", "_id", "_waiters")

    def __init__(self, waiters: Waiters, id: int, hear: Callable[[Ended | None], None]) -> None:
        self._waiters: Final = waiters
        self._id: Final = id
        self._hear: Final = hear

    def see(self, how: Ended | None) -> None:
        if how is not None or not self._waiters.hear_end(self._id, self._hear):
            self._hear(how)


@final
class Waiters:
    """The waiting tasks by job or request, and the jobs that are known not to have ended."""

    def __init__(self) -> None:
        self._by_id: Final[dict[int, set[_NewsWaiter | _Hearer]]] = {}
        self._alive: Final[set[int]] = set()  # a wait for one of these need not ask the store
        # jobs of which news came: it may come before the answer to their submission
        self._heard: Final[OrderedDict[int, None]] = OrderedDict()
        self._came = trio.Event()

    def accepted(self, ids: Iterable[int]) -> None:
        """Note that jobs were accepted: this process hears when they end."""
        if len(self._alive) < MAX_KNOWN:
            self._alive.update([id for id in ids if id not in self._heard])

    def wake(self, id: int, how: Ended | None) -> None:
        """Give news to the tasks that wait for a job: how it has ended; None: they ask again."""
        if how is not None:
            self._alive.discard(id)
        for waiter in self._by_id.pop(id, ()):
            waiter.see(how)

    def changed(self, id: int, how: Ended | None = None) -> None:
        """Note that another process may have changed a job, and give the news."""
        self._alive.discard(id)
        self._heard[id] = None
        if len(self._heard) > MAX_KNOWN:
            self._heard.popitem(last=False)
        self.wake(id, how)

    def all_changed(self) -> None:
        """Have all waiting tasks ask again: any job may have changed, or a message may be lost."""
        self._alive.clear()
        for id in list(self._by_id):
            self.changed(id)

    async def come(self) -> None:
        """Wait until a task waits."""
        while not self._by_id:
            self._came = trio.Event()
            await self._came.wait()

    def hear_end(self, id: int, hear: Callable[[Ended | None], None]) -> bool:
        """Have a function called once when a job ends that is known not to have ended; else False.

        It is called with None when that is not known any more.
        """
        if id not in self._alive:
            return False
        self._by_id.setdefault(id, set()).add(_Hearer(self, id, hear))
        return True

    def _waiting(self, id: int) -> _NewsWaiter:
        """Return a waiter for news of a job; it is registered for the time of its block."""
        self._came.set()
        return _NewsWaiter(self._by_id, id)

    async def until(self, id: int, ask: Callable[[], Awaitable[tuple[T] | None]]) -> T:
        """Ask a store again with all news of a job, until it has an answer, in a tuple."""
        while True:
            with self._waiting(id) as waiter:  # before it asks: news may come meanwhile
                found = await ask()
                if found is not None:
                    return found[0]
                await waiter.wait()

    async def sent(self, id: int, ask: Callable[[], Awaitable[tuple[bool | None, float]]]) -> bool:
        """Do the same until a message is taken, or cannot be taken any more.

        Args:
          ask: says whether it was taken; or None, and the seconds until it asks again by itself.
        """
        while True:
            with self._waiting(id) as waiter:
                asked_at = trio.current_time()
                taken, seconds = await ask()
                if taken is not None:
                    return taken
                with trio.move_on_at(asked_at + seconds):
                    await waiter.wait()

    async def end_of(
        self, id: int, ask: Callable[[], Awaitable[tuple[Ended | None] | None]]
    ) -> Ended | None:
        """Do the same until a job has ended, but do not ask while it is known not to have."""
        while True:
            with self._waiting(id) as waiter:
                found = None if id in self._alive else await ask()
                if found is not None:
                    return found[0]
                await waiter.wait()
            if waiter.how is not None:
                return waiter.how

    async def served(
        self,
        request: int,
        ask: Callable[[], Awaitable[tuple[ServedAt | None, float | None] | None]],
    ) -> ServedAt | None:
        """Do the same until a request is served, or has ended: None.

        Args:
          ask: gives the answer of `Store.served`, or None and the seconds until it asks again by
            itself; None: the request has ended.
        """
        while True:
            with self._waiting(request) as waiter:
                asked_at = trio.current_time()
                found = await ask()
                if found is None or found[0] is not None:
                    return None if found is None else found[0]
                with trio.move_on_at(math.inf if found[1] is None else asked_at + found[1]):
                    await waiter.wait()
