"""A thread in a file, read after the process that wrote it has crashed in the midst of a turn."""

import tempfile
from pathlib import Path

import trio

from trio_lanes.agents import Conversation, JsonlTranscript


async def crash_while_answering(folder: Path) -> None:
    """Write half of a turn; what is left of it is copied before it can end."""
    store = JsonlTranscript(folder / "first life")
    async with Conversation("alice", store).turn("What is in the file?") as turn:
        await turn.append("Let me look. ")
        await turn.call([{"id": "c1", "name": "read", "arguments": {"path": "notes"}}])
        left = await trio.Path(folder / "first life" / "alice.jsonl").read_bytes()
    await trio.Path(folder / "second life").mkdir()
    await trio.Path(folder / "second life" / "alice.jsonl").write_bytes(left + b'[{"turn": "torn')


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        await crash_while_answering(folder)
        conversation = Conversation("alice", JsonlTranscript(folder / "second life"))
        async with conversation.turn("And now?") as turn:
            for message in turn.history:
                print(f"{message.role:9} {message.status:11} {message.content}")
            await turn.finish("Try again.")
        print(len(await conversation.messages()), "messages")


if __name__ == "__main__":
    trio.run(main)
