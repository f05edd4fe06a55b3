"""A tenant with a lot to do does not keep the others waiting: owners take turns."""

import trio

from trio_lanes import LaneConfig, open_lanes


async def index(document: str) -> None:
    print(document)
    await trio.sleep(1)


async def main() -> None:
    async with open_lanes({"main": LaneConfig(concurrency=1, fair=True)}) as lanes:
        for number in range(1, 5):
            lanes.start_soon(index, f"acme {number}", owner="acme")
        lanes.start_soon(index, "globex 1", owner="globex")
        lanes.start_soon(index, "initech 1", owner="initech")


if __name__ == "__main__":
    trio.run(main)
