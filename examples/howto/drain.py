"""Stop taking work, let it end within a grace, cancel what is left, give up what will not stop."""

import trio

from trio_lanes import LanesClosedError, open_lanes


async def turn(seconds: float) -> None:
    await trio.sleep(seconds)


async def stubborn() -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(60)


async def main() -> None:
    async with open_lanes({"main": 3}) as lanes:
        start = trio.current_time()
        for seconds in (3, 30):
            lanes.start_soon(turn, seconds)
        lanes.start_soon(stubborn)
        lanes.close("a new version is being installed", retry_after=20)
        try:
            lanes.start_soon(turn, 1)
        except LanesClosedError as error:
            print(error)
        report = await lanes.drain(grace=10, cancel_grace=5)
        print(f"after {trio.current_time() - start:.0f} s:", report)


if __name__ == "__main__":
    trio.run(main)
