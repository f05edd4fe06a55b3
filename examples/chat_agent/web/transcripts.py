"""The transcript of each session for a page: a list of items, of which the last may grow."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Any, Final

from ..events import (
    Answered,
    Asked,
    Began,
    Called,
    Ended,
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
        self._items: Final[dict[str, deque[Item]]] = {}
        self._growing: Final[dict[str, Item]] = {}  # {session: the growing answer}
        self._calls: Final[dict[str, dict[str, Item]]] = {}  # {session: {call id: item}}, open ones
        self._ids: Final = count(1)

    def facts(self) -> Iterator[Fact]:
        """Return all items, as facts."""
        for session, items in self._items.items():
            for item in items:
                yield {"what": "item", "session": session, "item": dict(item)}

    def tell(self, event: Event) -> None:
        """Record an event of a session."""
        session = event.session
        match event:
            case Began(_, texts) | Steered(_, texts):
                self._end_answer(session, "done")
                state = "asked" if isinstance(event, Began) else "steered"
                for text in texts:
                    self._add(session, kind="user", text=text, state=state)
            case Piece(_, text):
                self._grow(session, text)
            case Called(_, calls):
                self._end_answer(session, "done")
                self._calls[session] = {
                    call.id: self._add(
                        session,
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
                    self._change(session, self._calls[session][call.id], state="asks")
            case Answered(_, allowed):
                for item in self._calls.get(session, {}).values():
                    if item["state"] == "asks":
                        self._change(session, item, state="running" if allowed else "denied")
            case Returned(_, call, text):
                item = self._calls[session].pop(call.id)
                failed = text.startswith("error: ")
                state = "denied" if item["state"] == "denied" else "failed" if failed else "done"
                self._change(session, item, text=text, state=state)
            case Noted(_, text):
                self._add(session, kind="note", text=text)
            case Ended(_, ending):
                self._end_answer(session, "cut" if ending else "done")
                for item in self._calls.pop(session, {}).values():
                    self._change(session, item, state="cancelled")
                if ending:
                    self._add(session, kind="note", text=ending)
            case _:  # waiting messages are not part of it
                pass

    def _add(self, session: str, **fields: Any) -> Item:
        item: Item = {"id": next(self._ids), **fields}
        self._items.setdefault(session, deque(maxlen=MAX_ITEMS)).append(item)
        self._change(session, item)
        return item

    def _change(self, session: str, item: Item, **fields: Any) -> None:
        item |= fields
        self._feed.publish({"what": "item", "session": session, "item": dict(item)})

    def _grow(self, session: str, text: str) -> None:
        item = self._growing.get(session)
        if item is None:
            self._growing[session] = self._add(session, kind="agent", text=text, state="growing")
        else:
            item["text"] += text
            fact = {"what": "piece", "session": session, "id": item["id"], "text": text}
            self._feed.publish(fact)

    def _end_answer(self, session: str, state: str) -> None:
        item = self._growing.pop(session, None)
        if item is not None:
            self._change(session, item, state=state)
