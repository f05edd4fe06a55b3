"""A turn that others reach while it runs: they tell it more, then stop it."""

import trio

from trio_lanes import open_lanes
from trio_lanes.agents import RunRegistry


class Turn:
    """An answer that is written piece by piece, and listens between the pieces."""

    is_streaming = True
    is_compacting = False

    def __init__(self) -> None:
        self._heard: list[str] = []
        self._scope = trio.CancelScope()

    def queue_message(self, message: str) -> bool:
        self._heard.append(message)
        return True

    def abort(self, reason: str | None = None) -> None:
        self._scope.cancel(reason)

    async def write(self) -> None:
        with self._scope:
            while True:
                await trio.sleep(1)  # a piece of the answer
                while self._heard:
                    print("the turn hears:", self._heard.pop(0))


registry = RunRegistry()


async def answer(session: str) -> None:
    turn = Turn()
    with registry.running(session, turn):
        await turn.write()


async def main() -> None:
    async with open_lanes() as lanes:
        lanes.start_soon(answer, "alice", session="alice")
        await trio.sleep(0.5)
        for session in ("alice", "bob"):
            sent = registry.send(session, "in French, please")
            print(f"to {session}:", "accepted" if sent else sent.reason)
        await trio.sleep(1)
        print("has ended:", await registry.abort_and_wait("alice", "she has left"))
        print("to alice:", registry.send("alice", "and then?").reason)


if __name__ == "__main__":
    trio.run(main)
