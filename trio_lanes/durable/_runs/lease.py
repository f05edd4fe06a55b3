"""The lease of one instance: heartbeats, and a deadline on Trio's clock.

Each heartbeat that succeeds moves the deadline to the time at which it was *sent* plus 0.8 of the
lease. So the deadline comes before the store gives this instance's jobs to another instance, even
if the network fails. At the deadline all runs of this instance are cancelled. When their bodies
have ended, or the lease is over in the store too, it joins the store as a new incarnation, and
reports which runs ended for that reason, not by a crash.

A server may come back with older data: a standby that lagged, or a crash that took the last
moments. Then it has runs and requests whose ends were lost, and lacks others. So with each
heartbeat, and on each new connection, this instance says what it has: see `Compare`.

A supervisor of processes has to know which incarnations a process has been, and when their leases
are over: `watching_leases`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol, TypeAlias, final

import trio

from .._contract.act import new_incarnation, new_ticket
from .._contract.errors import StoreUnavailableError
from .._contract.protocol import Store
from ..acts.runs import Compare
from .worker import AGAIN_AFTER, Worker

logger: Final = logging.getLogger("trio_lanes.durable")

TRUSTED: Final = 0.8
"""The fraction of a lease that this instance relies on."""
LEFT: Final = 0.2
"""The rest of it, which the bodies have for their end."""
BEATS: Final = 3
"""How many heartbeats are sent in the time of a lease."""
BEAT_AGAIN_AFTER: Final = 1.0
"""Seconds after which a heartbeat that failed is sent again."""
PROCESS_TRUSTED: Final = 0.95
"""The fraction of a lease after which a process that cannot renew it must have ended."""

Watch: TypeAlias = Callable[["Lease", str], None]

_watch: Final[ContextVar[Watch | None]] = ContextVar("the watch of leases", default=None)


@contextmanager
def watching_leases(watch: Watch) -> Iterator[None]:
    """Call ``watch`` with each lease of this context, and each incarnation that it is to be for.

    It is called before the store hears of the incarnation. It must neither wait nor raise.
    """
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


class Has(Protocol):
    """What an instance has by its lease: its requests for locks and quotas."""

    @property
    def known(self) -> tuple[Sequence[int], int]:
        """The numbers of what the store should have, and up to where all are known."""

    def compared(self, numbers: Iterable[int], last: int) -> None:
        """Cancel what the store lacks, whose last number is ``last``."""


def check_lease(ttl: float, patience: float) -> None:
    """Refuse a lease in which a call of a run, which is not cancelled, may outlast the deadline.

    Raises:
      ValueError: it names the least lease.
    """
    if TRUSTED * ttl < patience:
        raise ValueError(
            f"lease_ttl must be at least {patience / TRUSTED:g}, which is {1 / TRUSTED:g} times the"
            f" patience of the store, got {ttl!r}: a call of a job waits for its answer for up to"
            f" {patience:g} s, cancelled or not, and the job must end before its lease is over"
        )


@final
class Lease:
    """The lease of one instance: joins the store, and keeps its lease."""

    def __init__(self, store: Store, worker: Worker, requests: Has, ttl: float) -> None:
        self._store: Final = store
        self._worker: Final = worker
        self._requests: Final = requests
        self._ttl: Final = ttl
        self._trust = trio.CancelScope()
        self._incarnation = 0
        self.ends = math.inf
        """The monotonic time, not Trio's, at which a process that cannot renew it must end."""

    async def join(self, lost: Sequence[tuple[int, int]] = (), ticket: str = "") -> None:
        """Join the store as a new incarnation; ``lost`` are (id, fence) of runs of the former."""
        if not ticket:
            ticket = self._new_incarnation()
        sent, ends = trio.current_time(), self._end()
        await self._store.join(ticket, lost, self._worker.held)
        self._worker.joined()
        self._incarnation += 1
        leased = self._store.leased
        self._trust = trio.CancelScope(deadline=sent + TRUSTED * self._ttl if leased else math.inf)
        self.ends = ends

    def _new_incarnation(self) -> str:
        incarnation, watch = new_incarnation(), _watch.get()
        if watch is not None:
            watch(self, incarnation)
        return incarnation

    def _end(self) -> float:
        return time.monotonic() + PROCESS_TRUSTED * self._ttl if self._store.leased else math.inf

    async def keep(self) -> None:
        """Wait for the deadline; then cancel all runs and join again."""
        while True:
            with self._trust:
                await trio.sleep_forever()
            logger.error(
                "this instance has lost its lease: its %d jobs are cancelled, and will be run "
                "again; look for a blocked process or a slow store",
                len(self._worker.running),
            )
            lost = self._worker.lose_lease()
            # the join gives the jobs back at once, and bodies should have ended before
            with trio.move_on_after(LEFT * self._ttl):
                await self._worker.wait_ended()
            await self._join_again(lost)
            self._worker.request_step()

    async def _join_again(self, lost: list[tuple[int, int]]) -> None:
        """Join, however long the store is away.

        A join without an answer may have happened. So it is asked again with the same ticket: with
        another, the crashes of ``lost`` would be taken back twice.
        """
        ticket = self._new_incarnation()
        while True:
            try:
                await self.join(lost, ticket)
                return
            except StoreUnavailableError:
                await trio.sleep(AGAIN_AFTER)

    async def beat(self) -> None:
        """Send heartbeats, each of which moves the deadline, and compare what this instance has."""
        pause = self._ttl / BEATS
        renewed = self._renewed()
        while True:
            with trio.move_on_after(pause):
                await renewed.wait()
            renewed = self._renewed()  # before the calls: the next may be made while they wait
            incarnation, sent, ends = self._incarnation, trio.current_time(), self._end()
            try:
                alive = await self._store.beat()
                pause = self._ttl / BEATS
                if incarnation != self._incarnation:
                    continue
                if alive:
                    self._trust.deadline = sent + TRUSTED * self._ttl
                    self.ends = ends
                    await self._compare()
                else:
                    self._trust.cancel()
            except StoreUnavailableError:  # the deadline is not moved
                pause = min(BEAT_AGAIN_AFTER, self._ttl / BEATS)

    def _renewed(self) -> trio.Event:
        """Return an event that is set when the store has a new connection."""
        renewed: trio.Event | None = getattr(self._store, "renewed", None)
        return trio.Event() if renewed is None else renewed

    async def _compare(self) -> None:
        """Say what this instance has; cancel what the store lacks."""
        runs, requests = self._worker.known, self._requests.known
        lost = await self._store.do(Compare(*runs, *requests), new_ticket())
        self._worker.compared(lost[0], lost[2])
        self._requests.compared(lost[1], lost[2])
