"""Shared and exclusive locks, one for each key in use, granted in order of arrival.

A key has holders and a queue. A task joins the queue if other tasks wait, even if it could share
the lock at once; so a stream of sharing tasks does not starve a task that waits for exclusive
access. When the holders allow it, the head of the queue is admitted, and the sharing tasks directly
behind it.

Invariants:

* An entry of the table exists while a task holds its key or waits for it.
* Every change is synchronous. A granted lock is held, even if its task is cancelled in the same
  tick; only the end of the `async with` block releases it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, final

import attrs
import trio
from trio.lowlevel import Abort, Task

from ..._config.protected import protected_context


@final
@attrs.define(eq=False)
class _Lock:
    """The lock of one key: its holders, and the queue of waiting tasks."""

    holders: set[object] = attrs.field(factory=set)
    exclusive: bool = False  # whether the holder has exclusive access
    # {task: on whose behalf it waits, and whether for exclusive access}
    queue: OrderedDict[Task, tuple[object, bool]] = attrs.field(factory=OrderedDict)

    def admits(self, exclusive: bool) -> bool:
        """Whether the holders allow the head of the queue to hold the lock."""
        return not self.holders or not (exclusive or self.exclusive)

    def grant(self, holder: object, exclusive: bool) -> None:
        """Make ``holder``, a task, a holder."""
        self.holders.add(holder)
        self.exclusive = exclusive

    def serve(self) -> None:
        """Grant the lock to as many tasks from the head of the queue as possible."""
        while self.queue:
            task, (holder, exclusive) = next(iter(self.queue.items()))
            if not self.admits(exclusive):
                break
            del self.queue[task]
            self.grant(holder, exclusive)
            trio.lowlevel.reschedule(task)


class ThreadLocks:
    """A shared and exclusive lock for each key. A lock exists only while it is in use.

    A conversation uses its thread id as the key: it writes one commit under the shared lock, and
    takes the exclusive lock where several steps belong together.

    ::

        async with locks.exclusive("thread-1"):
            await write_both()

    Waiting tasks are served in order of arrival. ``len(locks)`` is the number of keys that a task
    holds or waits for.
    """

    def __init__(self) -> None:
        self._locks: Final[dict[Hashable, _Lock]] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def __repr__(self) -> str:
        return f"<trio_lanes.agents.ThreadLocks at {id(self):#x}, {len(self)} keys>"

    def shared(self, key: Hashable) -> AbstractAsyncContextManager[None]:
        """Hold ``key`` together with other tasks that share it, for an ``async with`` block.

        Entering is a checkpoint, leaving is not. If entering is cancelled, nothing is held.

        Raises:
          RuntimeError: on entering, if this task holds ``key`` already, shared or exclusive. It
            would wait for itself as soon as another task waits for exclusive access.
        """
        return self._hold(key, exclusive=False)

    def exclusive(self, key: Hashable) -> AbstractAsyncContextManager[None]:
        """Hold ``key`` alone, for an ``async with`` block. The rest is as for `shared`."""
        return self._hold(key, exclusive=True)

    @protected_context
    async def _hold(self, key: Hashable, *, exclusive: bool) -> AsyncIterator[None]:
        task = trio.lowlevel.current_task()
        await self._acquire(key, task, exclusive)
        try:
            yield
        finally:
            self._release(key, task)

    def _release(self, key: Hashable, holder: object) -> None:
        lock = self._locks[key]
        lock.holders.remove(holder)
        lock.serve()
        if not lock.holders:
            del self._locks[key]

    async def _acquire(self, key: Hashable, holder: object, exclusive: bool) -> None:
        lock = self._locks.get(key)
        if lock is not None and holder in lock.holders:
            raise RuntimeError(f"{holder!r} holds {key!r} already")
        await trio.lowlevel.checkpoint_if_cancelled()
        lock = self._locks.setdefault(key, _Lock())
        if not lock.queue and lock.admits(exclusive):
            lock.grant(holder, exclusive)
            await trio.lowlevel.cancel_shielded_checkpoint()
            return

        def abort(raise_cancel: Callable[[], Any]) -> Abort:
            del lock.queue[task]
            lock.serve()  # the tasks behind it may be able to share with the holders
            return Abort.SUCCEEDED

        task = trio.lowlevel.current_task()
        lock.queue[task] = holder, exclusive
        await trio.lowlevel.wait_task_rescheduled(abort)
