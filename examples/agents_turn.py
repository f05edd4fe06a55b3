"""A whole turn: a model asks for tools, they run at once, and it answers with what they found."""

from collections.abc import AsyncIterator

import trio

from trio_lanes import open_lanes
from trio_lanes.agents import Conversation, Emit, Message, ToolCall, run_tools


async def model(prompt: tuple[Message, ...]) -> AsyncIterator[str | dict[str, str]]:
    """A stand-in: looks up each city once, then answers."""
    await trio.sleep(1)
    if prompt[-1].role == "user":
        yield "Let me look. "
        yield {"id": "call-1", "city": "Oslo"}
        yield {"id": "call-2", "city": "Rome"}
    else:
        for message in prompt:
            if message.role == "tool":
                yield f"{message.content}. "


def weather(city: str) -> ToolCall:
    async def tool(emit: Emit) -> str:
        await emit(f"asking about {city}")
        await trio.sleep(9 if city == "Oslo" else 3)
        return f"{city}: sunny"

    return ToolCall("call-1" if city == "Oslo" else "call-2", tool)


async def answer(conversation: Conversation, question: str) -> str:
    async with conversation.turn(question) as turn:
        while True:
            calls = []
            async for piece in model(turn.prompt):
                if isinstance(piece, str):
                    turn.append(piece)  # written with the next that is awaited
                else:
                    calls.append(piece)
            if not calls:
                await turn.finish()
                return str(turn.prompt[-1].content)
            await turn.call(calls)
            async with run_tools([weather(call["city"]) for call in calls]) as run:
                async for event in run:
                    print(f"{event.sequence_number} {event.item_id} {event.kind}: {event.data}")
            for result in run.results:
                await turn.result(result.id, str(result.value))


async def main() -> None:
    conversation = Conversation("alice")
    async with open_lanes() as lanes:
        question = "What is the weather like?"
        print(await lanes.run(answer, conversation, question, session="alice"))
    for message in await conversation.messages():
        print(f"  {message.role:9} {message.content}")


if __name__ == "__main__":
    trio.run(main)
