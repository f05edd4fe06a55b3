"""Many senders, one worker each at a time, four in all; nothing is lost when one of them hangs.

Run it: every sender's events come out in order, though their handlers take random times.
"""

import random

import trio

from trio_lanes import JobTimeoutError, LaneConfig, LaneFullError, open_lanes

handled: list[tuple[str, int]] = []


async def handle(sender: str, number: int) -> None:
    if (sender, number) == ("initech", 2):
        await trio.sleep_forever()  # a peer that never answers
    await trio.sleep(random.uniform(0.01, 0.05))
    handled.append((sender, number))


async def main() -> None:
    async with open_lanes({"main": LaneConfig(concurrency=4, max_waiting=1_000)}) as lanes:
        jobs = {}
        for number in range(5):
            for sender in ("acme", "globex", "initech"):
                try:
                    job = lanes.submit_nowait(handle, sender, number, session=sender, timeout=1)
                except LaneFullError:
                    print("503, come again")  # a thousand wait already
                else:
                    jobs[sender, number] = job
        for event, job in jobs.items():
            try:
                await job.wait()
            except JobTimeoutError as error:
                print(*event, error)

    for sender in ("acme", "globex", "initech"):
        print(sender, [number for name, number in handled if name == sender])


if __name__ == "__main__":
    trio.run(main)
