"""A bound on what waits: the caller waits for room, or hears that there is none."""

import trio

from trio_lanes import LaneConfig, LaneFullError, open_lanes


async def resize(picture: int) -> None:
    await trio.sleep(1)


async def main() -> None:
    began = trio.current_time()
    async with open_lanes({"main": LaneConfig(concurrency=2, max_waiting=3)}) as lanes:
        for picture in range(7):
            await lanes.submit(resize, picture)  # waits for room: backpressure
            print(f"{trio.current_time() - began:.0f} s: picture {picture} is in")
        try:
            lanes.submit_nowait(resize, 7)  # does not wait: queue full
        except LaneFullError as error:
            print(error)
        print("a job would wait:", bool(lanes.would_wait()))
        await lanes.wait_room(1)  # until nothing waits
        print(f"{trio.current_time() - began:.0f} s: nothing waits")


if __name__ == "__main__":
    trio.run(main)
