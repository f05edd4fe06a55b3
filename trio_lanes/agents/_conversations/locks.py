"""Shared and exclusive locks, one for each key that is in use, served in order of arrival.

A key has holders and a line. Whoever comes while somebody is in line goes behind, also one who
could share the lock at once: so a stream of sharers does not starve the one who waits to be alone.
The head of the line is let in when the holders allow it, and those behind it that share as well.

An entry of the table exists while somebody holds its key or waits for it. Everything that changes
one is synchronous; a lock that was granted is held, even if whoever waited for it is cancelled in
the same tick, so it is the `async with` block that gives it back, and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final, final

import attrs
import trio
from trio.lowlevel import Abort, Task, enable_ki_protection


@final
@attrs.define(eq=False)
class _Lock:
    """Who holds one key, and who waits for it."""

    holders: set[Task] = attrs.field(factory=set)
    alone: bool = False  # whether the one holder wants no other
    line: OrderedDict[Task, bool] = attrs.field(factory=OrderedDict)  # {task: whether alone}

    def admits(self, exclusive: bool) -> bool:
        """Whether who stands at the head of the line may come in now."""
        return not self.holders or not (exclusive or self.alone)

    def take(self, task: Task, exclusive: bool) -> None:
        """Let ``task`` in."""
        self.holders.add(task)
        self.alone = exclusive

    def serve(self) -> None:
        """Let in everybody who may come in now."""
        while self.line:
            task, exclusive = next(iter(self.line.items()))
            if not self.admits(exclusive):
                break
            del self.line[task]
            self.take(task, exclusive)
            trio.lowlevel.reschedule(task)


@final
class ThreadLocks:
    """A shared and exclusive lock for each key, made when it is needed and gone when it is not.

    The keys are those of conversations: one message is written while the lock is shared, what
    belongs together while it is exclusive.

    ::

        async with locks.exclusive("thread-1"):
            await write_both()

    Waiting is first come, first served. ``len(locks)`` is the number of keys that are held now or
    waited for.
    """

    def __init__(self) -> None:
        self._locks: Final[dict[Hashable, _Lock]] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def __repr__(self) -> str:
        return f"<trio_lanes.agents.ThreadLocks at {id(self):#x}, {len(self)} keys>"

    def shared(self, key: Hashable) -> AbstractAsyncContextManager[None]:
        """Hold ``key`` together with others that share it.

        Entering is a checkpoint, leaving is not. If entering is cancelled, nothing is held.

        Raises:
          RuntimeError: on entering, if this task holds ``key`` already, shared or not: it would
            wait for itself as soon as somebody else wants to be alone.
        """
        return _Hold(self, key, exclusive=False)

    def exclusive(self, key: Hashable) -> AbstractAsyncContextManager[None]:
        """Hold ``key`` alone. In all else as `shared`."""
        return _Hold(self, key, exclusive=True)

    async def _acquire(self, key: Hashable, task: Task, exclusive: bool) -> None:
        lock = self._locks.get(key)
        if lock is not None and task in lock.holders:
            raise RuntimeError(f"{task!r} holds {key!r} already")
        await trio.lowlevel.checkpoint_if_cancelled()
        lock = self._locks.setdefault(key, _Lock())
        if not lock.line and lock.admits(exclusive):
            lock.take(task, exclusive)
            await trio.lowlevel.cancel_shielded_checkpoint()
            return

        def abort(raise_cancel: Callable[[], Any]) -> Abort:
            del lock.line[task]
            lock.serve()  # those behind it may share with the holders
            return Abort.SUCCEEDED

        lock.line[task] = exclusive
        await trio.lowlevel.wait_task_rescheduled(abort)

    def _release(self, key: Hashable, task: Task) -> None:
        lock = self._locks[key]
        lock.holders.remove(task)
        lock.serve()
        if not lock.holders:
            del self._locks[key]


@final
class _Hold:
    """One `async with` block."""

    def __init__(self, locks: ThreadLocks, key: Hashable, *, exclusive: bool) -> None:
        self._locks: Final = locks
        self._key: Final = key
        self._exclusive: Final = exclusive
        self._task: Task | None = None

    @enable_ki_protection
    async def __aenter__(self) -> None:
        task = trio.lowlevel.current_task()
        await self._locks._acquire(self._key, task, self._exclusive)
        self._task = task

    @enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._task is not None
        self._locks._release(self._key, self._task)
