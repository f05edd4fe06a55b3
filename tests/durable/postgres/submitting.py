"""A process that submits jobs, ten at a time, for as long as it lives: DSN, NAMESPACE."""

import sys

import trio

from trio_lanes.durable import DurableLanes, PostgresStore, StoreError, open_durable_lanes

IN_FLIGHT = 10


async def submit(lanes: DurableLanes, n: int) -> None:
    while True:
        try:
            await lanes.submit("work", n)
        except StoreError:
            await trio.sleep(0.1)


async def main(dsn: str, namespace: str) -> None:
    store = PostgresStore(dsn, namespace=namespace)
    async with open_durable_lanes(store, {}, worker=False) as lanes, trio.open_nursery() as nursery:
        for n in range(IN_FLIGHT):
            nursery.start_soon(submit, lanes, n)
        print("ready", flush=True)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])
