"""A provider answers 429: wait as long as it asks, then go on with that very turn first."""

import trio

from trio_lanes import Lanes, current_job, open_lanes, retry_after

statuses = iter([429, 200, 200, 200])  # what the provider is going to answer


async def post(question: str) -> tuple[int, dict[str, str]]:
    await trio.sleep(1)
    status = next(statuses)
    return status, {"Retry-After": "7"} if status == 429 else {}


async def ask(lanes: Lanes, question: str) -> None:
    job = current_job()
    assert job is not None
    status, headers = await post(question)
    while status == 429:
        lanes.pause_for(job.lane, retry_after(headers) or 5)
        await job.readmit()  # gives its slot back; returns when the lane would start it again
        status, headers = await post(question)
    print(f"{question} answered after {trio.current_time() - job.submitted_at:.0f} s")


async def main() -> None:
    async with open_lanes({"main": 1}) as lanes:
        for number in range(1, 4):
            lanes.start_soon(ask, lanes, f"question {number}")


if __name__ == "__main__":
    trio.run(main)
