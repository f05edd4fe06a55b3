"""Change lanes while they work: all of it, or nothing."""

import trio

from trio_lanes import LaneConfig, RateLimit, open_lanes


async def work() -> None:
    await trio.sleep(1)


async def main() -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        for _ in range(5):
            lanes.start_soon(work)
        print(lanes.lane("main"))

        lanes.configure({"main": 3, "batch": LaneConfig(rate=RateLimit(10)), "cron": None})
        print(lanes.lane("main"))
        print("lanes:", ", ".join(lanes.statistics().lanes))

        try:
            lanes.configure({"main": 8, "batch": -1})
        except ValueError as error:
            print(error)
        print("main still has", lanes.lane("main").concurrency)


if __name__ == "__main__":
    trio.run(main)
