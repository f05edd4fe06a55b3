"""Step 3: handles. One answer fails, one never comes; the others do, in order."""

import trio

from trio_lanes import JobTimeoutError, open_lanes


async def answer(text: str) -> str:
    if text == "What is 1/0?":
        raise ZeroDivisionError("it has no answer")
    if text == "Are you there?":
        await trio.sleep_forever()  # a model that hangs
    await trio.sleep(1)
    return f"an answer to {text!r}"


async def main() -> None:
    questions = ["Why?", "What is 1/0?", "Are you there?", "How?"]
    async with open_lanes({"main": 2}) as lanes:
        jobs = [
            lanes.submit_nowait(answer, question, session="alice", timeout=10)
            for question in questions
        ]
        for job in jobs:
            try:
                print(await job.wait())
            except (ZeroDivisionError, JobTimeoutError) as error:
                print("sorry:", error)


if __name__ == "__main__":
    trio.run(main)
