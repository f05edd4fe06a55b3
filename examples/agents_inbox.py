"""What each mode of an inbox does with messages that come while a turn is active."""

from __future__ import annotations

import trio

from trio_lanes import Lanes, open_lanes
from trio_lanes.agents import Inbox, Turn, WhenBusy


async def answer(turn: Turn) -> str:
    """A turn of three steps, of a second each; steers are heard between them."""
    heard = [*turn.messages]
    for _ in range(3):
        await trio.sleep(1)  # a model thinks
        heard += turn.take()
    return " + ".join(heard)


async def show(lanes: Lanes, mode: WhenBusy) -> None:
    inbox = Inbox(lanes, f"in mode {mode}", answer)
    receipts = [inbox.post("one")]
    await trio.sleep(0.5)
    for text in ("two", "three"):
        receipts.append(inbox.post(text, when_busy=mode))
    print(f"{mode}:")
    for receipt in receipts:
        settled = await receipt.settled()
        result = "" if settled.result is None else f": {settled.result}"
        print(f"  {receipt.message} {settled.kind}{result}")


async def main() -> None:
    async with open_lanes() as lanes:
        for mode in WhenBusy:
            await show(lanes, mode)


if __name__ == "__main__":
    trio.run(main)
