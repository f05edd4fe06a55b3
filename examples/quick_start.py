import trio

from trio_lanes import open_lanes


async def answer(user: str, question: str) -> None:
    await trio.sleep(len(question) / 10)  # a model thinks
    print(f"{user}: {question}, answered")


async def main() -> None:
    questions = [("ann", "one"), ("ann", "two"), ("bob", "three"), ("eve", "four")]
    async with open_lanes({"main": 2}) as lanes:  # two at once, over all users
        for user, question in questions:
            lanes.submit_nowait(answer, user, question, session=user)  # each in order


if __name__ == "__main__":
    trio.run(main)
