"""Each store of the library is a `Store` to mypy and pyright, through both doors: it is not run."""

# pyright: strict

from trio_lanes import aio
from trio_lanes.durable import (
    MemoryStore,
    PostgresStore,
    SqliteStore,
    Store,
    ValkeyStore,
    open_durable_lanes,
)


async def handle(payload: object) -> object:
    return payload


async def opened() -> None:
    async with open_durable_lanes(MemoryStore(), {"handle": handle}) as lanes:
        await lanes.submit("handle", 1)
    async with aio.open_durable_lanes(SqliteStore("jobs.db"), {"handle": handle}) as lanes:
        await lanes.submit("handle", 1)


stores: list[Store] = [
    MemoryStore(),
    SqliteStore("jobs.db"),
    PostgresStore("postgresql://"),
    ValkeyStore("valkey://"),
]
