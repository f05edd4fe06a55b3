"""Work through a table: so many rows at a time, the rows of each customer in order."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from typing import Any

import trio

from trio_lanes import open_lanes

Row = tuple[int, str, str]  # id, customer, what

ROWS: list[Row] = [
    (1, "acme", "bolts"),
    (2, "acme", "nuts"),
    (3, "globex", "wire"),
    (4, "acme", "cogs"),
    (5, "initech", "paper"),
]


class Orders:
    """A table of orders. SQLite blocks, so it is asked in threads, in one at a time."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._turn = trio.CapacityLimiter(1)
        self._db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer, what, done)")
        self._db.executemany("INSERT INTO orders VALUES (?, ?, ?, 0)", ROWS)

    def close(self) -> None:
        self._db.close()

    async def ask(self, query: str, *values: object) -> list[Any]:
        def in_thread() -> list[Any]:
            return self._db.execute(query, values).fetchall()

        return await trio.to_thread.run_sync(in_thread, limiter=self._turn)

    async def open_ones(self) -> AsyncIterator[Row]:
        """What is to be done, three rows a query, as they are wanted."""
        query = (
            "SELECT id, customer, what FROM orders WHERE NOT done AND id > ? ORDER BY id LIMIT 3"
        )
        last = 0
        while rows := await self.ask(query, last):
            for row in rows:
                yield row
                last = row[0]


async def ship(orders: Orders, row: Row) -> str:
    number, customer, what = row
    await orders.ask("UPDATE orders SET done = 1 WHERE id = ?", number)
    return f"{what} for {customer}"


async def main() -> None:
    with closing(Orders()) as orders:
        work, rows = partial(ship, orders), orders.open_ones()
        async with (
            open_lanes({"main": 2}) as lanes,
            lanes.map(work, rows, session=lambda row: row[1]) as results,
        ):
            async for shipped in results:
                print(shipped)
        ((left,),) = await orders.ask("SELECT count(*) FROM orders WHERE NOT done")
        print(left, "left")


if __name__ == "__main__":
    trio.run(main)
