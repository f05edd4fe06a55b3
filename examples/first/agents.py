import trio

from trio_lanes import open_lanes
from trio_lanes.agents import Inbox, Turn, WhenBusy


async def answer(turn: Turn) -> str:
    await trio.sleep(1)  # a model thinks
    return f"{' + '.join([*turn.messages, *turn.take()])}, answered"


async def main() -> None:
    async with open_lanes({"main": 2}) as lanes:
        inbox = Inbox(lanes, "ann", answer)
        first = inbox.post("one")
        await trio.sleep(0.5)
        inbox.post("and two", when_busy=WhenBusy.STEER)  # into the turn that runs
        print((await first.settled()).result)


if __name__ == "__main__":
    trio.run(main)
