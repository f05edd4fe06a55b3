"""`Mail`: what one end of a link sends, in batches.

What is posted in one pass of Trio's scheduler, and while a batch is on its way into the link, goes
as one batch: a text from `encode` of a tuple of messages. A wake-up of the other process, a call of
the system and a text cost more than most messages do.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, final

import trio

from .codec import encode
from .link import CUT, Link

BATCH_SIZE: Final = 1024 * 1024
"""How many characters a batch has when no more messages are put into it."""


@final
class Mail:
    """The outgoing messages of one link, in the order of posting."""

    def __init__(self, link: Link) -> None:
        self._link: Final = link
        self._posted: Final[deque[str]] = deque()
        self._idle: Final = trio.lowlevel.ParkingLot()

    def post(self, message: Any) -> None:
        """Have a message sent. It is lost if the link is cut before."""
        self.post_text(encode(message))

    def post_text(self, text: str) -> None:
        """Have the text of a message sent, as `encode` gives it."""
        self._posted.append(text)
        self._idle.unpark()

    async def send(self) -> None:
        """Send what is posted until the link is cut. Whoever receives hears of that."""
        try:
            while True:
                if not self._posted:
                    await self._idle.park()
                await self._link.send(f"[{','.join(self._next_batch())}]")
        except CUT:
            pass

    def _next_batch(self) -> list[str]:
        batch, size = [], 0
        while self._posted and size < BATCH_SIZE:
            batch.append(self._posted.popleft())
            size += len(batch[-1])
        return batch
