"""What lanes do, in figures for Prometheus."""

import trio
from prometheus_client import CollectorRegistry, generate_latest

from trio_lanes import open_lanes
from trio_lanes.instruments.prometheus import PrometheusInstrument


async def turn(seconds: float) -> None:
    await trio.sleep(seconds)


def show(registry: CollectorRegistry) -> None:
    """Print some of what a scrape would get."""
    for line in generate_latest(registry).decode().splitlines():
        if line.startswith("trio_lanes_jobs_"):
            print(line)


async def main() -> None:
    registry = CollectorRegistry()  # left out: the one that prometheus_client serves
    async with open_lanes({"main": 1}, instruments=[PrometheusInstrument(registry)]) as lanes:
        for session in ("alice", "alice", "bob"):
            lanes.submit_nowait(turn, 1, session=session)
        lanes.submit_nowait(turn, 1, queue_timeout=0.5)
        await trio.sleep(1.5)
        show(registry)


if __name__ == "__main__":
    trio.run(main)
