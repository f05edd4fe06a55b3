"""A lagging replica takes over: what runs and what is locked is soon agreed upon again."""

import random

import pytest
import trio

from tests.durable.older import agree_again
from tests.support.chaos import times
from trio_lanes.durable import ValkeyStore

from .proxy import Proxy
from .server import Server, programs

pytestmark = [pytest.mark.real_processes, pytest.mark.needs("Valkey")]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(times(2)))
async def test_after_a_lagging_replica_took_over_store_and_workers_agree_within_a_lease(
    own_server: Server, namespace: str, seed: int
) -> None:
    dice = random.Random(seed)
    replica = Server(programs()["valkey"], replicaof=f"127.0.0.1 {own_server.port}")
    proxy = Proxy(own_server.port)

    async def fail_over() -> None:
        while not replica.ask("EXISTS", f"{{{namespace}}}:meta"):  # noqa: ASYNC110 - a server
            await trio.sleep(0.02)
        await trio.sleep(dice.random())
        replica.ask("REPLICAOF", "NO", "ONE")  # from now on it is behind
        await trio.sleep(0.2 + 2 * dice.random())
        proxy.port = replica.port
        proxy.cut()

    try:
        own_server.ask("CONFIG", "SET", "repl-diskless-sync-delay", "0")
        await trio.to_thread.run_sync(replica.start)
        async with trio.open_nursery() as nursery:
            await nursery.start(proxy.serve)
            make = lambda: ValkeyStore(proxy.url, namespace=namespace)  # noqa: E731
            print(await agree_again(make, fail_over, seed))
            nursery.cancel_scope.cancel()
    finally:
        replica.remove()
