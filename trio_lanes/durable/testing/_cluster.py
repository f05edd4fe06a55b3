"""`open_cluster`: several instances of durable lanes in one Trio run, over faulty connections.

Theory of operation

The store is a `MemoryStore`, or another store whose time is Trio's. Each instance reaches it by the
calls of a served store, over a `_Wire`: the same messages, the same numbers and tickets as between
processes. A wire loses messages, delays them, doubles them and is cut. An instance can be killed:
nothing that it sends from then on arrives, and its tasks are cancelled; a new instance takes its
place. An instance can be stopped, as by SIGSTOP: its messages are held up in both directions for
longer than a lease. The clock of the store can jump. One generator of random numbers decides on all
of it.

Faults begin when the block is entered and end when `Cluster.end_faults` is called. After that every
accepted job must end: a cluster tests the states that faults leave behind.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, final

import attrs
import trio

from .. import DurableLanes, DurableRun, MemoryStore, StoreUnavailableError, open_durable_lanes
from .._wire.client import ServedStoreClient
from .._wire.link import Link
from .._wire.server import serve


@final
@attrs.frozen(kw_only=True)
class Faults:
    """How much goes wrong in a cluster. The default is bad weather; `NO_FAULTS` is none."""

    lost: float = 0.03
    """The share of messages that are lost, requests and answers alike."""
    late: float = 0.05
    """The share of messages that are late, by up to ``latest`` seconds."""
    latest: float = 12.0
    doubled: float = 0.03
    """The share of messages that come twice, the second time late."""
    cuts: float = 20.0
    """Mean seconds between two cuts of the connection of an instance."""
    kills: float = 40.0
    """Mean seconds between two kills of an instance."""
    stops: float = 60.0
    """Mean seconds between two stops of an instance, each longer than a lease."""
    jumps: float = 90.0
    """Mean seconds between two jumps of the store's clock, by up to two leases."""


NO_FAULTS: Final = Faults(
    lost=0, late=0, doubled=0, cuts=math.inf, kills=math.inf, stops=math.inf, jumps=math.inf
)


class ClusterStore(Protocol):
    """The data that all instances of a cluster share."""

    def another(self) -> Any:
        """Return a `trio_lanes.durable.Store` over these data for one connection, not open.

        Its attribute ``instance`` is the id of the incarnation that makes the next call.
        """

    def jump(self, seconds: float) -> None:
        """Set the clock of the store ahead."""


@final
class _End:
    """One end of a connection."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._arrived, self._inbox = trio.open_memory_channel[str](math.inf)
        self.other: _End | None = None
        self.cut: bool = False

    async def send(self, message: str) -> None:
        if self.cut:
            raise trio.BrokenResourceError
        assert self.other is not None
        self._wire.carry(message, self.other)
        await trio.lowlevel.checkpoint()

    async def receive(self) -> str:
        return await self._inbox.receive()

    def arrive(self, message: str) -> None:
        if not self.cut:
            self._arrived.send_nowait(message)

    def close(self) -> None:
        if not self.cut:
            self.cut = True
            self._arrived.close()


@final
class _Wire:
    """The connections of one instance, and what goes wrong with them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ends: list[_End] = []
        self._held_until = -math.inf
        self.dead: bool = False

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Link]:
        await trio.lowlevel.checkpoint()
        client, server = _End(self), _End(self)
        client.other, server.other = server, client
        self._ends += [client, server]
        self._cluster.nursery.start_soon(self._serve, server)
        try:
            yield client
        finally:
            client.close()
            # requests on their way arrive, though no task waits for their answers
            self._cluster.later(self._cluster.faults.latest, server.close)

    async def _serve(self, end: _End) -> None:
        try:
            await serve(end, self._cluster.store.another())
        finally:
            end.close()
            assert end.other is not None
            end.other.close()

    def carry(self, message: str, to: _End) -> None:
        """Let a message arrive now, later, twice or never."""
        cluster, faults, chance = self._cluster, self._cluster.faults, self._cluster.random.random
        if self.dead or chance() < faults.lost:
            return
        copies = 2 if chance() < faults.doubled else 1
        for copy in range(copies):
            delay = max(0.0, self._held_until - trio.current_time())
            if copy or chance() < faults.late:
                delay += chance() * faults.latest
            if delay:
                cluster.later(delay, to.arrive, message)
            else:
                to.arrive(message)

    def cut(self) -> None:
        """Cut all connections; the server hears of it later."""
        self._ends = [end for end in self._ends if not end.cut]
        for end in self._ends:
            self._cluster.later(self._cluster.random.random() * 5, end.close)

    def hold(self, seconds: float) -> None:
        """Hold up all messages for a time."""
        self._held_until = trio.current_time() + seconds

    def kill(self) -> None:
        """Let nothing arrive any more."""
        self.dead = True
        for end in self._ends:
            end.close()


@final
class Cluster:
    """Durable lanes on several instances, over one store. Only `open_cluster` makes one.

    Attributes:
      lanes: lanes with ``worker=False`` that submit and inspect, over a faulty connection too.
      store: the store of all instances.
      random: decides on all faults.
      faults: how much goes wrong now.
      trusted_from: after a jump of the store's clock, runs that began before this time may overlap
        others until their instances hear that they have lost their leases.
    """

    lanes: DurableLanes

    def __init__(
        self,
        handlers: Mapping[str, Callable[[Any], Awaitable[Any]]],
        limits: Any,
        options: dict[str, Any],
        seed: int,
        faults: Faults,
        nursery: trio.Nursery,
        store: ClusterStore,
    ) -> None:
        self.store: Final = store
        self.random: Final = random.Random(seed)
        self.faults: Faults = faults
        self.nursery: Final = nursery
        self._handlers: Final = handlers
        self._limits: Final = limits
        self._options: Final = options
        self._lease: Final[float] = options.setdefault("lease_ttl", 30.0)
        self._instances: Final[dict[int, tuple[_Wire, trio.CancelScope]]] = {}
        self._opened: Final[dict[int, DurableLanes]] = {}
        self._faulty = trio.CancelScope()
        self.trusted_from: float = -math.inf

    def client(self, wire: _Wire) -> ServedStoreClient:
        return ServedStoreClient(wire.connect, name="the cluster's store")

    def later(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        """Do something after a time, if the cluster is still open."""

        async def wait() -> None:
            await trio.sleep(seconds)
            act(*args)

        self.nursery.start_soon(wait)

    # ---- instances

    async def keep(self, number: int) -> None:
        """Keep an instance alive: when it is killed or fails, a new one takes its place."""
        while True:
            wire = _Wire(self)
            with trio.CancelScope() as life:
                self._instances[number] = wire, life
                try:
                    async with open_durable_lanes(
                        self.client(wire), self._handlers, self._limits, **self._options
                    ) as lanes:
                        self._opened[number] = lanes
                        await trio.sleep_forever()
                except* StoreUnavailableError:
                    pass  # it could not be opened in time
            wire.kill()
            await trio.sleep(self.random.random() * 5)

    def lanes_of(self, run: DurableRun) -> DurableLanes:
        """Return the lanes of the instance that runs a job, for locks and quotas."""
        return next(lanes for lanes in self._opened.values() if lanes._worker is run._worker)

    def kill(self, number: int) -> None:
        """Kill an instance, as ``kill -9`` does."""
        wire, life = self._instances[number]
        wire.kill()
        life.cancel()

    def stop(self, number: int, seconds: float) -> None:
        """Let nothing of an instance arrive for a time, nor anything arrive there."""
        self._instances[number][0].hold(seconds)

    def jump(self, seconds: float) -> None:
        """Set the clock of the store ahead: leases are over before their instances know it."""
        self.store.jump(seconds)
        self.trusted_from = trio.current_time() + self._lease

    # ---- faults

    async def go_wrong(self) -> None:
        """Cut, kill, stop and jump at random, until `end_faults`."""
        chance, faults = self.random, self.faults
        with self._faulty:
            async with trio.open_nursery() as nursery:
                for number in self._instances:
                    nursery.start_soon(
                        self._often, faults.cuts, lambda n=number: self._instances[n][0].cut()
                    )
                    nursery.start_soon(self._often, faults.kills, lambda n=number: self.kill(n))
                    nursery.start_soon(
                        self._often,
                        faults.stops,
                        lambda n=number: self.stop(n, self._lease * (0.5 + chance.random())),
                    )
                nursery.start_soon(
                    self._often,
                    faults.jumps,
                    lambda: self.jump(chance.random() * 2 * self._lease),
                )

    async def _often(self, mean: float, act: Callable[[], None]) -> None:
        while mean < math.inf:
            await trio.sleep(self.random.expovariate(1 / mean))
            act()

    def end_faults(self) -> None:
        """Let nothing go wrong from now on."""
        self._faulty.cancel()
        self.faults = NO_FAULTS


@asynccontextmanager
async def open_cluster(
    handlers: Mapping[str, Callable[[Any], Awaitable[Any]]],
    lanes: Any = None,
    *,
    instances: int = 3,
    seed: int = 0,
    faults: Faults = Faults(),  # frozen
    store: ClusterStore | None = None,
    **options: Any,
) -> AsyncIterator[Cluster]:
    """Open durable lanes on several instances in this Trio run, over faulty connections.

    ::

        async def greet(name):
            await trio.sleep(1)
            return f"hello, {name}"

        async with open_cluster({"greet": greet}, {"main": 4}, seed=7) as cluster:
            jobs = [await cluster.lanes.submit("greet", n, key=f"{n}") for n in range(9)]
            await trio.sleep(120)  # cuts, kills, stops, lost messages
            cluster.end_faults()
            assert await jobs[8].wait() == "hello, 8"

    Use it with `trio.testing.MockClock`. Handlers run in this process: when their instance is
    killed they are cancelled, which is the only way in which a kill can reach them.

    Args:
      handlers, lanes, options: the arguments of `open_durable_lanes` for each instance.
      instances: how many instances work; besides them, ``Cluster.lanes`` only asks.
      seed: of all faults.
      faults: how much goes wrong.
      store: the data that the instances share, whose time is Trio's; by default a
        `trio_lanes.durable.MemoryStore`.
    """
    async with trio.open_nursery() as nursery:
        limits = {"main": 4} if lanes is None else lanes
        shared = MemoryStore() if store is None else store
        cluster = Cluster(handlers, limits, options, seed, faults, nursery, shared)
        for number in range(instances):
            nursery.start_soon(cluster.keep, number)
        while len(cluster._instances) < instances:
            await trio.lowlevel.checkpoint()
        faulty, cluster.faults = cluster.faults, NO_FAULTS
        asking = open_durable_lanes(
            cluster.client(_Wire(cluster)), handlers, limits, worker=False, **options
        )
        async with asking as cluster.lanes:
            cluster.faults = faulty
            nursery.start_soon(cluster.go_wrong)
            yield cluster
            cluster.end_faults()
        nursery.cancel_scope.cancel()
