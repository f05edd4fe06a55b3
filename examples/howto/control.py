"""Acts on lanes from outside: cancel, pause, clear, and reset as the last resort."""

import trio

from trio_lanes import JobCancelledError, LaneClearedError, open_lanes


async def answer(text: str) -> str:
    await trio.sleep(10)
    return f"an answer to {text!r}"


async def main() -> None:
    async with open_lanes({"main": 1}) as lanes:
        why, how, when, where = [
            lanes.submit_nowait(answer, text, session="alice")
            for text in ("Why?", "How?", "When?", "Where?")
        ]
        await trio.sleep(1)
        why.cancel("alice pressed stop")  # it runs: its body is cancelled
        how.cancel()  # it waits: it never starts
        for job in (why, how):
            try:
                await job.wait()
            except JobCancelledError as error:
                print(error)

        lanes.pause("main")  # no job starts; the third, which runs by now, goes on
        print(await when.wait())
        await trio.sleep(60)
        print("while paused:", lanes.statistics().waiting, "waits")
        lanes.clear("session:alice", reason="the chat was deleted")  # all that has not started
        try:
            await where.wait()
        except LaneClearedError as error:
            print(error)
        lanes.resume("main")
        print(await lanes.run(answer, "Who?"))


if __name__ == "__main__":
    trio.run(main)
