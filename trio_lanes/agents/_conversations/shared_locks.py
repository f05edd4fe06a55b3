"""`SharedThreadLocks`: the locks of `ThreadLocks`, over all instances of a store."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Final

from trio_lanes.durable import DurableLanes, HeldLock

from ..._config.check import lanes_of_trio


class SharedThreadLocks:
    """A shared and exclusive lock for each key, over all instances.

    ::

        async with SharedThreadLocks(lanes).exclusive("thread-1") as held:
            await write_both(fence=held.fence)

    Tasks are served in the order in which they asked, over all instances. A lock is kept by the
    lease of its instance: if the lease is lost, the body is cancelled, and the block raises
    `~trio_lanes.durable.LockLostError`. `DurableLanes.lock
    <trio_lanes.durable.DurableLanes.lock>` has the rest.
    """

    _check_lanes = staticmethod(lanes_of_trio)

    def __init__(self, lanes: DurableLanes) -> None:
        self._check_lanes(lanes)
        self._lanes: Final = lanes

    def __repr__(self) -> str:
        return f"<trio_lanes.agents.SharedThreadLocks of {self._lanes!r}>"

    def shared(self, key: str) -> AbstractAsyncContextManager[HeldLock]:
        """Hold ``key`` together with other tasks that share it, for an ``async with`` block.

        Raises:
          ValueError: at the call, if ``key`` is too long.
          RuntimeError: if this task holds ``key`` already, or the lanes have no worker.
        """
        return self._lanes.lock(f"thread {key}", shared=True)

    def exclusive(self, key: str) -> AbstractAsyncContextManager[HeldLock]:
        """Hold ``key`` alone, for an ``async with`` block. The rest is as for `shared`."""
        return self._lanes.lock(f"thread {key}")
