"""Stop, and go on: the answer ends, and what waits is held until a person releases it."""

from __future__ import annotations

import trio

from trio_lanes import open_lanes
from trio_lanes.agents import Inbox, Turn, WhenBusy


async def answer(turn: Turn) -> str:
    await trio.sleep(10)  # a model writes
    return f"the answer to {turn.messages[0]!r}"


async def main() -> None:
    async with open_lanes() as lanes:
        inbox = Inbox(lanes, "alice", answer)
        novel = inbox.post("write me a novel")
        longer = inbox.post("then a longer one", when_busy=WhenBusy.FOLLOWUP)
        await trio.sleep(2)
        await inbox.stop("hold", reason="the user pressed stop")
        haiku = inbox.post("first a haiku", when_busy=WhenBusy.INTERRUPT)
        for receipt in (novel, longer, haiku):
            print(receipt.message, "-", "held" if receipt.is_held else receipt.state)
        inbox.release()  # the user pressed "go on"
        for receipt in (haiku, longer):
            print(receipt.message, "-", (await receipt.settled()).result)


if __name__ == "__main__":
    trio.run(main)
