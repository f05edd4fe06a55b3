"""A turn on one instance, and a client of another."""

from typing import Any

import trio

from trio_lanes.agents import ActionGate, Conversation, SharedRunRegistry, SharedTranscripts
from trio_lanes.durable import MemoryStore, current_job, open_durable_lanes


class Steps:
    """A run that takes messages while it works."""

    is_streaming = True
    is_compacting = False

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def queue_message(self, message: Any, /) -> bool:
        self.messages.append(message)
        return True

    def abort(self, reason: str | None = None) -> None:
        print(f"asked to end: {reason}")


async def main() -> None:
    store = MemoryStore()

    async def answer(question: str) -> str:
        run, gate, steps = current_job(), ActionGate(["delete"]), Steps()
        assert run is not None
        conversation = Conversation("alice", SharedTranscripts(here))
        async with SharedRunRegistry(here).running(steps, outputs=gate.submit):
            async with conversation.turn(question) as turn:
                await run.emit("may I delete it?")
                (allowed,) = await gate.wait()
                await turn.finish(f"{allowed.value}; and {steps.messages}")
        return "done"

    async with (
        open_durable_lanes(store, {"answer": answer}) as here,
        open_durable_lanes(store.another(), {}) as elsewhere,
    ):
        registry = SharedRunRegistry(elsewhere)
        job = await elsewhere.submit("answer", "clean up", session="alice")
        async for _, event in job.events():
            print("the run asks:", event)
            await registry.send("alice", "be quick")
            await registry.submit("alice", {"delete": "yes"})
        for message in await Conversation("alice", SharedTranscripts(elsewhere)).messages():
            print(f"{message.role}: {message.content}")


if __name__ == "__main__":
    trio.run(main)
