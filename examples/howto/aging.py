"""Under an endless stream of urgent work, the rest gets its turn: waiting adds to a priority."""

import trio

from trio_lanes import LaneConfig, Lanes, current_job, open_lanes

urgent = 0


async def alarm(lanes: Lanes) -> None:
    global urgent
    urgent += 1
    await trio.sleep(1)


async def backup() -> None:
    job = current_job()
    assert job is not None
    print(f"after {trio.current_time() - job.submitted_at:.0f} s and {urgent} alarms")


async def main() -> None:
    lane = LaneConfig(concurrency=1, aging=3)  # three seconds are worth one step of priority
    async with open_lanes({"main": lane}) as lanes:
        for _ in range(2):
            lanes.start_soon(alarm, lanes, priority=5)
        job = lanes.submit_nowait(backup)
        while not job.done:
            await lanes.wait_room(2)  # only the backup waits
            lanes.start_soon(alarm, lanes, priority=5)


if __name__ == "__main__":
    trio.run(main)
