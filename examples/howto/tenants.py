"""A rate for each tenant, turns between them, and one key of the provider for all."""

import trio

from trio_lanes import LaneConfig, LaneGroup, RateLimit, open_lanes


async def main() -> None:
    began = trio.current_time()

    async def ask(tenant: str, question: int) -> None:
        await trio.sleep((len(tenant) + question) / 10)  # the provider answers
        print(f"{trio.current_time() - began:.1f} s  {tenant} {question}")

    each = LaneConfig(concurrency=2, rate=RateLimit(60, per=60, burst=2))
    key = LaneGroup(["tenant:*"], concurrency=3, rate=RateLimit(90_000, unit="tokens"))
    turns = LaneConfig(concurrency=2)  # of a session, which is a tenant
    async with open_lanes({"tenant:*": each}, sessions=turns, groups={"provider": key}) as lanes:
        for tenant, question in [("acme", 1), ("acme", 2), ("acme", 3), ("globex", 1)]:
            lanes.start_soon(
                ask,
                tenant,
                question,
                lane=f"tenant:{tenant}",
                session=tenant,
                cost={"tokens": 1_000},
            )


if __name__ == "__main__":
    trio.run(main)
