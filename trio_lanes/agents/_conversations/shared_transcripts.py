"""`SharedTranscripts`: the threads of conversations in the store of durable lanes.

A thread is a log, and a commit is a record of it. A turn that runs on another instance is known by
the author of its last commit: the turn is live as long as that instance has its lease. So a turn
that a crash cut off looks as it does in one process, on every instance.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, MutableSet, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, ClassVar, Final, final

from trio_lanes.durable import DurableLanes, DurableLog

from .recent import RecentThreads
from .shared_locks import SharedThreadLocks
from .transcript import Commit, TranscriptError, check_thread_id

MAX_THREAD_ID: Final = 200
REMEMBERED: Final = 10_000
"""How many turns of other instances are remembered, the latest ones."""


class SharedTranscripts:
    """A `TranscriptStore` for all instances; one for each `~trio_lanes.durable.DurableLanes`.

    ::

        transcripts = SharedTranscripts(lanes)
        conversation = Conversation("thread-1", transcripts)

    A commit survives the process as an accepted job does. It is kept until `delete`. A turn of an
    instance that has lost its lease can write no more, and is shown as cut off. The async methods
    raise the errors of `check`, and `~trio_lanes.durable.StoreUnavailableError` if the store is not
    available.
    """

    _locks_type: ClassVar[type[SharedThreadLocks]] = SharedThreadLocks

    def __init__(self, lanes: DurableLanes) -> None:
        self.locks: Final = self._locks_type(lanes)
        self._lanes: Final = lanes
        self._turns: Final = _LiveTurns()
        self._recent: Final[RecentThreads[Any]] = RecentThreads()

    def __repr__(self) -> str:
        return f"<trio_lanes.agents.SharedTranscripts of {self._lanes!r}>"

    @property
    def live(self) -> MutableSet[str]:
        """The turns that run, here or elsewhere; the latter as of the last `load`."""
        return self._turns

    def reading(self, thread_id: str) -> AbstractAsyncContextManager[None]:
        """Hold what a reader of a thread needs: nothing, since a log has whole commits alone."""
        return nullcontext()

    def check(self, thread_id: str) -> None:
        """Return if ``thread_id`` can be the name of a log. Not a checkpoint.

        Raises:
          TypeError: if it is not a string.
          ValueError: if it is blank, or has more than 200 characters.
        """
        if len(check_thread_id(thread_id)) > MAX_THREAD_ID:
            raise ValueError(
                f"a thread id must have at most {MAX_THREAD_ID} characters, got {len(thread_id)}"
            )

    async def load(self, thread_id: str, start: int = 0) -> Sequence[Commit]:
        """See `TranscriptStore.load`.

        Raises:
          TranscriptError: if a record of the log is not a commit.
        """
        found = await self._log(thread_id).read(start)
        self._turns.instances = {instance.id for instance in await self._lanes.instances()}
        for record in found:
            if not isinstance(record.data, list):
                raise TranscriptError(
                    f"thread {thread_id!r}: record {record.number} is not a list of records"
                )
            self._turns.note(record.author, record.data)
        return [record.data for record in found]

    async def append(self, thread_id: str, commit: Commit) -> None:
        """See `TranscriptStore.append`.

        Raises:
          TypeError, ValueError: if ``commit`` is not JSON or too large.
          LockLostError: if this instance has lost its lease.
        """
        await self._log(thread_id).append(commit)

    async def delete(self, thread_id: str) -> bool:
        """Forget a thread; False if there is none. No conversation should use it. A checkpoint."""
        self._recent.forget(thread_id)
        return await self._log(thread_id).delete()

    def _log(self, thread_id: str) -> DurableLog:
        self.check(thread_id)
        return self._lanes.log(f"thread {thread_id}")


@final
class _LiveTurns(MutableSet[str]):
    """The ids of live turns: those of this process, and those of other live instances."""

    def __init__(self) -> None:
        self._here: Final[set[str]] = set()
        self._authors: Final[OrderedDict[str, str]] = OrderedDict()  # {turn: its instance}
        self.instances: set[str] = set()

    def note(self, author: str, commit: Commit) -> None:
        """Note the instance of the turns of a commit."""
        for record in commit:
            turn = record.get("turn")
            if isinstance(turn, str):
                self._authors[turn] = author
                self._authors.move_to_end(turn)
        while len(self._authors) > REMEMBERED:
            self._authors.popitem(last=False)

    def __contains__(self, turn: object) -> bool:
        return turn in self._here or self._authors.get(str(turn)) in self.instances

    def __iter__(self) -> Iterator[str]:
        return iter(self._here)

    def __len__(self) -> int:
        return len(self._here)

    def add(self, value: str) -> None:
        self._here.add(value)

    def discard(self, value: str) -> None:
        self._here.discard(value)
        self._authors.pop(value, None)  # it has ended here, whatever its log says
