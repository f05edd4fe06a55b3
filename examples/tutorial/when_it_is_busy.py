"""Step 4: bounds. When too much waits, the caller hears it; and who waits can change their mind."""

import trio

from trio_lanes import LaneClearedError, LaneConfig, LaneFullError, open_lanes


async def answer(text: str) -> str:
    await trio.sleep(1)
    return f"an answer to {text!r}"


async def main() -> None:
    lane = LaneConfig(concurrency=2, max_waiting=2)
    async with open_lanes({"main": lane}) as lanes:
        jobs = []
        for text in ("Why?", "How?", "When?", "Where?"):
            try:
                jobs.append(lanes.submit_nowait(answer, text, session="alice"))
            except LaneFullError as error:
                print(f"{text} Not now: {error}")

        lanes.clear("session:alice", reason="alice said stop")  # only what has not started
        for job in jobs:
            try:
                print(await job.wait())
            except LaneClearedError as error:
                print(error)


if __name__ == "__main__":
    trio.run(main)
