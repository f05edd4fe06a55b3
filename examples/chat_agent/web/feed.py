"""A feed of facts for any number of viewers, each at its own pace. Publishing never waits.

There is one numbered log of facts, of which the last facts are kept, and no queue for each viewer.
A viewer remembers the number of its last fact, and asks for the facts after it. A viewer that
reconnects and a viewer that is slow do the same; if the facts are no longer kept, both get a
snapshot. So publishing does not depend on the viewers, and memory has one bound.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, Protocol

import trio

Fact = dict[str, Any]  # JSON, with its kind in "what"; not changed after it was published
KEPT: Final = 2_000  # facts
FRAME_SECONDS: Final = 0.06  # between two frames to one viewer
SEND_SECONDS: Final = 20.0  # for a viewer to take one frame


class Feed:
    """The log. `run` distinguishes the logs of two servers, which both count from 1."""

    def __init__(self, kept: int = KEPT) -> None:
        self.run: Final = secrets.token_hex(4)
        self.last = 0  # the number of the last published fact
        self._facts: Final[deque[Fact]] = deque(maxlen=kept)
        self._waiting: Final = trio.lowlevel.ParkingLot()

    def publish(self, fact: Fact) -> None:
        """Append a fact to the log. Not a checkpoint."""
        self.last += 1
        self._facts.append(fact)
        self._waiting.unpark_all()

    def since(self, number: int) -> list[Fact] | None:
        """Return the facts after that number; None if some are not kept, or for another run.

        Not a checkpoint.
        """
        count = self.last - number
        if not 0 <= count <= len(self._facts):
            return None
        return list(islice(self._facts, len(self._facts) - count, None))

    async def wait_beyond(self, number: int) -> None:
        """Wait until there are facts after that number. A checkpoint."""
        await trio.lowlevel.checkpoint()
        while self.last <= number:
            await self._waiting.park()


class Seen(Protocol):
    """What a viewer sees. No method is a checkpoint."""

    def snapshot(self) -> list[Fact]:
        """Return the facts for a new viewer."""
        ...

    def since(self, facts: Sequence[Fact]) -> list[Fact]:
        """Return what the viewer sees of these facts."""
        ...

    def now(self) -> Fact:
        """Return the state that is sent with each frame."""
        ...


async def view(
    feed: Feed,
    seen: Seen,
    send: Callable[[Fact], Awaitable[None]],
    *,
    after: int | None = None,
) -> None:
    """Send frames to a viewer until it stops taking them.

    A frame has all facts since the last one, or a snapshot if there are too many.

    Args:
      after: the number of the last fact of the viewer; None for a new viewer.

    Raises:
      trio.TooSlowError: if it does not take a frame in time.
    """
    came_to = -1 if after is None else after
    while True:
        facts = None if came_to < 0 else feed.since(came_to)
        frame: Fact = {"run": feed.run, "seq": feed.last, "snapshot": facts is None}
        frame["facts"] = seen.snapshot() if facts is None else joined(seen.since(facts))
        came_to = feed.last
        with trio.fail_after(SEND_SECONDS):
            await send(frame | seen.now())
        await trio.sleep(FRAME_SECONDS)  # facts that come meanwhile are one frame
        await feed.wait_beyond(came_to)


def joined(facts: Iterable[Fact]) -> list[Fact]:
    """Merge adjacent pieces of the same text into one piece."""
    result: list[Fact] = []
    for fact in facts:
        last = result[-1] if result else {}
        if fact["what"] == last.get("what") == "piece" and fact["id"] == last["id"]:
            result[-1] = last | {"text": last["text"] + fact["text"]}
        else:
            result.append(fact)
    return result
