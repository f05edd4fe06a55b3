"""A worker for the tests that kill it: each run is a line in a file."""

import os
import sys
from typing import Any

import trio

from trio_lanes.durable import PostgresStore, current_job, open_durable_lanes


async def main(dsn: str, namespace: str, log: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def work(payload: Any) -> None:
        run = current_job()
        os.write(file, f"{run.session} {payload} {run.fence}\n".encode())
        await trio.sleep(0.1)

    store = PostgresStore(dsn, namespace=namespace, patience=2)
    handlers, lanes = {"work": work}, {"main": 6}
    async with open_durable_lanes(store, handlers, lanes, lease_ttl=2, max_crashes=1000):
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
