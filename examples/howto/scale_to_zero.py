"""How many workers there should be, from none on."""

import math

import trio

from trio_lanes.durable import DurableLanes, MemoryStore, open_durable_lanes

MOST = 10  # workers
EACH = 4  # jobs that one of them runs at once
LOOK = 30.0  # seconds between two looks


async def wanted(lanes: DurableLanes) -> int:
    """Return how many workers what waits, runs or is due has use for."""
    now = await lanes.statistics()
    jobs = sum(
        lane.waiting + lane.running + lane.due for lane in now.lanes.values() if not lane.paused
    )
    return min(MOST, math.ceil(jobs / EACH))


async def main() -> None:
    began = trio.current_time()
    async with open_durable_lanes(MemoryStore(), {}, worker=False) as lanes:
        for _ in range(6):
            await lanes.submit("letter", delay=100)
        print(f"{(await lanes.statistics()).parked} jobs are parked: {await wanted(lanes)} workers")
        workers = 0
        while not workers:
            await trio.sleep(LOOK)
            workers = await wanted(lanes)
        print(f"after {trio.current_time() - began:.0f} s: {workers} workers")


if __name__ == "__main__":
    trio.run(main)
