"""A call that a person must allow: meanwhile the turn's slot is another's."""

import trio

from trio_lanes import current_job, open_lanes
from trio_lanes.agents import ActionGate

waiting: dict[str, ActionGate] = {}


async def delete_files(session: str) -> None:
    job = current_job()
    assert job is not None
    gate = waiting[session] = ActionGate([{"id": "call-1", "name": "delete", "path": "/tmp"}])
    print("alice is asked")
    async with job.yield_slot():
        with trio.move_on_after(600):
            await gate.wait()
        gate.cancel("not answered in time")  # has no effect if somebody has
    for result in await gate.wait():
        print(result.id, result.kind, result.value)


async def say(what: str) -> None:
    print(what)


async def main() -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(delete_files, "alice", session="alice")
        lanes.start_soon(say, "alice's next turn", session="alice")
        lanes.start_soon(say, "bob's turn", session="bob")
        await trio.sleep(2)
        try:
            waiting["alice"].submit({"call-2": "allowed"})
        except ValueError as error:
            print(error)
        waiting["alice"].submit({"call-1": "allowed"})


if __name__ == "__main__":
    trio.run(main)
