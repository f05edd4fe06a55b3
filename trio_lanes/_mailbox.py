"""An actor's mailbox: a memory channel that is only ever used without waiting.

Mail is taken out in the actor's next step, which comes before the call that sent it returns,
unless that call came from a hook inside a step. The channel keeps order and keeps jobs apart
that the actor has not looked at yet; it is not where jobs wait, since nothing can be taken from
a channel's middle.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, final

import trio

if TYPE_CHECKING:
    from ._job import AnyJob


@final
class Mailbox:
    """Both ends of one channel, and how much is in it (`len`)."""

    __slots__ = ("_count", "_receive", "_send")

    def __init__(self) -> None:
        send, receive = trio.open_memory_channel["AnyJob"](math.inf)
        self._send = send.send_nowait
        self._receive = receive.receive_nowait
        self._count = 0  # statistics() would build an object to tell the same

    def __len__(self) -> int:
        return self._count

    def send(self, job: AnyJob) -> None:
        """Put ``job`` in, behind all that is there."""
        self._send(job)
        self._count += 1

    def drain(self) -> Iterator[AnyJob]:
        """Take out what is there, oldest first, also what arrives meanwhile."""
        while self._count:
            self._count -= 1
            yield self._receive()
