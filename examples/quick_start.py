import trio

from trio_lanes import open_lanes


async def main() -> None:
    async def answer(text: str) -> None:
        await trio.sleep(len(text) / 10)  # a model thinks
        print(f"{text:8} | running: {sorted(str(job.session) for job in main_lane.running(9))}")

    async with open_lanes({"main": 2}) as lanes:
        main_lane = lanes.lane("main")
        for user, text in [("ann", "one"), ("ann", "two"), ("bob", "hi"), ("eve", "hey")]:
            lanes.submit_nowait(answer, f"{user}: {text}", session=user)


if __name__ == "__main__":
    trio.run(main)
