"""A turn is a run of a pydantic-ai agent, which a new message interrupts."""

import asyncio

from pydantic_ai import Agent, ModelMessage

from trio_lanes.aio import open_lanes
from trio_lanes.aio.agents import Inbox, Turn, WhenBusy

agent = Agent("openai-chat:built-in")  # at OPENAI_BASE_URL
history: list[ModelMessage] = []


async def answer(turn: Turn) -> None:
    asked = "\n".join(turn.messages)
    async with agent.run_stream(asked, message_history=history) as run:
        async for piece in run.stream_text(delta=True):
            print(piece, end="", flush=True)
    history[:] = run.all_messages()
    print()


async def main() -> None:
    async with open_lanes() as lanes:
        inbox = Inbox(lanes, "ann", answer, when_busy=WhenBusy.INTERRUPT)
        inbox.post("a long text of 500")
        await asyncio.sleep(2)
        inbox.post("hello")


if __name__ == "__main__":
    asyncio.run(main())
