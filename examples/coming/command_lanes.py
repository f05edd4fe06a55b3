"""Command lanes of an agent gateway: the lane of a session, then the lane of a kind of work."""

import trio

from trio_lanes import Lanes, open_lanes


async def helper(task: str) -> str:
    await trio.sleep(1)
    return f"{task}, done"


async def turn(lanes: Lanes, text: str) -> None:
    print(f"{text}: {await lanes.run(helper, 'search', lane='subagent')}")


async def main() -> None:
    async with open_lanes({"main": 4, "cron": 1, "subagent": 8}) as lanes:
        for text in ("one", "two"):
            lanes.start_soon(turn, lanes, text, session="chat:42")
        await trio.sleep(0.5)
        print(f"cleared: {lanes.session('chat:42').clear()}")


if __name__ == "__main__":
    trio.run(main)
