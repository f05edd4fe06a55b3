"""Step 1: a lane that answers two at a time."""

import trio

from trio_lanes import open_lanes


async def answer(text: str) -> str:
    await trio.sleep(1)  # a model thinks
    return f"{text}? Let me think."


async def main() -> None:
    async with open_lanes({"main": 2}) as lanes:
        print(await lanes.run(answer, "Why"))


if __name__ == "__main__":
    trio.run(main)
