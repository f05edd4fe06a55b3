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
    async with open_lanes({"tenant:*": each}, groups={"provider": key}) as lanes:
        for question in (1, 2, 3):
            lanes.start_soon(ask, "acme", question, lane="tenant:acme", cost={"tokens": 1_000})
        lanes.start_soon(ask, "globex", 1, lane="tenant:globex", cost={"tokens": 1_000})


if __name__ == "__main__":
    trio.run(main)
