"""An actor's mailbox: a memory channel that is only ever used without waiting.

The actor takes its mail in its next step, which comes before the call that sent the mail returns.
Until then the channel keeps the jobs apart that the actor has not looked at yet, in order. It is
not where jobs wait, since nothing can be taken from a channel's middle.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, final

import trio

if TYPE_CHECKING:
    from .job import AnyJob


@final
class Mailbox:
    """Both ends of one channel."""

    __slots__ = ("_receive", "_send", "count")

    def __init__(self) -> None:
        send, receive = trio.open_memory_channel["AnyJob"](math.inf)
        self._send = send.send_nowait
        self._receive = receive.receive_nowait
        self.count = 0
        """How much is in it. The channel's own statistics() would build an object to tell that."""

    def send(self, job: AnyJob) -> None:
        """Put ``job`` in, behind all that is there."""
        self._send(job)
        self.count += 1

    def receive(self) -> AnyJob:
        """Take out the oldest mail. There must be some."""
        self.count -= 1
        return self._receive()
