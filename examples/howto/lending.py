"""While a turn waits for a person, its slot is another's; its place in the session is not."""

import trio

from trio_lanes import current_job, open_lanes

approved = trio.Event()


async def delete_files() -> None:
    job = current_job()
    assert job is not None
    print("alice's turn asks a person")
    async with job.yield_slot():
        await approved.wait()
    print("alice's turn goes on")


async def say(what: str) -> None:
    print(what)


async def main() -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(delete_files, session="alice")
        lanes.start_soon(say, "alice's next turn", session="alice")
        lanes.start_soon(say, "bob's turn", session="bob")
        await trio.sleep(60)
        approved.set()


if __name__ == "__main__":
    trio.run(main)
