"""Rates and groups of durable lanes: they hold over all processes, and over a restart."""

import trio

from trio_lanes import LaneGroup, RateLimit
from trio_lanes.durable import MemoryStore, open_durable_lanes

LANES = {"main": 4, "cron": 2}
PROVIDER = LaneGroup(
    ["main", "cron"],
    concurrency=4,
    reserve={"main": 1},  # cron never takes the last slot
    rate=RateLimit(3, per=10.0, algorithm="sliding"),
)


async def main() -> None:
    began = trio.current_time()

    async def ask(question: str) -> None:
        print(f"{trio.current_time() - began:4.1f} s: {question}")

    store = MemoryStore()  # a test's; the same holds for SqliteStore("jobs.db")
    groups = {"provider": PROVIDER}
    async with open_durable_lanes(store, {"ask": ask}, LANES, groups=groups) as lanes:
        for question in ("where?", "when?"):
            job = await lanes.submit("ask", question, session="alice")
        await job.wait()

    print("a restart")
    async with open_durable_lanes(store, {"ask": ask}, LANES, groups=groups) as lanes:
        for question in ("why?", "who?", "what?"):
            job = await lanes.submit("ask", question, session="alice")
        await job.wait()
        await lanes.configure({"cron": 1}, {"provider": LaneGroup(["main", "cron"])})
        job = await lanes.submit("ask", "how?", session="alice")
        await job.wait()


if __name__ == "__main__":
    trio.run(main)
