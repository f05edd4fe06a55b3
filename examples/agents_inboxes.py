"""A table of inboxes: one message edited, one withdrawn, one turn rolled back, nothing left."""

from __future__ import annotations

import trio

from trio_lanes import open_lanes
from trio_lanes.agents import Conversation, Inboxes, MemoryTranscript, Turn, WhenBusy

store = MemoryTranscript()


async def answer(turn: Turn) -> str:
    async with Conversation(turn.session, store).turn(*turn.messages) as exchange:
        try:
            await trio.sleep(1)  # a model thinks
            await exchange.finish(f"an answer to {turn.messages[0]!r}")
        finally:
            if turn.rollback_called:
                exchange.rollback()
    return f"answered {turn.messages[0]!r}"


async def main() -> None:
    async with open_lanes() as lanes:
        inboxes = Inboxes(lanes, answer, when_busy=WhenBusy.FOLLOWUP)
        receipts = [inboxes.post("alice", text) for text in ("helo", "and bob?", "neither")]
        await trio.sleep(0.5)
        print("before 'neither':", receipts[2].position)
        receipts[1].edit("and Bob?")
        receipts[2].cancel("a slip")
        receipts.append(inboxes.post("alice", "hello", when_busy=WhenBusy.ROLLBACK))
        for receipt in receipts:
            settled = await receipt.settled()
            print(receipt.message, "-", settled.kind, settled.result or settled.error)
        for message in await Conversation("alice", store).messages():
            print(f"{message.role}: {message.content}")
        print("busy sessions:", inboxes.sessions)


if __name__ == "__main__":
    trio.run(main)
