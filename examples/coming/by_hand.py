"""A lock for each user and a limiter: the order depends on the start of tasks, and locks stay."""

from collections import defaultdict

import trio

locks: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)
limiter = trio.CapacityLimiter(4)


async def answer(user: str, text: str) -> None:
    await trio.sleep(1)  # a model thinks
    print(f"{user}: {text}")


async def handle(user: str, text: str) -> None:
    async with locks[user], limiter:
        await answer(user, text)


async def main() -> None:
    async with trio.open_nursery() as nursery:
        for text in ("one", "two", "three"):
            nursery.start_soon(handle, "ann", text)
    print(f"locks that stay: {len(locks)}")


if __name__ == "__main__":
    trio.run(main)
