"""The first example of the README: two ways to give lanes something to run."""

import trio

from trio_lanes import open_lanes


async def reply(user: str, text: str) -> str:
    await trio.sleep(0.1)  # a model thinks
    return f"{user}, you said {text!r}"


async def main() -> None:
    async with open_lanes({"main": 4, "cron": 1, "subagent": 8}) as lanes:
        answer = await lanes.run(reply, "alice", "hello", session="alice")
        print(answer)

        job = lanes.submit_nowait(reply, "bob", "hi", session="bob", priority=10)  # a handle
        print(await job.wait())


if __name__ == "__main__":
    trio.run(main)
