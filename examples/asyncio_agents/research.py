"""A research agent by openai-agents: it reads on many topics at once, and a new message interrupts.

make gateway                                 # the built-in model; it needs no key
python examples/asyncio_agents/research.py   # in another terminal: type, also while it works
"""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    TResponseInputItem,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent

from trio_lanes.aio import open_lanes
from trio_lanes.aio.agents import Emit, Inbox, ToolCall, Turn, WhenBusy, run_tools

MODEL_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1")
KEY = os.environ.get("OPENAI_API_KEY", "none")


def show(text: str, end: str = "\n") -> None:
    print(text, end=end, flush=True)


async def read(topic: str, emit: Emit) -> str:
    """Read on one topic. A fake: the longer the topic, the longer it takes."""
    for source in ("a book", "a web page"):
        await asyncio.sleep(len(topic) / 10)
        await emit(f"{topic}: {source}")
    return f"{topic} are interesting"


@function_tool
async def research(topics: list[str]) -> str:
    """Read on each topic, all at once. What is found is shown topic by topic, in their order."""
    async with run_tools([ToolCall(topic, partial(read, topic)) for topic in topics]) as run:
        async for event in run:
            if event.kind == "output":
                show(f"  {event.data}")
    return "; ".join(str(result.value) for result in run.results)


async def answer(agent: Agent, memory: list[TResponseInputItem], turn: Turn) -> None:
    asked: TResponseInputItem = {"role": "user", "content": "\n".join(turn.messages)}
    run = Runner.run_streamed(agent, [*memory, asked])
    try:
        async for event in run.stream_events():
            if event.type != "raw_response_event":
                continue
            if isinstance(event.data, ResponseTextDeltaEvent):
                show(event.data.delta, end="")
        show("")
        memory[:] = run.to_input_list()  # a turn that was interrupted leaves nothing in it
    finally:  # the turn lasts until the model's stream and the tools have ended
        run.cancel()
        if run.run_loop_task is not None:
            await asyncio.wait([run.run_loop_task])


async def main() -> None:
    set_tracing_disabled(True)
    loop, lines = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with AsyncOpenAI(base_url=MODEL_URL, api_key=KEY) as client, open_lanes() as lanes:
        agent = Agent(
            "researcher",
            instructions="Answer from what you have read.",
            model=OpenAIChatCompletionsModel("built-in", client),
            model_settings=ModelSettings(parallel_tool_calls=False),  # one call has all topics
            tools=[research],
        )
        inbox = Inbox(lanes, "me", partial(answer, agent, []), when_busy=WhenBusy.INTERRUPT)
        show("ready")
        async for line in lines:
            inbox.post(line.decode().strip())


if __name__ == "__main__":
    asyncio.run(main())
