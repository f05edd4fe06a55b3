"""An actor's mailbox: a memory channel that is only ever used without waiting.

The actor takes its mail in its next step, which comes before the call that sent the mail returns.
Until then the channel holds the new jobs, in order. Jobs do not wait in the channel, since no job
can be taken out of the middle of a channel.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, final

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from .job import AnyJob


@final
class Mailbox:
    """Both ends of one channel."""

    __slots__ = ("count", "receive", "send")

    def __init__(self) -> None:
        send, receive = trio.open_memory_channel["AnyJob"](math.inf)
        self.send: Callable[[AnyJob], None] = send.send_nowait
        self.receive: Callable[[], AnyJob] = receive.receive_nowait
        self.count = 0
        """How many jobs are in it: counted by the actor that sends and receives, since the
        ``statistics()`` of the channel would build an object."""
