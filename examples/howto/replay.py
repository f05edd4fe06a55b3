"""What other limits would have done to the work of two seconds."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from trio_lanes import open_lanes
from trio_lanes.replay import Recording, read_recording, replay
from trio_lanes.testing import LaneRecorder


async def busy_time(file: Path) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 2}, instruments=[recorder]) as lanes:
        for number in range(120):
            lanes.submit_nowait(trio.sleep, 0.035, session=f"user {number % 20}")
            await trio.sleep(0.015)
    recorder.save(file)


def compare(recording: Recording) -> None:
    for limit in (1, 2, 3):
        waits = replay(recording, {"main": limit}).total
        print(
            f"main={limit}: half wait {waits.p50:.2f} s or less, the longest {waits.longest:.2f} s"
        )


async def main() -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder, "busy.jsonl")
        await busy_time(file)
        await trio.to_thread.run_sync(partial(compare, read_recording(file)))


if __name__ == "__main__":
    trio.run(main)
