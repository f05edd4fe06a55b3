"""Around every body of a lane: try again, three times in all, inside the same slot."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from trio_lanes import Job, LaneConfig, open_lanes

failures = iter([OSError("connection reset"), OSError("connection reset")])


async def retried(job: Job[Any], body: Callable[[], Awaitable[str]]) -> str:
    for attempt in (1, 2):
        try:
            return await body()
        except OSError as error:
            print(f"{job.name}, attempt {attempt}: {error}")
            await trio.sleep(2**attempt)
    return await body()


async def fetch() -> str:
    failure = next(failures, None)
    if failure is not None:
        raise failure
    return "here it is"


async def main() -> None:
    async with open_lanes({"main": LaneConfig(concurrency=4, wrap=retried)}) as lanes:
        print(await lanes.run(fetch))


if __name__ == "__main__":
    trio.run(main)
