"""The transcript of each session for a page: a list of items, of which the last may grow.

A transcript is made of events while its session is busy, or open on a page. It is forgotten
afterwards. When a page opens the session again, the earlier turns are read from the conversation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from itertools import count
from typing import Any, Final

from trio_lanes.agents import Conversation, Message

from ..events import (
    Answered,
    Asked,
    Began,
    Called,
    Ended,
    Entered,
    Event,
    Noted,
    Piece,
    Returned,
    Steered,
)
from .feed import Fact, Feed

MAX_ITEMS: Final = 200  # items of a session; older items stay in the conversation only

Item = dict[str, Any]


class Transcripts:
    """Items by session. An item that is published again replaces its former version."""

    def __init__(self, feed: Feed) -> None:
        self._feed: Final = feed
        self._shown: Final[dict[str, _Transcript]] = {}
        self._ids: Final = count(1)

    def __len__(self) -> int:
        return len(self._shown)

    def facts(self, sessions: Collection[str]) -> Iterator[Fact]:
        """Return all items of these sessions, as facts."""
        for session in sessions:
            if session in self._shown:
                for item in self._shown[session].items:
                    yield {"what": "item", "session": session, "item": dict(item)}

    def tell(self, event: Event) -> None:
        """Record an event of a session."""
        self._of(event.session).tell(event)

    async def load(self, session: str, conversation: Conversation) -> None:
        """Put the earlier turns of the conversation before the items, unless they are there."""
        transcript = self._of(session)
        if not transcript.is_whole:
            transcript.put_before(await conversation.messages())

    def forget(self, session: str) -> None:
        """Forget the items of a session in which nothing goes on."""
        self._shown.pop(session, None)

    def _of(self, session: str) -> _Transcript:
        if session not in self._shown:
            self._shown[session] = _Transcript(session, self._feed, self._ids)
        return self._shown[session]


class _Transcript:
    """The items of one session."""

    def __init__(self, session: str, feed: Feed, ids: Iterator[int]) -> None:
        self.items: Final[deque[Item]] = deque(maxlen=MAX_ITEMS)
        self.is_whole = False  # whether the earlier turns are here, too
        self._session: Final = session
        self._feed: Final = feed
        self._ids: Final = ids
        self._turns: Final[set[str]] = set()  # the turns that events have told
        self._growing: Item | None = None  # the answer
        self._calls: dict[str, Item] = {}  # {call id: item}, open ones

    def tell(self, event: Event) -> None:
        match event:
            case Began(_, texts) | Steered(_, texts):
                self._end_answer("done")
                state = "asked" if isinstance(event, Began) else "steered"
                for text in texts:
                    self._add(kind="user", text=text, state=state)
            case Entered(_, turn):
                self._turns.add(turn)
            case Piece(_, text):
                self._grow(text)
            case Called(_, calls):
                self._end_answer("done")
                self._calls = {
                    call.id: self._add(
                        kind="tool",
                        name=call.name,
                        arguments=call.arguments,
                        text="",
                        state="running",
                    )
                    for call in calls
                }
            case Asked(_, calls):
                for call in calls:
                    self._change(self._calls[call.id], state="asks")
            case Answered(_, allowed):
                for item in self._calls.values():
                    if item["state"] == "asks":
                        self._change(item, state="running" if allowed else "denied")
            case Returned(_, call, text):
                item = self._calls.pop(call.id)
                denied = item["state"] == "denied"
                self._change(item, text=text, state="denied" if denied else _state_of(text))
            case Noted(_, text):
                self._add(kind="note", text=text)
            case Ended(_, ending):
                self._end_answer("cut" if ending else "done")
                for item in self._calls.values():
                    self._change(item, state="cancelled")
                self._calls = {}
                if ending:
                    self._add(kind="note", text=ending)
            case _:  # waiting messages are not part of it
                pass

    def put_before(self, messages: Sequence[Message]) -> None:
        """Put messages before the items, except those that events have told, or will tell."""
        if self.is_whole:  # another page was faster
            return
        self.is_whole = True
        turns: dict[str, list[Message]] = {}
        for message in messages:
            turns.setdefault(message.id.partition(".")[0], []).append(message)
        earlier = [
            item
            for turn, said in turns.items()
            if turn not in self._turns and said[-1].status != "in_progress"
            for item in _items_of(said)
        ]
        room = MAX_ITEMS - len(self.items)
        for item in reversed(earlier[-room:] if room else []):
            self.items.appendleft({"id": next(self._ids), **item})

    def _add(self, **fields: Any) -> Item:
        item: Item = {"id": next(self._ids), **fields}
        self.items.append(item)
        self._change(item)
        return item

    def _change(self, item: Item, **fields: Any) -> None:
        item |= fields
        self._feed.publish({"what": "item", "session": self._session, "item": dict(item)})

    def _grow(self, text: str) -> None:
        item = self._growing
        if item is None:
            self._growing = self._add(kind="agent", text=text, state="growing")
        else:
            item["text"] += text
            fact = {"what": "piece", "session": self._session, "id": item["id"], "text": text}
            self._feed.publish(fact)

    def _end_answer(self, state: str) -> None:
        if self._growing is not None:
            self._change(self._growing, state=state)
            self._growing = None


def _items_of(turn: Sequence[Message]) -> Iterator[Item]:
    """Yield the items of a turn that has ended, as events told them."""
    results = {message.tool_call_id: message for message in turn if message.role == "tool"}
    began = False
    for message in turn:
        if message.role == "user":
            yield {
                "kind": "user",
                "text": message.content,
                "state": "steered" if began else "asked",
            }
        elif message.role == "assistant":
            began = True
            if message.content:
                state = "cut" if message.status == "incomplete" else "done"
                yield {"kind": "agent", "text": message.content, "state": state}
            for call in message.tool_calls:
                text = str(results[call["id"]].content)
                cut = results[call["id"]].status == "incomplete"
                yield {
                    "kind": "tool",
                    "name": call["name"],
                    "arguments": call["arguments"],
                    "text": "" if cut else text,
                    "state": "cancelled" if cut else _state_of(text),
                }


def _state_of(result: str) -> str:
    return "failed" if result.startswith("error: ") else "done"
