"""State that only a session's own jobs touch needs no lock: they never run two at a time."""

from collections import defaultdict

import trio

from trio_lanes import LaneConfig, open_lanes

balances: defaultdict[str, int] = defaultdict(int)


async def pay_in(account: str, amount: int) -> None:
    balance = balances[account]
    await trio.sleep(0.1)  # others run meanwhile: other accounts, not this one
    balances[account] = balance + amount


async def main() -> None:
    async with open_lanes({"main": LaneConfig(concurrency=20)}) as lanes:
        for _ in range(10):
            lanes.start_soon(pay_in, "with a session", 1, session="with a session")
            lanes.start_soon(pay_in, "without", 1)
    for account, balance in balances.items():
        print(f"{account}: {balance}")


if __name__ == "__main__":
    trio.run(main)
