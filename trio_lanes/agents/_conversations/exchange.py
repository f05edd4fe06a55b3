"""One exchange: what users asked, what was answered, and all the tools in between.

Everything that decides what may stand behind what is in this module. It is pure: it knows no time,
no task and no store. A turn that runs changes its exchange by `Exchange.apply`, one record at a
time, and so does reading a log; so what was written can be read.

A thread is a row of exchanges, in the order in which their turns were entered. Each begins with
what users say and keeps its place, whatever others do meanwhile, so it is enough to check each by
itself. Inside it there is one *answer* that can grow, always the last assistant message:

    user(s)  answer                                   it takes text and calls
    user(s)  answer(calls)  results                   it takes results, one for each call
    user(s)  answer(calls)  results  answer           when all are there, the next text begins this
    user(s)  answer  user(s)  answer                  steered, when no call is open

Its status is that of its last answer. The results stand in the order of the calls. When an
exchange ends, or has been cut off, each call without a result gets one that says so.

Records are ``{"turn": id, "op": ...}`` with, by ``op``:

    open     contents           begins an exchange: what users say
    copy     messages           is an exchange that has ended, from another thread
    append   text               more text of the answer
    call     calls              calls of the answer
    result   call, content      the result of one of them
    steer    contents           users say something in between
    finish   content, usage     the end; the content, if there is one, is instead of the text
    end      status             the end without that word
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, final

import attrs

from .transcript import Commit, Message, Record, Status, TranscriptError

_NO_RESULT: Final = object()


@final
@attrs.define(eq=False)
class _Answer:
    """An assistant message that can grow."""

    id: str
    parts: list[str] = attrs.field(factory=list)
    content: Any = None  # instead of the parts, when it has been finished so
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
        """Itself and the results of its calls, in place of which there may be a word."""
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
    """One exchange, under the id of its turn."""

    def __init__(self, id: str, contents: Sequence[Any]) -> None:
        self.id: Final = id
        self.status: Status = "in_progress"
        self._before: list[Message] = []  # what stands before the answer that can grow
        self._count = 0  # of the messages that have got an id, results left out
        self._say(contents)
        self._answer = _Answer(self._next_id())
        self._ended: tuple[Message, ...] = ()  # all of it, when it has ended

    @classmethod
    def copied(cls, id: str, messages: Sequence[Message]) -> Exchange:
        """One that has ended."""
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

    # ---- what can be read

    def messages(self, *, cut_off: bool = False) -> tuple[Message, ...]:
        """All of it; if ``cut_off``, nobody will end it any more."""
        if self._ended:
            return self._ended
        status: Status = "incomplete" if cut_off else self.status
        return (*self._before, *self._answer.messages(status))

    def for_model(self, *, cut_off: bool = False) -> tuple[Message, ...]:
        """What a model may be shown of it: no question that has no answer at its end.

        That is nothing if it is incomplete and nothing was answered.
        """
        messages = self.messages(cut_off=cut_off)
        if self.status == "completed":
            return messages
        end = len(messages)
        while end and _unanswered(messages[end - 1]):
            end -= 1
        return messages[:end]

    def prompt(self) -> tuple[Message, ...]:
        """All of it, but an answer that is still empty: what the model is to go on from."""
        messages = self.messages()
        return messages[:-1] if self._answer.empty else messages

    # ---- what can be done

    def apply(self, record: Record) -> None:
        """Do what ``record`` says.

        Raises:
          TranscriptError: if that may not be; then nothing has changed.
        """
        if self.status != "in_progress":
            raise TranscriptError(f"turn {self.id} has ended: nothing can be added")
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
                raise TranscriptError(f"no turn can do {record!r}")

    def end_record(self, *, failed: bool) -> Record:
        """How a turn ends that did not say that it has finished."""
        status = "incomplete" if failed or self._answer.empty else "completed"
        return {"turn": self.id, "op": "end", "status": status}

    def _all_answered(self, what: str) -> None:
        if missing := self._answer.open_calls:
            raise TranscriptError(
                f"{what} may not stand before the results of the calls {', '.join(missing)}"
            )

    def _growing(self, what: str) -> _Answer:
        """The answer to which ``what`` may be added: a new one, behind the results of calls."""
        self._all_answered(what)
        if self._answer.calls:
            self._begin_answer()
        return self._answer

    def _begin_answer(self) -> None:
        self._before += self._answer.messages("completed")
        self._answer = _Answer(self._next_id())

    def _call(self, calls: Sequence[dict[str, Any]]) -> None:
        ids = [call["id"] for call in calls]
        answer = self._answer
        # More calls of one message may come one by one; behind a result, a new message begins.
        results = answer.results.values()
        more = bool(results) and all(result is _NO_RESULT for result in results)
        known = set(answer.results) if more else set()
        if repeated := sorted({id for id in ids if id in known or ids.count(id) > 1}):
            raise TranscriptError(f"calls are repeated: {', '.join(repeated)}")
        if not ids:
            raise TranscriptError("there is no call")
        if not more:
            answer = self._growing("another call")
        answer.calls += calls
        answer.results.update(dict.fromkeys(ids, _NO_RESULT))

    def _result(self, call: str, content: Any) -> None:
        results = self._answer.results
        if call not in results:
            raise TranscriptError(f"there is no call {call!r} that waits for a result")
        if results[call] is not _NO_RESULT:
            raise TranscriptError(f"call {call!r} has its result already")
        results[call] = content

    def _steer(self, contents: Sequence[Any]) -> None:
        self._all_answered("what a user says")
        if not contents:
            raise TranscriptError("nothing is said")
        if not self._answer.empty:
            self._before += self._answer.messages("completed")
        self._say(contents)
        self._answer = _Answer(self._next_id())

    def _finish(self, content: Any, usage: Any) -> None:
        self._all_answered("the end of the turn")
        if content is not None:
            self._growing("the end of the turn").content = content
        self._answer.usage = usage
        self._end("completed")

    def _end(self, status: Status) -> None:
        self.status = status
        self._ended = self.messages()


def _unanswered(message: Message) -> bool:
    return message.role == "user" or (
        message.role == "assistant" and not message.content and not message.tool_calls
    )


@final
class Thread:
    """The exchanges of one log, as far as it has been read."""

    def __init__(self, id: str) -> None:
        self.id: Final = id
        self.exchanges: Final[dict[str, Exchange]] = {}  # {turn id: exchange}, by place
        self.known = 0  # commits that have been read

    def read(self, commits: Sequence[Commit]) -> None:
        """Read what comes next in the log.

        Raises:
          TranscriptError: if that is no log of a conversation.
        """
        for commit in commits:
            for record in commit:
                try:
                    self._read(record)
                except (TranscriptError, LookupError, TypeError, ValueError) as error:
                    raise TranscriptError(
                        f"thread {self.id!r}: commit {self.known} cannot be: {error!r}"
                    ) from error
            self.known += 1

    def _read(self, record: Record) -> None:
        turn = record["turn"]
        match record:
            case {"op": "open", "contents": [*contents]} if turn not in self.exchanges:
                self.exchanges[turn] = Exchange(turn, contents)
            case {"op": "copy", "messages": [*messages]} if turn not in self.exchanges:
                self.exchanges[turn] = Exchange.copied(turn, [_message(**m) for m in messages])
            case _:
                self.exchanges[turn].apply(record)

    def ended(self, live: Collection[str]) -> Iterator[Exchange]:
        """Those to which nothing will be added: which have ended, or are not ``live``."""
        for id, exchange in self.exchanges.items():
            if exchange.status != "in_progress" or id not in live:
                yield exchange

    def messages(self, live: Collection[str], instead: Mapping[str, Exchange]) -> Iterator[Message]:
        """All messages; of some exchanges those ``instead`` of what has been read."""
        for id, exchange in self.exchanges.items():
            yield from instead.get(id, exchange).messages(cut_off=id not in live)


def _message(tool_calls: Sequence[dict[str, Any]], **fields: Any) -> Message:
    return Message(tool_calls=tuple(tool_calls), **fields)


def copy_record(exchange: Exchange, id: str) -> Record:
    """``exchange``, which has ended or was cut off, under the id of another turn."""
    messages = [
        attrs.asdict(attrs.evolve(message, id=id + message.id.removeprefix(exchange.id)))
        for message in exchange.messages(cut_off=True)
    ]
    return {"turn": id, "op": "copy", "messages": messages}
