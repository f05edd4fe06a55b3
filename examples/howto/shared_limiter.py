"""Lanes and other code of the application use one limiter: ten connections for all of it."""

import trio

from trio_lanes import LaneConfig, open_lanes


async def query(who: str) -> None:
    await trio.sleep(1)
    print(f"{who} has its rows")


async def main() -> None:
    connections = trio.CapacityLimiter(1)
    lane = LaneConfig(limiter=connections)
    async with open_lanes({"main": lane}) as lanes:
        async with connections:
            lanes.start_soon(query, "the job")
            await query("the application")


if __name__ == "__main__":
    trio.run(main)
