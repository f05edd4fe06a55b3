"""The queue of p-queue: concurrency, a rate, a timeout, a priority, pause, waiting until idle."""

import trio

from trio_lanes import LaneConfig, RateLimit, open_lanes


async def fetch(url: str) -> str:
    await trio.sleep(0.1)
    return f"{url} fetched"


async def main() -> None:
    queue = LaneConfig(concurrency=2, rate=RateLimit(10, per=1), timeout=30)
    async with open_lanes({"main": queue}) as lanes:
        print(await lanes.run(fetch, "a", priority=1))
        lanes.pause("main")
        job = lanes.submit_nowait(fetch, "b")
        print(f"waiting: {lanes.lane('main').waiting}")
        lanes.resume("main")
        await lanes.wait_idle()
        print(await job.wait())


if __name__ == "__main__":
    trio.run(main)
