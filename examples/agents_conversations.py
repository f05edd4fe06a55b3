"""A group chat: two people ask at once, and the answers stand in the order of the questions."""

import trio

from trio_lanes.agents import Conversation


async def ask(conversation: Conversation, question: str, words: list[str], pause: float) -> None:
    async with conversation.turn(question) as turn:
        print(f"{question!r} is asked; before it stand", len(turn.history), "messages")
        for word in words:
            await trio.sleep(pause)  # the model thinks
            await turn.append(word)
        await turn.finish()
    print(f"{question!r} is answered")


async def show(conversation: Conversation) -> None:
    for message in await conversation.messages():
        print(f"  {message.role:9} {message.status:11} {message.content}")


async def main() -> None:
    conversation = Conversation("team")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, conversation, "alice: why?", ["because ", "of that"], 3)
        await trio.sleep(1)
        nursery.start_soon(ask, conversation, "bob: when?", ["now"], 1)
        await trio.sleep(4)
        await show(conversation)

    with trio.move_on_after(3):
        await ask(conversation, "carol: how?", ["like ", "this"], 2)
    await show(conversation)


if __name__ == "__main__":
    trio.run(main)
