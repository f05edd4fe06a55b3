"""The same with lanes."""

import trio

from trio_lanes import open_lanes


async def answer(user: str, text: str) -> None:
    await trio.sleep(1)  # a model thinks
    print(f"{user}: {text}")


async def main() -> None:
    async with open_lanes({"main": 4}) as lanes:
        for text in ("one", "two", "three"):
            lanes.submit_nowait(answer, "ann", text, session="ann")


if __name__ == "__main__":
    trio.run(main)
