"""A handler by name, jobs in a store, one at a time for each customer, retries."""

from typing import Any

import trio

from trio_lanes.durable import RetryPolicy, SqliteStore, open_durable_lanes


async def ship(order: Any) -> None:
    print(f"ship order {order['number']} of {order['customer']}")


async def main() -> None:
    store, handlers = SqliteStore("jobs.db"), {"ship": ship}
    async with open_durable_lanes(
        store, handlers, {"main": 8}, retry=RetryPolicy(max_attempts=5)
    ) as lanes:
        orders = [{"number": number, "customer": "acme"} for number in (1, 2)]
        jobs = [
            await lanes.submit("ship", order, session="acme", key=f"order-{order['number']}")
            for order in orders
        ]
        for job in jobs:
            await job.wait()


if __name__ == "__main__":
    trio.run(main)
