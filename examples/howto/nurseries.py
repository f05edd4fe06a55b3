"""A batch of downloads that belong together: all of them, or none."""

import trio

from trio_lanes import LaneNursery, Lanes, current_job, open_lanes


async def fetch(page: str, seconds: float = 1) -> str:
    try:
        await trio.sleep(seconds)
    except trio.Cancelled:
        print(f"  {page} is cancelled")
        raise
    if page == "broken":
        raise ValueError(page)
    print(f"  {page} is there")
    return page


async def crawl(jobs: LaneNursery, page: str, depth: int) -> None:
    await fetch(page)
    if depth:
        for number in (1, 2):
            inner = f"{page}/{number}"
            jobs.start_soon(crawl, jobs, inner, depth - 1, session="example.org")


async def turn(lanes: Lanes) -> str:
    """A job that lends its slot to its children, and waits for them."""
    job = current_job()
    assert job is not None
    async with job.yield_slot(), lanes.open_nursery() as jobs:
        pages = [jobs.submit_nowait(fetch, page) for page in ("left", "right")]
    return " and ".join([await page.wait() for page in pages])


async def main() -> None:
    async with open_lanes({"main": 2}) as lanes:
        print("in the order of the calls, and waited for:")
        async with lanes.open_nursery() as jobs:
            for page in ("one", "two", "three"):
                jobs.start_soon(fetch, page, session="example.org")

        print("the failure of one:")
        try:
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(fetch, "slow", 60)
                jobs.start_soon(fetch, "broken", session="example.org")
                waits = jobs.submit_nowait(fetch, "never asked for", delay=30)
        except* ValueError as group:
            print(f"  {group.exceptions!r}, {waits.name} {waits.state.name}")

        print("a limit for all of them:")
        with trio.move_on_after(5) as scope:
            async with lanes.open_nursery() as jobs:
                jobs.start_soon(fetch, "quick")
                jobs.start_soon(fetch, "slow", 60)
        print(f"  out of time: {scope.cancelled_caught}")

        print("withdraw what waits:")
        async with lanes.open_nursery() as jobs:
            for number in range(5):
                jobs.start_soon(fetch, f"result {number}", number + 1)
            await trio.sleep(1.5)
            print(f"  {jobs.clear()} withdrawn")

        print("children that submit children:")
        async with lanes.open_nursery() as jobs:
            jobs.start_soon(crawl, jobs, "home", 1)

        print("inside a job:")
        lanes.lane("main").concurrency = 1
        print(" ", await lanes.run(turn, lanes, session="alice"))


if __name__ == "__main__":
    trio.run(main)
