"""The verbs that submit a job."""

import trio

from trio_lanes import open_lanes


async def answer(text: str) -> str:
    await trio.sleep(1)
    if not text:
        raise ValueError("nothing was asked")
    return f"an answer to {text!r}"


async def note(text: str) -> None:
    print("noted:", text)


async def main() -> None:
    async with open_lanes({"main": 2}) as lanes:
        print(await lanes.run(answer, "Why?"))  # wait for the result

        job = await lanes.submit(answer, "How?")  # go on, and ask later
        lanes.start_soon(note, "somebody asked")  # fire and forget
        print(await job.wait())

        failing = lanes.submit_nowait(answer, "")
        try:
            await failing.wait()
        except ValueError as error:
            print("failed:", error)


if __name__ == "__main__":
    trio.run(main)
