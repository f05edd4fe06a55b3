"""A budget for each tenant, over all instances."""

import trio

from trio_lanes import RateLimit
from trio_lanes.durable import BudgetSpentError, MemoryStore, open_durable_lanes

DAY = 24 * 3600
BUDGETS = {"tenant:*": RateLimit(100_000, per=DAY, unit="tokens", algorithm="sliding")}


async def main() -> None:
    async with open_durable_lanes(MemoryStore(), {}, quotas=BUDGETS) as lanes:
        acme = lanes.quota("tenant:acme")
        spent = await acme.spend(tokens=60_000, wait=False)  # an estimate
        await trio.sleep(3600)
        await spent.settle(tokens=75_000)  # what was used
        try:
            await acme.spend(tokens=30_000, wait=False)
        except BudgetSpentError as refused:
            print(f"refused, with {refused.left} left")
        await acme.grant(tokens=20_000, by="ann")
        await acme.spend(tokens=30_000, wait=False)
        for name in ("tenant:acme", "tenant:globex"):
            print(f"{name}: {await lanes.quota(name).left()}")


if __name__ == "__main__":
    trio.run(main)
