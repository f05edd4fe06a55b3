"""An inbox in asyncio: a new message ends the turn that answers an older one, and its stream."""

import asyncio
from collections.abc import AsyncIterator

from trio_lanes.aio import open_lanes
from trio_lanes.aio.agents import Inbox, Turn, WhenBusy


async def model(question: str) -> AsyncIterator[str]:
    """In the place of a client of asyncio's: its connection is closed by a cancellation."""
    try:
        for word in f"the answer to {question}".split():
            await asyncio.sleep(0.1)
            yield word
    finally:
        print("the stream is closed")


async def handler(turn: Turn) -> str:
    return " ".join([word async for word in model(turn.messages[0])])


async def main() -> None:
    async with open_lanes({"main": 4}) as lanes:
        inbox = Inbox(lanes, "alice", handler)
        first = inbox.post("a long question")
        await asyncio.sleep(0.25)
        second = inbox.post("stop, another one", when_busy=WhenBusy.INTERRUPT)
        for receipt in (first, second):
            settled = await receipt.settled()
            print(settled.kind, settled.result)


if __name__ == "__main__":
    asyncio.run(main())
