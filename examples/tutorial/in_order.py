"""Step 2: sessions. A user's messages are answered in order, one at a time."""

import trio

from trio_lanes import open_lanes


async def answer(user: str, text: str) -> None:
    print(f"{user} asks: {text}")
    await trio.sleep(1)
    print(f"{user} has an answer to: {text}")


async def main() -> None:
    async with open_lanes({"main": 2}) as lanes:
        lanes.start_soon(answer, "alice", "Why?", session="alice")
        lanes.start_soon(answer, "alice", "How?", session="alice")
        await trio.sleep(0.5)
        lanes.start_soon(answer, "bob", "Who?", session="bob")


if __name__ == "__main__":
    trio.run(main)
