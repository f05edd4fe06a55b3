"""The exchange of a turn: the user messages, the answers, and the tool calls between them.

This module has all rules about the order of messages. It is pure: it uses no clock, no task and no
store. A running turn changes its exchange by `Exchange.apply`, one record at a time. Reading a log
applies the same records, so every log that was written can be read.

A thread is a list of exchanges, in the order in which their turns were entered. An exchange begins
with user messages and never changes its place, whatever other turns do, so each exchange is checked
by itself. One message of an exchange can grow: the *answer*, which is its last assistant message.

    user(s)  answer                                   the answer takes text and calls
    user(s)  answer(calls)  results                   it takes results, one for each call
    user(s)  answer(calls)  results  answer           after all results, text begins a new answer
    user(s)  answer  user(s)  answer                  steered, while no call is open

The status of the exchange is the status of its last answer. The results are in the order of the
calls. When an exchange ends, or was cut off, each call without a result gets a substitute.

Records are ``{"turn": id, "op": ...}`` with these fields, by ``op``:

    open     contents           begins an exchange with user messages
    copy     messages           an exchange that has ended, copied from another thread
    append   text               more text of the answer
    call     calls              calls of the answer
    result   call, content      the result of one of the calls
    steer    contents           user messages in the middle of the turn
    finish   content, usage     the end; content, unless it is null, replaces the text
    end      status             the end of a turn that did not finish by itself
    rollback                    the end of a turn that leaves the thread with all its messages
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, final

import attrs

from .transcript import Commit, Message, Record, Status, TranscriptError

_NO_RESULT: Final = object()


@final
@attrs.define(eq=False)
class _GrowingAnswer:
    """An assistant message that can grow, with the results of its calls."""

    id: str
    parts: list[str] = attrs.field(factory=list)
    content: Any = None  # replaces the parts, unless it is None
    calls: list[dict[str, Any]] = attrs.field(factory=list)
    results: dict[str, Any] = attrs.field(factory=dict)  # {call id: content}, in call order
    usage: Any = None

    @property
    def empty(self) -> bool:
        return not (any(self.parts) or self.content or self.calls)

    @property
    def open_calls(self) -> list[str]:
        return [call for call, result in self.results.items() if result is _NO_RESULT]

    def messages(self, status: Status) -> Iterator[Message]:
        """Yield the answer and the results of its calls, or the substitutes of missing results."""
        content = "".join(self.parts) if self.content is None else self.content
        yield Message("assistant", content, status, self.id, tuple(self.calls), usage=self.usage)
        for n, (call, result) in enumerate(self.results.items()):
            id = f"{self.id}.{n}"
            if result is not _NO_RESULT:
                yield Message("tool", result, "completed", id, tool_call_id=call)
            elif status != "in_progress":
                why = "skipped" if status == "completed" else "cancelled"
                yield Message("tool", why, "incomplete", id, tool_call_id=call)


@final
class Exchange:
    """The exchange of one turn, known by the id of the turn."""

    def __init__(self, id: str, contents: Sequence[Any]) -> None:
        self.id: Final = id
        self.status: Status = "in_progress"
        self._before: list[Message] = []  # the messages before the answer that can grow
        self._count = 0  # messages with an id, without results
        self._say(contents)
        self._answer = _GrowingAnswer(self._next_id())
        self._ended: tuple[Message, ...] = ()  # all messages, when it has ended
        self.rolled_back: bool = False

    @classmethod
    def copied(cls, id: str, messages: Sequence[Message]) -> Exchange:
        """Return an exchange that has ended, with these messages."""
        exchange = cls(id, ())
        answers = [message for message in messages if message.role == "assistant"]
        exchange.status = answers[-1].status
        exchange._ended = tuple(messages)
        return exchange

    def _next_id(self) -> str:
        self._count += 1
        return f"{self.id}.{self._count}"

    def _say(self, contents: Sequence[Any]) -> None:
        self._before += [Message("user", content, id=self._next_id()) for content in contents]

    # ---- reading

    def messages(self, *, cut_off: bool = False) -> tuple[Message, ...]:
        """Return all messages; ``cut_off`` means that no turn will end the exchange any more."""
        if self._ended or self.rolled_back:
            return self._ended
        status: Status = "incomplete" if cut_off else self.status
        return (*self._before, *self._answer.messages(status))

    def for_model(self, *, cut_off: bool = False) -> tuple[Message, ...]:
        """Return the messages for a model: without questions at the end that have no answer.

        Empty if the exchange is incomplete and has no answer.
        """
        messages = self.messages(cut_off=cut_off)
        if self.status == "completed":
            return messages
        end = len(messages)
        while end and _unanswered(messages[end - 1]):
            end -= 1
        return messages[:end]

    def prompt(self) -> tuple[Message, ...]:
        """Return all messages without an empty answer, for the next request to the model."""
        messages = self.messages()
        return messages[:-1] if self._answer.empty else messages

    # ---- changing

    def apply(self, record: Record) -> None:
        """Apply one record.

        Raises:
          TranscriptError: if the record is not allowed now; then nothing has changed.
        """
        if record["op"] == "rollback":
            self._rollback()
            return
        if self.status != "in_progress":
            raise TranscriptError(f"turn {self.id} has ended; nothing can be added")
        match record:
            case {"op": "append", "text": str(text)}:
                self._growing("text").parts.append(text)
            case {"op": "call", "calls": [*calls]}:
                self._call(calls)
            case {"op": "result", "call": str(call), "content": content}:
                self._result(call, content)
            case {"op": "steer", "contents": [*contents]}:
                self._steer(contents)
            case {"op": "finish", "content": content, "usage": usage}:
                self._finish(content, usage)
            case {"op": "end", "status": "completed" | "incomplete" as status}:
                self._end(status)
            case _:
                raise TranscriptError(f"unknown record {record!r}")

    def end_record(self, *, failed: bool) -> Record:
        """Return the record that ends a turn without `ConversationTurn.finish`."""
        status = "incomplete" if failed or self._answer.empty else "completed"
        return {"turn": self.id, "op": "end", "status": status}

    def _all_answered(self, what: str) -> None:
        if missing := self._answer.open_calls:
            raise TranscriptError(
                f"{what} must follow the results of the calls {', '.join(missing)}"
            )

    def _growing(self, what: str) -> _GrowingAnswer:
        """Return the answer that ``what`` is added to; a new answer after the results of calls."""
        self._all_answered(what)
        if self._answer.calls:
            self._begin_answer()
        return self._answer

    def _begin_answer(self, contents: Sequence[Any] = ()) -> None:
        """Begin a new answer, after user messages with these contents."""
        if not self._answer.empty:
            self._before += self._answer.messages("completed")
        self._say(contents)
        self._answer = _GrowingAnswer(self._next_id())

    def _call(self, calls: Sequence[dict[str, Any]]) -> None:
        ids = [call["id"] for call in calls]
        answer = self._answer
        # Calls of one message may be added one by one; after a result, a new message begins.
        results = answer.results.values()
        more = bool(results) and all(result is _NO_RESULT for result in results)
        known = set(answer.results) if more else set()
        if repeated := sorted({id for id in ids if id in known or ids.count(id) > 1}):
            raise TranscriptError(f"calls are repeated: {', '.join(repeated)}")
        if not ids:
            raise TranscriptError("no call was given")
        if not more:
            answer = self._growing("another call")
        answer.calls += calls
        answer.results.update(dict.fromkeys(ids, _NO_RESULT))

    def _result(self, call: str, content: Any) -> None:
        results = self._answer.results
        if call not in results:
            raise TranscriptError(f"no call {call!r} waits for a result")
        if results[call] is not _NO_RESULT:
            raise TranscriptError(f"call {call!r} has its result already")
        results[call] = content

    def _steer(self, contents: Sequence[Any]) -> None:
        self._all_answered("a user message")
        if not contents:
            raise TranscriptError("no user message was given")
        self._begin_answer(contents)

    def _finish(self, content: Any, usage: Any) -> None:
        self._all_answered("the end of the turn")
        if content is not None:
            self._growing("the end of the turn").content = content
        self._answer.usage = usage
        self._end("completed")

    def _rollback(self) -> None:
        self.status = "incomplete"
        self.rolled_back = True
        self._ended = ()

    def _end(self, status: Status) -> None:
        self.status = status
        self._ended = self.messages()


def _unanswered(message: Message) -> bool:
    return message.role == "user" or (
        message.role == "assistant" and not message.content and not message.tool_calls
    )


@final
class MessageThread:
    """The exchanges of one log, up to the last commit that was read."""

    def __init__(self, id: str) -> None:
        self.id: Final = id
        self.exchanges: Final[dict[str, Exchange]] = {}  # {turn id: exchange}, by place
        self.known = 0  # the number of commits that were read
        self.last: Commit | None = None  # the last of them
        # The history begins with exchanges that have ended, whose messages are taken once; the
        # others stand behind them. So a turn costs as much after 1,000 exchanges as after one.
        self._history: list[Message] = []
        self._behind: OrderedDict[str, Exchange] = OrderedDict()  # {turn id: exchange}

    def read(self, commits: Sequence[Commit]) -> None:
        """Apply the next commits of the log.

        Raises:
          TranscriptError: if they are not commits of a conversation.
        """
        for commit in commits:
            for record in commit:
                try:
                    self._read(record)
                except (TranscriptError, LookupError, TypeError, ValueError) as error:
                    raise TranscriptError(
                        f"thread {self.id!r}: commit {self.known + 1}, which is that line of a "
                        f"file, is not valid: {error!r}"
                    ) from error
            self.known += 1
            self.last = commit

    def _read(self, record: Record) -> None:
        turn = record["turn"]
        match record:
            case {"op": "open", "contents": [*contents]} if self.lacks(turn):
                self._begin(Exchange(turn, contents))
            case {"op": "copy", "messages": [*messages]} if turn not in self.exchanges:
                self._begin(Exchange.copied(turn, [_message(**m) for m in messages]))
            case _:
                self.exchanges[turn].apply(record)
                if turn not in self._behind:  # rolled back, or it goes on though it seemed cut off
                    self._history, self._behind = [], OrderedDict(self.exchanges)

    def lacks(self, turn: str) -> bool:
        """Whether a turn may begin with this id: none has it, or one that was rolled back."""
        exchange = self.exchanges.get(turn)
        return exchange is None or exchange.rolled_back

    def _begin(self, exchange: Exchange) -> None:
        for known in (self.exchanges, self._behind):
            known.pop(exchange.id, None)  # it was rolled back, and its place is another now
        self.exchanges[exchange.id] = self._behind[exchange.id] = exchange

    def history(self, live: Collection[str]) -> tuple[Message, ...]:
        """Return the messages that a new turn reads, of the exchanges that have ended."""
        behind = self._behind
        while behind and _has_ended(next(iter(behind.values())), live):
            self._history += behind.popitem(last=False)[1].for_model(cut_off=True)
        ended = [exchange for exchange in behind.values() if _has_ended(exchange, live)]
        more = chain.from_iterable(exchange.for_model(cut_off=True) for exchange in ended)
        return (*self._history, *more)

    def ended(self, live: Collection[str]) -> Iterator[Exchange]:
        """Yield the exchanges that have ended, without those that were rolled back."""
        for exchange in self.exchanges.values():
            if _has_ended(exchange, live) and not exchange.rolled_back:
                yield exchange

    def messages(self, live: Collection[str], instead: Mapping[str, Exchange]) -> Iterator[Message]:
        """Yield all messages; ``instead`` replaces some exchanges by newer ones."""
        for id, exchange in self.exchanges.items():
            yield from instead.get(id, exchange).messages(cut_off=id not in live)


def _has_ended(exchange: Exchange, live: Collection[str]) -> bool:
    """Whether the turn has ended, or was cut off: its id is not in ``live``."""
    return exchange.status != "in_progress" or exchange.id not in live


def _message(tool_calls: Sequence[dict[str, Any]], **fields: Any) -> Message:
    return Message(tool_calls=tuple(tool_calls), **fields)


def copy_record(exchange: Exchange, id: str) -> Record:
    """Return a record with a copy of ``exchange``, under the id of another turn.

    The exchange has ended or was cut off.
    """
    messages = [
        attrs.asdict(attrs.evolve(message, id=id + message.id.removeprefix(exchange.id)))
        for message in exchange.messages(cut_off=True)
    ]
    return {"turn": id, "op": "copy", "messages": messages}
