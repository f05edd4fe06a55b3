"""A job publishes its answer piece by piece; a reader that is cut off resumes without a gap."""

from __future__ import annotations

from contextlib import aclosing

import trio

from trio_lanes import open_lanes
from trio_lanes.agents import Feed


async def answer(feed: Feed[str]) -> None:
    for word in ("Lanes", "keep", "the", "order."):
        await trio.sleep(1)  # a model writes
        feed.publish(word)
    feed.close()


async def main() -> None:
    feed: Feed[str] = Feed(keep=100)
    async with open_lanes() as lanes:
        lanes.submit_nowait(answer, feed, session="alice")
        last = -1
        with trio.move_on_after(2.5):  # the connection breaks
            async with aclosing(feed.read()) as items:
                async for last, word in items:
                    print(last, word)
        print(f"connected again, after {last}")
        async with aclosing(feed.read(last)) as items:
            async for last, word in items:
                print(last, word)


if __name__ == "__main__":
    trio.run(main)
