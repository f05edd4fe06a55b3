"""Conversations: several turns of one thread at once, answers in the order of the questions.

The log of the thread is the truth, and what a conversation knows of it is what it has read. A turn
is placed once, while the thread's lock is exclusive: the commit that holds its users' messages is
its place, and whatever it says later refers to it. So nobody who writes ever looks at another's
exchange, and turns need not wait for each other.

A write of a turn happens in two steps. At the call it is checked and done in the turn's own
exchange, synchronously. When it is awaited, what has been done since the last commit is written as
one, while the thread's lock is shared; and at the end of the turn, what is left. Between the two
steps only this conversation sees it. A commit that is cancelled leaves what it did not write to
the next one.

At the end of a turn, that is done even if it was cancelled: shielded, and for two seconds at most.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Generator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Final, final

import trio
from trio.lowlevel import enable_ki_protection

from .._tools.calls import AnyCall, call_record
from .exchange import Exchange, Thread, copy_record
from .transcript import Commit, MemoryTranscript, Message, Record, TranscriptError, TranscriptStore

_log: Final = logging.getLogger("trio_lanes.agents")

_LAST_COMMIT: Final = 2.0  # seconds, at the end of a turn


@final
class Conversation:
    """One thread of messages in a store: write turns, read messages, fork, merge.

    ::

        async with conversation.turn("What is Trio?") as turn:
            async for text in model(turn.prompt):
                turn.append(text)
            await turn.finish()

    Any number of `Conversation` objects may have the same thread of the same store. What one of
    them writes the others see when it was committed.

    Args:
      thread_id: what the store knows the thread by; it need not exist.
      store: where it is kept; a `MemoryTranscript` of its own unless one is given.

    Raises:
      TypeError, ValueError: for a thread id that the store cannot keep.
    """

    def __init__(self, thread_id: str, store: TranscriptStore | None = None) -> None:
        self.store: Final[TranscriptStore] = MemoryTranscript() if store is None else store
        self.store.check(thread_id)
        self.thread_id: Final = thread_id
        self._thread = Thread(thread_id)
        self._running: Final[dict[str, Exchange]] = {}  # {turn id: exchange}, of this object's

    def __repr__(self) -> str:
        return (
            f"<trio_lanes.agents.Conversation {self.thread_id!r} at {id(self):#x}, "
            f"{len(self._running)} turns running>"
        )

    def turn(self, *contents: Any) -> AbstractAsyncContextManager[ConversationTurn]:
        """``async with conversation.turn("hello") as turn:`` asks, and holds the answer's place.

        Entering writes the users' messages and an empty answer behind all that is in the thread
        now, as one; it is a checkpoint, and if it is cancelled, nothing was written. Turns of
        one thread may run at the same time.

        Leaving ends the turn and writes what has not been written; it is a checkpoint. After
        `ConversationTurn.finish` the turn is complete, whatever else happened. Without, it is
        complete if it has answered, and else incomplete; calls that have no result get
        ``"skipped"`` for one. Left by an exception it is incomplete, keeps what it has said, and
        its calls without a result get ``"cancelled"``; writing that is shielded, for 2 seconds
        at most. If the store takes longer, the end of the turn is lost, which is logged.

        Args:
          contents: what users say, a message each: a string or another JSON value.

        Raises:
          TranscriptError: at the call, if nothing is said.
          TypeError, ValueError: at the call, for what is no JSON.
          Exception: on entering and on leaving, whatever the store raises; but a turn that is
            left by an exception raises that, and the store's is logged.
        """
        if not contents:
            raise TranscriptError("an answer must follow what a user says, and nothing is said")
        return _Turning(self, [_json("a message", content) for content in contents])

    @enable_ki_protection
    async def messages(self) -> list[Message]:
        """All messages of the thread, by place. A checkpoint.

        Those of turns that run are as they are now. Those of a turn that was cut off by a crash
        are as if it had been cancelled.

        Raises:
          TranscriptError: if what is stored is no conversation.
          Exception: whatever the store raises.
        """
        async with self.store.locks.shared(self.thread_id):
            await self._read()
            return list(self._thread.messages(self.store.live, self._running))

    @enable_ki_protection
    async def fork(self, new_id: str) -> Conversation:
        """A new thread in the same store, with a copy of the exchanges that have ended.

        A checkpoint. If it is cancelled, there is no new thread.

        Raises:
          TypeError, ValueError: if the store cannot keep a thread of that id.
          TranscriptError: if there is a thread of that id already.
          Exception: whatever the store raises.
        """
        fork = Conversation(new_id, self.store)
        if new_id == self.thread_id:
            raise TranscriptError(f"there is a thread {new_id!r} already")
        async with _locked(exclusive=fork, shared=self):
            await self._read()
            await fork._read()
            if fork._thread.exchanges:
                raise TranscriptError(f"there is a thread {new_id!r} already")
            await fork._copy(self._thread.ended(self.store.live))
        return fork

    @enable_ki_protection
    async def merge(self, other: Conversation) -> None:
        """Put a copy of the exchanges of ``other`` that have ended behind all of this thread.

        A checkpoint. If it is cancelled, nothing was written. ``other`` may be in another store,
        and stays as it is.

        Raises:
          ValueError: if it is this very thread.
          TranscriptError: if what is stored is no conversation.
          Exception: whatever the stores raise.
        """
        if other.store is self.store and other.thread_id == self.thread_id:
            raise ValueError(f"thread {self.thread_id!r} cannot be merged into itself")
        async with _locked(exclusive=self, shared=other):
            await self._read()
            await other._read()
            await self._copy(other._thread.ended(other.store.live))

    async def _read(self) -> None:
        """Read what has come to the log since it was read last."""
        thread = self._thread
        start = thread.known
        commits = await self.store.load(self.thread_id, start)
        try:
            thread.read(commits[thread.known - start :])  # another task may have read some
        except TranscriptError:
            self._thread = Thread(self.thread_id)
            raise

    async def _copy(self, exchanges: Iterable[Exchange]) -> None:
        known = self._thread.exchanges
        commit = [copy_record(e, e.id if e.id not in known else _new_id()) for e in exchanges]
        if commit:
            await self.store.append(self.thread_id, commit)


@final
class ConversationTurn:
    """One turn of a conversation: what it may read, and what it says in its own place.

    Everything that writes is done at the call, which raises what is wrong with it. To await what
    it returns is a checkpoint, and waits until that and all before it is in the store; cancelling
    that undoes nothing, it is then written later. What is not awaited is written with the next
    that is, or at the turn's end: so a stream of small pieces costs no more than its whole.

    Attributes:
      id: unique among all turns.
      history: the messages of the exchanges placed before it that had ended when it was entered.
        One that was incomplete is there as far as it was answered; one without an answer is not,
        nor is one that was running. So it never ends with a question.
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
        """What a model is to go on from: the history, then all of this turn.

        Its answer is left out while that is empty.
        """
        return self.history + self._exchange.prompt()

    def append(self, delta: str) -> Awaitable[None]:
        """Add text to the answer. Behind the results of calls, this begins the next message.

        Raises:
          TranscriptError: if a call has no result yet, or the turn has ended.
          TypeError: if it is no string.
        """
        if not isinstance(delta, str):
            raise TypeError(f"a piece of text must be a string, not {delta!r}")
        return self._write({"op": "append", "text": delta})

    def call(self, tool_calls: Iterable[AnyCall]) -> Awaitable[None]:
        """Add calls to the answer: mappings with an ``"id"``, ids, or `ToolCall` objects.

        Raises:
          TranscriptError: if a call of this message has the id already, or some of its calls
            have a result and some have none; if there is no call; if the turn has ended.
          TypeError, ValueError: for a call without an id, or what is no JSON.
        """
        calls = [_json("a tool call", call_record(call)) for call in tool_calls]
        return self._write({"op": "call", "calls": calls})

    def result(self, call_id: str, content: Any) -> Awaitable[None]:
        """Give a call its result. The results stand in the order of the calls.

        Raises:
          TranscriptError: if no such call waits for a result, or the turn has ended.
          TypeError, ValueError: for what is no JSON.
        """
        return self._write({"op": "result", "call": call_id, "content": _json("a result", content)})

    def steer(self, *contents: Any) -> Awaitable[None]:
        """Let users say more in the midst of the turn; what is answered then follows that.

        Raises:
          TranscriptError: if a call has no result yet, nothing is said, or the turn has ended.
          TypeError, ValueError: for what is no JSON.
        """
        return self._write(
            {"op": "steer", "contents": [_json("a message", content) for content in contents]}
        )

    def finish(self, content: Any = None, usage: Any = None) -> Awaitable[None]:
        """Say that the answer is complete. Nothing can be added, and no failure undoes it.

        Args:
          content: stands in place of the text that was appended; None: that is the text.
          usage: what it has cost; kept as it is.

        Raises:
          TranscriptError: if a call has no result yet, or the turn has ended.
          TypeError, ValueError: for what is no JSON.
        """
        return self._write(
            {"op": "finish", "content": _json("a message", content), "usage": _json("usage", usage)}
        )

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
        """Write what has not been written; if this raises, it has not been written still."""
        store = self._conversation.store
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
        """End it, and write what is left of it."""
        if self._exchange.status == "in_progress":
            self._write(self._exchange.end_record(failed=failed))
        if failed:
            await self._commit_anyhow()
            return
        try:
            await self._commit()
        except Exception:
            raise
        except BaseException:  # cancelled, or Ctrl-C: the turn has not failed for that
            await self._commit_anyhow()
            raise

    async def _commit_anyhow(self) -> None:
        with trio.move_on_after(_LAST_COMMIT, shield=True):
            try:
                await self._commit()
            except Exception:
                _log.exception("%r could not be written", self)
        if self._unwritten:
            _log.error("the end of %r is lost", self)


@final
class _Written:
    """A write that was done, and can be awaited until it is stored."""

    def __init__(self, turn: ConversationTurn) -> None:
        self._turn: Final = turn

    def __await__(self) -> Generator[Any, Any, None]:
        return self._turn._commit().__await__()


@final
class _Turning:
    """One `async with` block of `Conversation.turn`."""

    def __init__(self, conversation: Conversation, contents: list[Any]) -> None:
        self._conversation: Final = conversation
        self._contents: Final = contents
        self._turn: ConversationTurn | None = None

    @enable_ki_protection
    async def __aenter__(self) -> ConversationTurn:
        conversation = self._conversation
        store = conversation.store
        exchange = Exchange(_new_id(), self._contents)
        async with store.locks.exclusive(conversation.thread_id):
            await conversation._read()
            history = tuple(
                message
                for ended in conversation._thread.ended(store.live)
                for message in ended.for_model(cut_off=True)
            )
            record = {"turn": exchange.id, "op": "open", "contents": self._contents}
            await store.append(conversation.thread_id, [record])
            store.live.add(exchange.id)
            conversation._running[exchange.id] = exchange
        self._turn = ConversationTurn(conversation, exchange, history)
        return self._turn

    @enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        turn = self._turn
        assert turn is not None
        try:
            await turn._close(failed=exc is not None)
        finally:
            self._conversation.store.live.remove(turn.id)
            del self._conversation._running[turn.id]


def _new_id() -> str:
    return secrets.token_hex(8)


def _json(what: str, value: Any) -> Any:
    """``value`` as it will be read back: a copy, and the same whichever store keeps it."""
    if value is None or isinstance(value, str):
        return value
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what} must be JSON: {error}") from None


@asynccontextmanager
async def _locked(exclusive: Conversation, shared: Conversation) -> AsyncIterator[None]:
    """Hold the locks of two threads, taken in an order that all keep, so that no two wait for
    each other: that of (store, thread id)."""

    def lock(conversation: Conversation) -> AbstractAsyncContextManager[None]:
        locks = conversation.store.locks
        mode = locks.exclusive if conversation is exclusive else locks.shared
        return mode(conversation.thread_id)

    first, second = sorted((exclusive, shared), key=lambda c: (id(c.store.locks), c.thread_id))
    async with lock(first), lock(second):
        yield
