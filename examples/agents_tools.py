"""Tools run at once and are heard one after the other; one fails, one is cancelled."""

import trio

from trio_lanes.agents import Emit, ToolCall, run_tools


async def search(emit: Emit) -> str:
    for page in (1, 2):
        await trio.sleep(3)
        await emit(f"page {page}")
    return "two pages"


async def calculate(emit: Emit) -> float:
    await trio.sleep(1)
    return 1 / 0


async def download(emit: Emit) -> bytes:
    await trio.sleep(3600)
    return b""


async def main() -> None:
    calls = [ToolCall("a", search), ToolCall("b", calculate), ToolCall("c", download)]
    start = trio.current_time()
    async with run_tools(calls, limit=4) as run:
        async for event in run:
            seconds = trio.current_time() - start
            print(f"{seconds:.0f} s: {event.item_id} {event.kind}: {event.data!r}")
            if event.item_id == "b":
                run.cancel("c", "b has failed")
    for result in run.results:
        print(result.id, result.kind)


if __name__ == "__main__":
    trio.run(main)
