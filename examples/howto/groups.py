"""One provider key for three lanes: one budget, one rate, and one token kept for people."""

import trio

from trio_lanes import LaneGroup, RateLimit, open_lanes

KEY = LaneGroup(
    members=["main", "cron", "subagent"],
    concurrency=3,
    reserve={"main": 1},  # its siblings never take the last token
    rate=RateLimit(60, per=60, burst=10),
)


async def call(what: str) -> None:
    print(f"{what} begins")
    await trio.sleep(1)


async def main() -> None:
    lanes_of_it = {"main": 4, "cron": 1, "subagent": 8}
    async with open_lanes(lanes_of_it, groups={"key": KEY}) as lanes:
        jobs = [
            lanes.submit_nowait(call, f"subagent {number}", lane="subagent")
            for number in range(1, 4)
        ]
        await trio.sleep(0.5)
        (blocker,) = jobs[2].blocked_by()
        print("subagent 3 waits for:", blocker.kind)
        lanes.start_soon(call, "a person's turn")


if __name__ == "__main__":
    trio.run(main)
