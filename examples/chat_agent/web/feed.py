"""What is told to any number of viewers, each at its own pace, without ever waiting for one.

There is one numbered row of facts, of which the last ones are kept, and no queue for each viewer.
A viewer remembers the number that it has come to, and asks for what is behind it. One that has
been gone, and one that is slow, ask for the same; and if that is not kept any more, both get a
snapshot instead. So a viewer costs those who publish nothing, and memory has one bound.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Any, Final

import trio

Fact = dict[str, Any]  # JSON, with "what" it is; not changed any more when it was published
KEPT: Final = 2_000  # facts
FRAME_SECONDS: Final = 0.06  # between two frames to one viewer
SEND_SECONDS: Final = 20.0  # for one frame; who takes longer is gone


class Feed:
    """The row. `run` tells apart the rows of two servers, which both count from 1."""

    def __init__(self, kept: int = KEPT) -> None:
        self.run: Final = secrets.token_hex(4)
        self.last = 0  # the number of the fact that was published last
        self._facts: Final[deque[Fact]] = deque(maxlen=kept)
        self._waiting: Final = trio.lowlevel.ParkingLot()

    def publish(self, fact: Fact) -> None:
        """Put a fact at the end of the row. Not a checkpoint."""
        self.last += 1
        self._facts.append(fact)
        self._waiting.unpark_all()

    def since(self, number: int) -> list[Fact] | None:
        """The facts behind that number; None if not all of them are kept, or it is from elsewhere.

        Not a checkpoint.
        """
        count = self.last - number
        if not 0 <= count <= len(self._facts):
            return None
        return list(islice(self._facts, len(self._facts) - count, None))

    async def wait_beyond(self, number: int) -> None:
        """Wait until there are facts behind that number. A checkpoint."""
        await trio.lowlevel.checkpoint()
        while self.last <= number:
            await self._waiting.park()


async def view(
    feed: Feed,
    snapshot: Callable[[], list[Fact]],
    now: Callable[[], Fact],
    send: Callable[[Fact], Awaitable[None]],
    *,
    after: int | None = None,
) -> None:
    """Send one viewer frames for as long as it takes them.

    A frame has all facts since the last one, or a snapshot if there are too many.

    Args:
      snapshot: the facts from which a viewer that knows nothing learns everything.
      now: what is told with every frame as it is at that moment.
      after: the number that the viewer has come to; None: it knows nothing.

    Raises:
      trio.TooSlowError: if it does not take a frame in time.
    """
    came_to = -1 if after is None else after
    while True:
        facts = None if came_to < 0 else feed.since(came_to)
        frame: Fact = {"run": feed.run, "seq": feed.last, "snapshot": facts is None}
        frame["facts"] = snapshot() if facts is None else joined(facts)
        came_to = feed.last
        with trio.fail_after(SEND_SECONDS):
            await send(frame | now())
        await trio.sleep(FRAME_SECONDS)  # what comes meanwhile is one frame
        await feed.wait_beyond(came_to)


def joined(facts: Iterable[Fact]) -> list[Fact]:
    """The same, with the pieces of one text that come one after the other as one piece."""
    result: list[Fact] = []
    for fact in facts:
        last = result[-1] if result else {}
        if fact["what"] == last.get("what") == "piece" and fact["id"] == last["id"]:
            result[-1] = last | {"text": last["text"] + fact["text"]}
        else:
            result.append(fact)
    return result
