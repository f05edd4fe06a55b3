"""Conversations: concurrent turns of one thread, with the answers in the order of the questions.

The log of the thread is authoritative; a conversation keeps a copy of the part that it has read. A
turn gets its place once, under the exclusive lock of the thread: the commit with its user messages
is its place, and all later records of the turn refer to that commit by the id of the turn. So a
turn never reads the exchange of another turn when it writes, and turns need not wait for each
other.

A write has two steps. The call checks the record and applies it to the exchange of the turn,
synchronously. Awaiting the result writes all records since the last commit as one commit, under the
shared lock of the thread; the end of the turn writes the rest. Between the two steps, only this
conversation object shows the change. A cancelled commit leaves its records to the next commit.

The commit at the end of a turn is done even if the turn was cancelled: shielded, for at most two
seconds.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Generator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, ClassVar, Final, Self, final

import trio
from trio.lowlevel import enable_ki_protection

from trio_lanes import LaneError

from .._tools.calls import AnyCall, call_record
from .exchange import Exchange, MessageThread, copy_record
from .recent import RecentThreads
from .transcript import Commit, MemoryTranscript, Message, Record, TranscriptError, TranscriptStore

_log: Final = logging.getLogger("trio_lanes.agents")

_LAST_COMMIT: Final = 2.0  # seconds, at the end of a turn


class Conversation:
    """One thread of messages in a store: write turns, read messages, fork, merge.

    ::

        async with conversation.turn("What is Trio?") as turn:
            async for text in model(turn.prompt):
                turn.append(text)
            await turn.finish()

    Any number of `Conversation` objects may use the same thread of the same store. Each of them
    shows the committed writes of the others. All methods that use the store raise its errors, and
    `TranscriptError` if the stored data is not a conversation.

    Args:
      thread_id: the id of the thread in the store; the thread need not exist.
      store: the store of the thread; a new `MemoryTranscript` unless one is given.

    Raises:
      TypeError, ValueError: for a thread id that is not valid in the store.
    """

    _turn_type: ClassVar[type[ConversationTurn]]  # set below it
    _store: TranscriptStore  # as its tasks await it

    def __init__(self, thread_id: str, store: TranscriptStore | None = None) -> None:
        self.store: Final[TranscriptStore] = MemoryTranscript() if store is None else store
        self._store = self.store
        self.store.check(thread_id)
        self.thread_id: Final = thread_id
        # of a store of this library; another store may mean another log by the same id
        self._recent: Final[RecentThreads[MessageThread]] = (
            getattr(self.store, "_recent", None) or RecentThreads()
        )
        self._thread = self._recent.find(thread_id) or MessageThread(thread_id)
        self._running: Final[dict[str, Exchange]] = {}  # {turn id: exchange} of this object

    def __repr__(self) -> str:
        return (
            f"<trio_lanes.agents.Conversation {self.thread_id!r} at {id(self):#x}, "
            f"{len(self._running)} turns running>"
        )

    def turn(
        self, *contents: Any, id: str | None = None
    ) -> AbstractAsyncContextManager[ConversationTurn]:
        """Add user messages, and reserve the place of the answer: ``async with ... as turn:``.

        Entering appends the user messages and an empty answer to the thread, as one commit. It is
        a checkpoint; if it is cancelled, nothing was written. Turns of one thread may run at the
        same time.

        Leaving ends the turn and writes the rest of it; it is a checkpoint. After
        `ConversationTurn.finish` the turn is complete, whatever happened later. Without it, the
        turn is complete if it has an answer, and otherwise incomplete; calls without a result get
        the result ``"skipped"``. If an exception leaves the block, the turn is incomplete and keeps
        its messages, and calls without a result get the result ``"cancelled"``; this commit is
        shielded, for at most 2 seconds. If the store takes longer, the end of the turn is lost,
        and the loss is logged.

        Args:
          contents: the user messages, each a string or another JSON value.
          id: the id of the turn, by which `take_out` finds it after a crash; a new id unless it is
            given. A turn that was taken out or rolled back leaves its id to another.

        Raises:
          TranscriptError: at the call, if there is no message; on entering, if the thread has a
            turn with the id.
          TypeError, ValueError: at the call, for a message that is not JSON.
          Exception: an error of the store on entering and on leaving; but if an exception leaves
            the block, it is raised, and the error of the store is logged.
        """
        if not contents:
            raise TranscriptError("a turn must begin with a user message, and none was given")
        return _Turning(self, [_json("a message", content) for content in contents], id)

    @enable_ki_protection
    async def take_out(self, turn_id: str) -> bool:
        """Take a turn that was cut off out of the thread, as `ConversationTurn.rollback` does.

        A process that answers again, after a crash, takes out the turn of its predecessor first: so
        the thread has the question once. A checkpoint.

        Returns:
          False if the turn is complete, and stays; True if the thread does not have it any more, or
          never had it.

        Raises:
          TranscriptError: if the turn runs.
        """
        async with self._store.locks.exclusive(self.thread_id):
            await self._read()
            exchange = self._thread.exchanges.get(turn_id)
            if exchange is None or exchange.rolled_back:
                return True
            if exchange.status == "in_progress" and turn_id in self.store.live:
                raise TranscriptError(f"turn {turn_id} runs; it cannot be taken out")
            if exchange.status == "completed":
                return False
            await self._store.append(self.thread_id, [{"turn": turn_id, "op": "rollback"}])
        return True

    @enable_ki_protection
    async def messages(self) -> list[Message]:
        """Return all messages of the thread, by place. A checkpoint.

        The messages of running turns are included as they are now. The messages of a turn that a
        crash cut off look as if the turn had been cancelled. With `SharedTranscripts` it takes no
        lock, so lanes with ``worker=False`` will do.
        """
        reading = getattr(self._store, "reading", self._store.locks.shared)
        async with reading(self.thread_id):
            await self._read()
            return list(self._thread.messages(self.store.live, self._running))

    @enable_ki_protection
    async def fork(self, new_id: str) -> Self:
        """Copy the exchanges that have ended into a new thread of the same store, and return it.

        A checkpoint. If it is cancelled, there is no new thread.

        Raises:
          TypeError, ValueError: for a thread id that is not valid in the store.
          TranscriptError: if a thread with that id exists.
        """
        fork = type(self)(new_id, self.store)
        if new_id == self.thread_id:
            raise TranscriptError(f"a thread {new_id!r} exists already")
        async with _locked(exclusive=fork, shared=self):
            await self._read()
            await fork._read()
            if fork._thread.exchanges:
                raise TranscriptError(f"a thread {new_id!r} exists already")
            await fork._copy(self._thread.ended(self.store.live))
        return fork

    @enable_ki_protection
    async def merge(self, other: Conversation) -> None:
        """Append a copy of the exchanges of ``other`` that have ended to this thread.

        A checkpoint. If it is cancelled, nothing was written. ``other`` may be in another store,
        and does not change.

        Raises:
          ValueError: if ``other`` is the same thread.
        """
        if other.store is self.store and other.thread_id == self.thread_id:
            raise ValueError(f"thread {self.thread_id!r} cannot be merged into itself")
        async with _locked(exclusive=self, shared=other):
            await self._read()
            await other._read()
            await self._copy(other._thread.ended(other.store.live))

    async def _read(self) -> None:
        """Read the commits that the log has gained since the last call.

        The last known commit is read again. If it is another one now, the log was deleted or
        replaced, perhaps by another process, and is read from its start.
        """
        thread, last = self._thread, self._thread.last
        start = max(0, thread.known - 1)
        commits = await self._store.load(self.thread_id, start)
        if last is not None and (not commits or commits[0] != last):
            self._forget()
            thread, start = self._thread, 0
            commits = await self._store.load(self.thread_id)
        try:
            thread.read(commits[thread.known - start :])  # another task may have read some of them
        except TranscriptError as error:
            self._forget()
            raise TranscriptError(f"{error} (in {self.store!r})") from error
        self._thread = thread  # another task may have begun to read it anew
        self._recent.keep(thread)

    def _forget(self) -> None:
        self._recent.forget(self.thread_id)
        self._thread = MessageThread(self.thread_id)

    async def _copy(self, exchanges: Iterable[Exchange]) -> None:
        known = self._thread.exchanges
        commit = [copy_record(e, e.id if e.id not in known else _new_id()) for e in exchanges]
        if commit:
            await self._store.append(self.thread_id, commit)


class ConversationTurn:
    """One turn of a conversation: the history that it reads, and the messages that it writes.

    Each method that writes does so at the call, and raises errors there. Awaiting its result is a
    checkpoint; it waits until this write and all earlier writes are in the store. Cancelling the
    wait undoes nothing: the write is stored later. A write that is not awaited is stored with the
    next awaited write, or at the end of the turn, so a stream of small pieces costs no more than
    the whole text.

    All of them, but for `rollback`, raise `TranscriptError` if the turn has ended, and `TypeError`
    or `ValueError` for a value that is not JSON. Then nothing has changed.

    Attributes:
      id: unique among all turns.
      history: the messages of the earlier exchanges that had ended when the turn was entered. An
        incomplete exchange is included up to its last answer; an exchange without an answer and a
        running exchange are left out. So the history never ends with a question.
    """

    def __init__(
        self, conversation: Conversation, exchange: Exchange, history: tuple[Message, ...]
    ) -> None:
        self.id: Final = exchange.id
        self.history: Final = history
        self._conversation: Final = conversation
        self._exchange: Final = exchange
        self._unwritten: Commit = []
        self._writing: Final = trio.Lock()  # the commits of a turn are written in order

    def __repr__(self) -> str:
        return (
            f"<trio_lanes.agents.ConversationTurn {self.id} of "
            f"{self._conversation.thread_id!r}, {self._exchange.status}>"
        )

    @property
    def prompt(self) -> tuple[Message, ...]:
        """The messages for the next request to a model: the history, then this turn.

        An empty answer is left out.
        """
        return self.history + self.messages

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages of this turn so far, without an empty answer."""
        return self._exchange.prompt()

    def append(self, delta: str) -> Awaitable[None]:
        """Add text to the answer. After the results of calls, the text begins a new message.

        Raises:
          TranscriptError: if a call has no result yet.
          TypeError: if ``delta`` is not a string.
        """
        if not isinstance(delta, str):
            raise TypeError(f"a piece of text must be a string, not {delta!r}")
        return self._write({"op": "append", "text": delta})

    def call(self, tool_calls: Iterable[AnyCall]) -> Awaitable[None]:
        """Add calls to the answer: mappings with an ``"id"``, ids, or `ToolCall` objects.

        Raises:
          TranscriptError: if a call of this message has the id already, or some of its calls
            have a result and some have none; if there is no call.
          TypeError, ValueError: for a call without an id.
        """
        calls = [_json("a tool call", call_record(call)) for call in tool_calls]
        return self._write({"op": "call", "calls": calls})

    def result(self, call_id: str, content: Any) -> Awaitable[None]:
        """Add the result of a call. The results are in the order of the calls.

        Raises:
          TranscriptError: if no call with this id waits for a result.
        """
        return self._write({"op": "result", "call": call_id, "content": _json("a result", content)})

    def steer(self, *contents: Any) -> Awaitable[None]:
        """Add user messages in the middle of the turn; the next text begins a new answer.

        Raises:
          TranscriptError: if a call has no result yet, or there is no message.
        """
        return self._write(
            {"op": "steer", "contents": [_json("a message", content) for content in contents]}
        )

    def finish(self, content: Any = None, usage: Any = None) -> Awaitable[None]:
        """Mark the answer as complete. Nothing can be added later, and no failure undoes it.

        Args:
          content: replaces the text that was appended; None keeps that text.
          usage: the usage of the answer, stored as it is.

        Raises:
          TranscriptError: if a call has no result yet.
        """
        return self._write(
            {"op": "finish", "content": _json("a message", content), "usage": _json("usage", usage)}
        )

    def rollback(self) -> Awaitable[None]:
        """Take the turn out of the thread: its user messages, its answers and its results.

        No later turn has them in its history, and `Conversation.messages` does not show them. This
        is possible until the block of the turn is left, also after `finish`; after it, nothing can
        be added. A second call has no effect.

        Raises:
          TranscriptError: if the block of the turn was left.
        """
        if self.id not in self._conversation._running:
            raise TranscriptError(f"turn {self.id} has ended; it cannot be rolled back")
        return self._write({"op": "rollback"})

    @enable_ki_protection
    def _write(self, record: Record) -> Awaitable[None]:
        record = {"turn": self.id, **record}
        self._exchange.apply(record)
        if record["op"] == "append" and self._unwritten and self._unwritten[-1]["op"] == "append":
            self._unwritten[-1]["text"] += record["text"]
        else:
            self._unwritten.append(record)
        return _Written(self)

    @enable_ki_protection
    async def _commit(self) -> None:
        """Write the unwritten records as one commit; if this raises, they stay unwritten."""
        store = self._conversation._store
        thread_id = self._conversation.thread_id
        async with self._writing:
            if self._unwritten:
                async with store.locks.shared(thread_id):
                    commit, self._unwritten = self._unwritten, []
                    try:
                        await store.append(thread_id, commit)
                    except BaseException:
                        self._unwritten[:0] = commit
                        raise

    @enable_ki_protection
    async def _close(self, failed: bool) -> None:
        """End the turn, and write the rest of it."""
        if self._exchange.status == "in_progress":
            self._write(self._exchange.end_record(failed=failed))
        if failed:
            await self._commit_shielded()
            return
        try:
            await self._commit()
        except Exception:
            raise
        except BaseException:  # cancelled, or Ctrl-C: neither is a failure of the turn
            await self._commit_shielded()
            raise

    async def _commit_shielded(self) -> None:
        with trio.move_on_after(_LAST_COMMIT, shield=True):
            try:
                try:
                    await self._commit()
                except LaneError:  # at the end of its grace, a drain takes the held locks away
                    await self._commit()
            except Exception:
                _log.exception("%r could not be written to its store", self)
        if self._unwritten:
            _log.error("the end of %r was not written to its store, and is lost", self)


Conversation._turn_type = ConversationTurn


@final
class _Written:
    """An applied write; awaiting it waits until the write is stored."""

    def __init__(self, turn: ConversationTurn) -> None:
        self._turn: Final = turn

    def __await__(self) -> Generator[Any, Any, None]:
        return self._turn._commit().__await__()


@final
class _Turning:
    """One `async with` block of `Conversation.turn`."""

    def __init__(self, conversation: Conversation, contents: list[Any], id: str | None) -> None:
        self._conversation: Final = conversation
        self._contents: Final = contents
        self._id: Final = id
        self._turn: ConversationTurn | None = None

    @enable_ki_protection
    async def __aenter__(self) -> ConversationTurn:
        conversation = self._conversation
        store = conversation._store
        exchange = Exchange(_new_id() if self._id is None else self._id, self._contents)
        async with store.locks.exclusive(conversation.thread_id):
            await conversation._read()
            if exchange.id in conversation._running or not conversation._thread.lacks(exchange.id):
                raise TranscriptError(f"the thread has a turn {exchange.id!r} already")
            history = conversation._thread.history(store.live)
            record = {"turn": exchange.id, "op": "open", "contents": self._contents}
            store.live.add(exchange.id)  # first: no reader is to see a turn that was cut off
            try:
                await store.append(conversation.thread_id, [record])
            except BaseException:
                store.live.discard(exchange.id)
                raise
            conversation._running[exchange.id] = exchange
        self._turn = conversation._turn_type(conversation, exchange, history)
        return self._turn

    @enable_ki_protection
    async def __aexit__(self, *exc: object) -> None:
        turn = self._turn
        assert turn is not None
        try:
            await turn._close(failed=exc[0] is not None)
        finally:
            self._conversation.store.live.remove(turn.id)
            del self._conversation._running[turn.id]


def _new_id() -> str:
    return secrets.token_hex(8)


def _json(what: str, value: Any) -> Any:
    """Return a copy of ``value`` as any store will return it: encoded to JSON and decoded."""
    if value is None or isinstance(value, str):
        return value
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what} must be JSON: {error}") from None


@asynccontextmanager
async def _locked(exclusive: Conversation, shared: Conversation) -> AsyncIterator[None]:
    """Hold the locks of two threads.

    All callers acquire locks in the order of (store, thread id), so they cannot deadlock.
    """

    def lock(conversation: Conversation) -> AbstractAsyncContextManager[object]:
        locks = conversation._store.locks
        mode = locks.exclusive if conversation is exclusive else locks.shared
        return mode(conversation.thread_id)

    first, second = sorted((exclusive, shared), key=lambda c: (id(c.store.locks), c.thread_id))
    async with lock(first), lock(second):
        yield
