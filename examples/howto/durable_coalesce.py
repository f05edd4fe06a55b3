"""One job that waits for many submissions, and a job that is of no use when it comes too late."""

import trio

from trio_lanes import Coalesce
from trio_lanes.durable import JobExpiredError, MemoryStore, open_durable_lanes


async def main() -> None:
    began = trio.current_time()

    async def index(version: int) -> None:
        print(f"{trio.current_time() - began:.0f} s: index version {version}")
        await trio.sleep(3)

    async with open_durable_lanes(MemoryStore(), {"index": index}, {"main": 1}) as lanes:
        quiet = Coalesce("index docs", debounce=2.0, max_wait=10.0)
        for version in range(1, 101):
            job = await lanes.submit("index", version, coalesce=quiet)
        await trio.sleep(3)  # it runs
        late = await lanes.submit("index", 0, expires=1.0)
        try:
            await late.wait()
        except JobExpiredError:
            print(f"{trio.current_time() - began:.0f} s: too late")
        await job.wait()


if __name__ == "__main__":
    trio.run(main)
