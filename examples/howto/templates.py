"""A lane for each of many things, as they come; and one session that is unlike the others."""

import trio

from trio_lanes import LaneConfig, open_lanes


async def fetch(page: str) -> None:
    print(f"{page} begins")
    await trio.sleep(1)


async def main() -> None:
    lanes_by_name: dict[str, int | LaneConfig] = {
        "main": 4,
        "host:*": LaneConfig(concurrency=1),  # one lane a host, one request at a time
        "session:vip": LaneConfig(concurrency=2),
    }
    async with open_lanes(lanes_by_name) as lanes:
        lanes.start_soon(fetch, "example.org/a", lane="host:example.org")
        lanes.start_soon(fetch, "example.org/b", lane="host:example.org")
        lanes.start_soon(fetch, "example.net/a", lane="host:example.net")
        lane = lanes.lane("host:example.org")
        await trio.sleep(0.5)
        print(f"{lane.name}: {lane.active} active, {lane.waiting} waiting; label {lane.label}")
        await lanes.wait_idle()
        print("alive:", ", ".join(lanes.statistics().lanes))

        lanes.start_soon(fetch, "vip 1", session="vip")
        lanes.start_soon(fetch, "vip 2", session="vip")


if __name__ == "__main__":
    trio.run(main)
