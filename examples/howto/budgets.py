"""A budget for each tenant, over all instances."""

from decimal import Decimal

import trio

from trio_lanes import RateLimit
from trio_lanes.durable import BudgetSpentError, MemoryStore, open_durable_lanes

BUDGETS = {
    "tenant:*": RateLimit(Decimal("10.00"), per="month", unit="usd", timezone="Europe/Berlin")
}


async def main() -> None:
    async with open_durable_lanes(MemoryStore(), {}, quotas=BUDGETS) as lanes:
        acme = lanes.quota("tenant:acme")
        spent = await acme.spend(usd=6, wait=False)  # an estimate
        await spent.settle(usd=Decimal("7.35"))  # what was used
        try:
            await acme.spend(usd=3, wait=False)
        except BudgetSpentError as refused:
            print(f"refused, with {refused.left['usd']} left")
        await acme.grant(usd=2, by="ann")
        await acme.spend(usd=3, wait=False)
        for name in ("tenant:acme", "tenant:globex"):
            print(f"{name}: {(await lanes.quota(name).left())['usd']} left")


if __name__ == "__main__":
    trio.run(main)
