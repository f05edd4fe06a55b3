"""Bodies of other async libraries in a Trio application: of asyncio by trio-asyncio, of anyio."""

import asyncio

import anyio
import trio
import trio_asyncio

from trio_lanes import JobTimeoutError, open_lanes


async def reply(user: str, seconds: float) -> str:
    """Of a library that needs asyncio."""
    try:
        async with asyncio.timeout(60):
            await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        print(f"{user} is cancelled")
        raise
    return f"{user} is answered"


async def look_up(user: str) -> str:
    """Of a library on anyio, which runs on Trio as it is."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.sleep, 0.1)
    return f"{user} is known"


async def main() -> None:
    async with trio_asyncio.open_loop(), open_lanes({"main": 2}) as lanes:
        body = trio_asyncio.aio_as_trio(reply)
        print(await lanes.run(look_up, "alice", session="alice"))
        print(await lanes.run(body, "alice", 0.1, session="alice"))
        try:
            await lanes.run(body, "bob", 30, session="bob", timeout=0.5)
        except JobTimeoutError as error:
            print(error)


if __name__ == "__main__":
    trio.run(main)
