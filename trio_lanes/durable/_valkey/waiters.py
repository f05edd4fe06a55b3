"""`Waiters`: the tasks of this process that wait for the ends of jobs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, final

from .._contract.records import Ended
from .._contract.state import DurableState
from .._contract.waiter import Waiter

MAX_KNOWN: Final = 10_000
"""How many jobs are remembered at most, of those that have not ended and of those that have."""

SEPARATOR: Final = "\x1e"
"""A character that no JSON text has."""


@final
class Waiters:
    """The waiting tasks by job, and the jobs of this client that are known not to have ended.

    The server tells the submitter of a job, and each client that asked for it, when the job ends.
    """

    def __init__(self) -> None:
        self._by_id: Final[dict[int, set[Waiter]]] = {}
        self._alive: Final[set[int]] = set()
        # jobs that have ended, in that order: the message may come before the answer to `enqueue`
        self._ended: Final[OrderedDict[int, None]] = OrderedDict()

    def add(self, id: int) -> Waiter:
        """Begin to wait for a job."""
        waiter = Waiter()
        self._by_id.setdefault(id, set()).add(waiter)
        return waiter

    def remove(self, id: int, waiter: Waiter) -> None:
        """End to wait for a job."""
        waiters = self._by_id.get(id)
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self._by_id[id]

    def accepted(self, ids: Iterable[int]) -> None:
        """Note that jobs were accepted: the server tells this client when they end."""
        if len(self._alive) < MAX_KNOWN:
            self._alive.update(id for id in ids if id not in self._ended)

    def is_alive(self, id: int) -> bool:
        """Whether a job is known not to have ended."""
        return id in self._alive

    def note(self, message: str) -> None:
        """Note a message of the server: what it tells about jobs, separated by `SEPARATOR`."""
        for about in message.split(SEPARATOR):
            self._note_one(about)

    def _note_one(self, message: str) -> None:
        """Note what the server tells about a job: ``ID`` has news, or ``ID STATE [OUTCOME]``."""
        id, *rest = message.split(" ", 2)
        if not rest:
            self._wake(int(id), None)
            return
        state, *outcome = rest
        self._ended[int(id)] = None
        if len(self._ended) > MAX_KNOWN:
            self._ended.popitem(last=False)
        self._alive.discard(int(id))
        self._wake(int(id), Ended(DurableState(state), outcome[0]) if outcome else None)

    def look_again(self) -> None:
        """Have all waiting tasks read their jobs again: a message may be lost."""
        self._alive.clear()
        for id in list(self._by_id):
            self._wake(id, None)

    def _wake(self, id: int, how: Ended | None) -> None:
        for waiter in self._by_id.pop(id, ()):
            waiter.see(how)
