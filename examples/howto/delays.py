"""Jobs that start later, and one that starts sooner after all."""

import trio

from trio_lanes import open_lanes
from trio_lanes.durable import MemoryStore, open_durable_lanes


async def main() -> None:
    began = trio.current_time()

    async def remind(whom: str) -> None:
        print(f"{trio.current_time() - began:4.0f} s: {whom} is reminded")

    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(remind, "ann", session="ann", delay=60)
        await lanes.run(remind, "bob", session="bob")

    async with open_durable_lanes(MemoryStore(), {"remind": remind}) as durable:
        later = await durable.submit("remind", "eve", delay=3600)  # outlives the process
        sooner = await durable.submit("remind", "zoe", delay=7200)
        await durable.promote(sooner.id)  # now
        await sooner.wait()
        await later.wait()


if __name__ == "__main__":
    trio.run(main)
