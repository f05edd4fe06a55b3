"""What is in a store, in figures for Prometheus."""

import trio
from prometheus_client import CollectorRegistry, generate_latest

from trio_lanes.durable import MemoryStore, open_durable_lanes
from trio_lanes.instruments.prometheus import StoreCollector


async def letter(seconds: float) -> None:
    await trio.sleep(seconds)


def show(registry: CollectorRegistry) -> None:
    """Print some of what a scrape would get."""
    for line in generate_latest(registry).decode().splitlines():
        if line.startswith("trio_lanes_store_") and not line.endswith(" 0.0"):
            print(line)


async def main() -> None:
    registry = CollectorRegistry()  # left out: the one that prometheus_client serves
    async with open_durable_lanes(MemoryStore(), {"letter": letter}, {"main": 2}) as lanes:
        StoreCollector(lanes, registry=registry)
        for seconds in (1, 60, 60, 60):
            await lanes.submit("letter", seconds)
        await lanes.submit("letter", 1, delay=3600)
        await trio.sleep(40)
        show(registry)
        await lanes.clear("main")


if __name__ == "__main__":
    trio.run(main)
