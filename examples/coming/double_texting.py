"""A second message while the first is being answered: refused, queued, steered or instead."""

import trio

from trio_lanes import open_lanes
from trio_lanes.agents import Inbox, Turn, WhenBusy


async def answer(turn: Turn) -> str:
    await trio.sleep(1)  # a model thinks
    return f"answer to {' + '.join([*turn.messages, *turn.take()])}"


async def main() -> None:
    async with open_lanes() as lanes:
        for when_busy in (WhenBusy.REJECT, WhenBusy.FOLLOWUP, WhenBusy.STEER, WhenBusy.INTERRUPT):
            inbox = Inbox(lanes, f"thread-{when_busy}", answer)
            first = inbox.post("one")
            await trio.sleep(0.5)
            second = inbox.post("two", when_busy=when_busy)
            ends = [await receipt.settled() for receipt in (first, second)]
            print(f"{when_busy}:", ", ".join(str(end.result or end.kind) for end in ends))


if __name__ == "__main__":
    trio.run(main)
