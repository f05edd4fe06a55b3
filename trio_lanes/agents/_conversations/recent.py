"""The threads of a store that were used last, as far as they have been read.

A turn costs what the log has gained since the last turn, also if each turn has a conversation
object of its own. A thread is what its log says, so all conversations can share one. Memory has two
bounds, but the thread that was used last stays, however long it is.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from .exchange import MessageThread

THREADS: Final = 100
"""How many threads are kept."""
COMMITS: Final = 20_000
"""How many commits they have together."""


@final
class RecentThreads:
    """The threads of one store that were used last."""

    def __init__(self) -> None:
        self._threads: Final[OrderedDict[str, MessageThread]] = OrderedDict()  # the latest last

    def find(self, id: str) -> MessageThread | None:
        """Return the thread with an id, if it is kept."""
        return self._threads.get(id)

    def keep(self, thread: MessageThread) -> None:
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
