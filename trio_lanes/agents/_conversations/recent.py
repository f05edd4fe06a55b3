"""The threads of a store that were used last, as far as they have been read.

A turn costs what the log has gained since the last turn, also if each turn has a conversation
object of its own. A thread is what its log says, so all conversations can share one. Memory has two
bounds, but the thread that was used last stays, however long it is.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, Protocol, TypeVar, final

THREADS: Final = 100
"""How many threads are kept."""
COMMITS: Final = 20_000
"""How many commits they have together."""


class KeptThread(Protocol):
    """A `MessageThread`, as far as it matters here."""

    @property
    def id(self) -> str: ...
    @property
    def known(self) -> int:
        """How many commits it has."""


T = TypeVar("T", bound=KeptThread)


@final
class RecentThreads(Generic[T]):
    """The threads of one store that were used last."""

    def __init__(self) -> None:
        self._threads: Final[OrderedDict[str, T]] = OrderedDict()  # the latest last

    def find(self, id: str) -> T | None:
        """Return the thread with an id, if it is kept."""
        return self._threads.get(id)

    def keep(self, thread: T) -> None:
        """Keep a thread that is used now."""
        threads = self._threads
        threads[thread.id] = thread
        threads.move_to_end(thread.id)
        commits = sum(one.known for one in threads.values())
        while len(threads) > 1 and (len(threads) > THREADS or commits > COMMITS):
            commits -= threads.popitem(last=False)[1].known

    def forget(self, id: str) -> None:
        """Forget a thread: its log may have changed."""
        self._threads.pop(id, None)
