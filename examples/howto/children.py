"""A job that submits jobs of its own, and waits for all of them."""

from typing import Any

import trio

from trio_lanes.durable import MemoryStore, Retry, current_job, open_durable_lanes


async def page(url: str) -> int:
    print(f"fetches {url}")
    return len(url)


async def crawl(urls: list[str]) -> int:
    run = current_job()
    assert run is not None
    async with run.children() as jobs:
        for url in urls:
            await jobs.submit("page", url)
        sizes = await jobs.wait_all()
    print("attempt {}: {} of {} ended".format(run.attempt, *run.children_ended))
    if run.attempt == 1:
        raise Retry(after=0)  # the next attempt fetches nothing again
    return sum(sizes)


async def main() -> None:
    handlers: dict[str, Any] = {"crawl": crawl, "page": page}
    async with open_durable_lanes(MemoryStore(), handlers, {"main": 1}) as lanes:
        job = await lanes.submit("crawl", ["/", "/about"])
        print(await job.wait())


if __name__ == "__main__":
    trio.run(main)
