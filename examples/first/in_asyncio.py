import asyncio

from trio_lanes.aio import open_lanes


async def answer(user: str, question: str) -> None:
    await asyncio.sleep(len(question) / 10)  # a model thinks
    print(f"{user}: {question}, answered")


async def main() -> None:
    questions = [("ann", "one"), ("ann", "two"), ("bob", "three"), ("eve", "four")]
    async with open_lanes({"main": 2}) as lanes:
        for user, question in questions:
            lanes.submit_nowait(answer, user, question, session=user)


if __name__ == "__main__":
    asyncio.run(main())
