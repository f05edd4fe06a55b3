"""An actor's mailbox: a memory channel that is only ever used without waiting.

Mail is taken out in the actor's next step, which comes before the call that sent it returns,
unless that call came from a hook inside a step. The channel keeps order and keeps jobs apart
that the actor has not looked at yet; it is not where jobs wait, since nothing can be taken from
a channel's middle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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

    def empty_into(self, add: Callable[[AnyJob], None]) -> None:
        """Take out all that is there, the oldest first, and ``add`` each."""
        while self.count:
            self.count -= 1
            add(self._receive())
