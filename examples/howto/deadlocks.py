"""A turn asks its sub-agents and waits for them: where that would hang, and two ways out."""

import trio

from trio_lanes import LaneDeadlockError, Lanes, open_lanes


async def look_up(topic: str) -> str:
    await trio.sleep(1)
    return f"all about {topic}"


async def turn_that_hangs(lanes: Lanes) -> str:
    return await lanes.run(look_up, "cats", session="alice")  # behind itself, for ever


async def turn_in_another_lane(lanes: Lanes) -> str:
    return await lanes.run(look_up, "cats", lane="subagent")


async def turn_that_lends(lanes: Lanes) -> str:
    return await lanes.run(look_up, "cats", yield_slot=True)


async def main() -> None:
    async with open_lanes({"main": 1, "subagent": 1}) as lanes:
        try:
            await lanes.run(turn_that_hangs, lanes, session="alice")
        except LaneDeadlockError as error:
            print(error)
        print(await lanes.run(turn_in_another_lane, lanes, session="alice"))
        print(await lanes.run(turn_that_lends, lanes, session="alice"))


if __name__ == "__main__":
    trio.run(main)
