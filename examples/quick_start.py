import trio

from trio_lanes import open_lanes

running: list[str] = []


async def answer(user: str, text: str) -> None:
    running.append(user)
    await trio.sleep(len(text) / 10)  # a model thinks
    print(f"{user}: {text:4} | running: {sorted(running)}")
    running.remove(user)


async def main() -> None:
    async with open_lanes({"main": 2}) as lanes:
        for user, text in [("ann", "one"), ("ann", "two"), ("bob", "hi"), ("eve", "hey")]:
            lanes.submit_nowait(answer, user, text, session=user)


if __name__ == "__main__":
    trio.run(main)
