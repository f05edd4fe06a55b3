"""A lock and a quota over instances."""

import trio

from trio_lanes import RateLimit
from trio_lanes.durable import DurableLanes, MemoryStore, open_durable_lanes

QUOTAS = {"openai": [RateLimit(60), RateLimit(60_000, unit="tokens", burst=1_000)]}


async def rebuild(lanes: DurableLanes, name: str) -> None:
    async with lanes.lock("index") as held:
        print(f"{name} rebuilds the index, alone: {not held.shared}")


async def ask(lanes: DurableLanes, name: str) -> None:
    began = trio.current_time()
    spent = await lanes.quota("openai").spend(tokens=20_000)
    print(f"{name} asks the model after {trio.current_time() - began:.0f} s")
    await spent.settle(tokens=5_000)  # what the answer has used


async def main() -> None:
    store = MemoryStore()
    async with (
        open_durable_lanes(store, {}, quotas=QUOTAS) as a,
        open_durable_lanes(store.another(), {}, quotas=QUOTAS) as b,
    ):
        for job in (rebuild, ask):
            await job(a, "a")
            await job(b, "b")


if __name__ == "__main__":
    trio.run(main)
