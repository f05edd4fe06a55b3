"""A report on each working day, and a look every six hours, on whichever instance."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import trio

from trio_lanes.durable import MemoryStore, open_durable_lanes

HOUR = 3600


async def report(payload: Any) -> None:
    print(f"{trio.current_time() / HOUR:4.1f} h: the report of {payload['team']}")


async def look(payload: Any) -> None:
    print(f"{trio.current_time() / HOUR:4.1f} h: a look")


async def main() -> None:
    async with open_durable_lanes(MemoryStore(), {"report": report, "look": look}) as lanes:
        await lanes.schedule(
            "daily", "report", {"team": "sales"}, cron="30 8 * * 1-5", timezone="Europe/Berlin"
        )
        await lanes.schedule("look", "look", every=6 * HOUR, overlap="skip", lane="cron")
        await trio.sleep(20 * HOUR)
        await lanes.pause("schedule:look")
        daily, look_out = await lanes.schedules()
        for due in daily.upcoming(3):
            print("next:", datetime.fromtimestamp(due, ZoneInfo(daily.timezone)))
        print(look_out.name, "is paused:", look_out.paused)


if __name__ == "__main__":
    trio.run(main)
