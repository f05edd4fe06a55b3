"""The lease of one instance: kept by heartbeats, and a deadline on Trio's clock.

Each heartbeat that succeeds moves the deadline to the time at which it was *sent* plus 0.8 of the
lease; so whatever the network does, this instance knows that it may have lost its lease before the
store can give anything of it to another. At the deadline all that it runs is cancelled; then it
comes back as a new incarnation, and says which of its runs were ended by that and not by a crash.
"""

from __future__ import annotations

import logging
import math
from typing import Final, final

import trio

from .._contract.errors import StoreUnavailableError
from .._contract.protocol import Store
from .worker import AGAIN_AFTER, Worker

logger: Final = logging.getLogger("trio_lanes.durable")

TRUSTED: Final = 0.8
"""The share of a lease that is relied upon."""
BEATS: Final = 3
"""Heartbeats in a lease."""


@final
class Lease:
    """Has an instance join its store, and stay joined."""

    def __init__(self, store: Store, worker: Worker, ttl: float) -> None:
        self._store: Final = store
        self._worker: Final = worker
        self._ttl: Final = ttl
        self._term = trio.CancelScope()
        self._incarnation = 0

    async def join(self) -> None:
        """Become alive in the store."""
        await self._join([])

    async def _join(self, lost: list[tuple[int, int]]) -> None:
        sent = trio.current_time()
        await self._store.join(lost)
        self._incarnation += 1
        deadline = sent + TRUSTED * self._ttl if self._store.leased else math.inf
        self._term = trio.CancelScope(deadline=deadline)

    async def keep(self) -> None:
        """Watch the deadline; at its end cancel what runs, and begin a new term."""
        while True:
            with self._term:
                await trio.sleep_forever()
            logger.error("the lease is lost: what ran is cancelled, and will be run again")
            self._worker.claiming = False
            lost = self._worker.cancel_all("the lease was lost")
            while True:
                try:
                    await self._join(lost)
                    break
                except StoreUnavailableError:
                    await trio.sleep(AGAIN_AFTER)
            self._worker.claiming = not (self._worker.stopping or self._worker.closed)
            self._worker.look()

    async def beat(self) -> None:
        """Prolong the term, three times in each."""
        while True:
            await trio.sleep(self._ttl / BEATS)
            incarnation, sent = self._incarnation, trio.current_time()
            try:
                alive = await self._store.beat()
            except StoreUnavailableError:
                continue  # the deadline stays where it is
            if incarnation != self._incarnation:
                continue
            if alive:
                self._term.deadline = sent + TRUSTED * self._ttl
            else:
                self._term.cancel()
