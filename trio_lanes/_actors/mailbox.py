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
        """How many jobs are in it. The ``statistics()`` of the channel would build an object."""

    def send(self, job: AnyJob) -> None:
        """Put ``job`` in, behind all jobs that are in it."""
        self._send(job)
        self.count += 1

    def receive(self) -> AnyJob:
        """Take out the oldest job. There must be a job."""
        self.count -= 1
        return self._receive()
