"""Which timeout counts from when, and what each of them ends."""

import trio

from trio_lanes import JobTimeoutError, QueueTimeoutError, current_job, open_lanes


async def work(seconds: float) -> str:
    await trio.sleep(seconds)
    return "done"


async def download() -> None:
    job = current_job()
    assert job is not None
    for _ in range(3):
        await trio.sleep(4)  # a block of data comes
        job.progress()
    await trio.sleep_forever()  # and then no more


async def main() -> None:
    async with open_lanes({"main": 1, "other": 1}) as lanes:
        start = trio.current_time()

        # 1. How long it may run, from its start.
        slow = lanes.submit_nowait(work, 60, timeout=10)
        # 2. How long it may wait for its start.
        impatient = lanes.submit_nowait(work, 1, queue_timeout=5)
        # 3. How long it may run without a sign of life.
        stalled = lanes.submit_nowait(download, lane="other", idle_timeout=5)

        for job in (impatient, slow, stalled):
            try:
                await job.wait()
            except (JobTimeoutError, QueueTimeoutError) as error:
                print(f"{trio.current_time() - start:.0f} s: {error}")

        # 4. How long somebody waits for it: the job goes on.
        job = lanes.submit_nowait(work, 5)
        with trio.move_on_after(3):
            await job.wait()
        print("after move_on_after around wait():", job.state.name)
        await job.wait()

        # 5. The same around run(): it takes the job with it.
        with trio.move_on_after(3) as scope:
            await lanes.run(work, 60)
        print("after move_on_after around run():", lanes.statistics().active, "active")
        assert scope.cancelled_caught


if __name__ == "__main__":
    trio.run(main)
