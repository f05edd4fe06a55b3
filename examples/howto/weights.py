"""Paying customers get more of the queue: the weights of owners."""

import trio

from trio_lanes import LaneConfig, open_lanes


async def answer(customer: str) -> None:
    print(customer)
    await trio.sleep(1)


async def main() -> None:
    main_lane = LaneConfig(concurrency=1, weights={"gold": 3, "*": 1})
    async with open_lanes({"main": main_lane}) as lanes:
        for _ in range(4):
            for customer in ("acme", "gold"):
                lanes.start_soon(answer, customer, owner=customer)


if __name__ == "__main__":
    trio.run(main)
