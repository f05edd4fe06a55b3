"""A slot is held until the body has ended: two jobs never overlap, not even after a timeout."""

import trio

from trio_lanes import open_lanes


async def slow_to_stop() -> None:
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(2)  # puts the file back as it was
        print("the first one has let go of the file")


async def next_one() -> None:
    print("the second one opens the file")


async def main() -> None:
    async with open_lanes({"main": 1}) as lanes:
        start = trio.current_time()
        job = lanes.submit_nowait(slow_to_stop, timeout=1)
        await lanes.run(next_one)
        print(f"after {trio.current_time() - start:.0f} s; the first one failed: {job.exception}")


if __name__ == "__main__":
    trio.run(main)
