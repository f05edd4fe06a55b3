"""Stopping a session: what waits is cancelled first, then the turn; later messages run."""

from __future__ import annotations

import trio

from trio_lanes import open_lanes
from trio_lanes.agents import Inbox, Turn


async def answer(turn: Turn) -> str:
    start = trio.current_time()
    try:
        await trio.sleep(10)  # a model writes
    except trio.Cancelled:
        print(f"the answer was cut short after {trio.current_time() - start:.1f} s")
        raise
    return f"the answer to {turn.messages[0]!r}"


async def main() -> None:
    async with open_lanes() as lanes:
        inbox = Inbox(lanes, "alice", answer)
        receipts = [inbox.post("write me a novel"), inbox.post("make it longer")]
        await trio.sleep(2)
        await inbox.abort("the user pressed stop")
        receipts.append(inbox.post("a haiku, then"))
        for receipt in receipts:
            settled = await receipt.settled()
            print(receipt.message, "-", settled.kind, settled.result or settled.error)


if __name__ == "__main__":
    trio.run(main)
