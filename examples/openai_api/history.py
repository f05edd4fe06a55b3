"""What the model is shown of conversations: each turn adds to what was made for the turn before.

The upstream is sent the whole text with each request, as its API wants it. The messages that say it
are kept here, so a turn makes those that are new.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from trio_lanes.agents import Message as Kept

from ..chat_agent.model import Message, RequestError
from .items import asked_in, exchange_of, for_model, once
from .wire import Json

CONVERSATIONS: Final = 100  # that are kept, those that were used last
MESSAGES: Final = 40_000  # of them together
TIPS: Final = 10  # branches of a conversation that can go on without reading it again


class Histories:
    """The conversations that were used last, as the model is shown them."""

    def __init__(self) -> None:
        self._known: Final[OrderedDict[str, _History]] = OrderedDict()  # {session: history}

    def __len__(self) -> int:
        return len(self._known)

    def read(
        self, session: str, history: Sequence[Kept], previous: str | None, again: Sequence[str]
    ) -> list[Message]:
        """Return the messages that led to the response ``previous``; all of them if it is None.

        Args:
          history: what the conversation has now.
          again: responses whose answer begins now; a crash may have left another of them.

        Raises:
          RequestError: if there is no such response.
        """
        known = self._known.get(session)
        if known is None or not known.read_on(history):
            known = self._known[session] = _History(history)
        self._known.move_to_end(session)
        count = sum(len(one.messages) for one in self._known.values())
        while len(self._known) > 1 and (len(self._known) > CONVERSATIONS or count > MESSAGES):
            count -= len(self._known.popitem(last=False)[1].messages)
        if not known.places.keys().isdisjoint(again):
            known = _History(once(history, again))
        return known.leading_to(previous)


class _History:
    """One conversation. It is a tree: each exchange names the response that it goes on from."""

    def __init__(self, messages: Sequence[Kept]) -> None:
        self.messages = messages  # that were read
        self._all: list[Message] = []
        self._shown: Final[dict[str, list[Message]]] = {}  # {exchange: its messages}
        # {response: (its exchange, the response that it goes on from)}
        self.places: dict[str, tuple[str, str | None]] = {}
        self._chains: Final[dict[str, list[Message]]] = {}  # {exchange: what led to it, and it}
        self._add(once(messages))

    def read_on(self, messages: Sequence[Kept]) -> bool:
        """Read what stands behind the messages that were read; False if this is not possible.

        It is not if these have changed, an item was deleted, or an answer was begun again after a
        crash.
        """
        start = len(self.messages)
        new = once(messages[start:])
        asked = {content["response"] for content in _questions(new)}
        if messages[:start] != self.messages or not asked.isdisjoint(self.places):
            return False
        contents = asked_in(messages[start:])
        if any("deleted" in content or "cleared" in content for content in contents):
            return False
        self._add(new)
        self.messages = messages
        return True

    def _add(self, messages: Sequence[Kept]) -> None:
        for exchange, group in groupby(messages, exchange_of):
            members = list(group)
            self._shown[exchange] = for_model(members)
            self._all += self._shown[exchange]
            questions = _questions(members)
            for asked in questions:  # there is no usage of a turn that was cut off
                self.places[asked["response"]] = exchange, questions[0].get("previous")
            for usage in [message.usage for message in members if message.usage]:
                self.places |= dict.fromkeys(usage["responses"], (exchange, usage["previous"]))

    def leading_to(self, response: str | None) -> list[Message]:
        """Return the messages that led to a response; all of them if it is None."""
        if response is None:
            return [*self._all]
        exchanges: list[str] = []
        while response is not None:
            if response not in self.places:
                text = f"there is no completed response {response}"
                raise RequestError(text, "previous_response_not_found", "previous_response_id")
            exchange, response = self.places[response]
            exchanges.append(exchange)
            if exchange in self._chains:
                break
        # A chain grows at its end, and is then the chain of a later exchange; a branch is made anew
        tip, *more = reversed(exchanges)
        chain = self._chains.pop(tip, None) or [*self._shown[tip]]
        for exchange in more:
            chain += self._shown[exchange]
        self._chains[exchanges[0]] = chain
        if len(self._chains) > TIPS:
            del self._chains[next(iter(self._chains))]
        return [*chain]


def newer_half(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without the older half; the first that is left is a question."""
    places = range(len(messages) // 2 + 1, len(messages))
    start = next((place for place in places if messages[place].role == "user"), len(messages))
    return [*messages[start:]]


def _questions(messages: Sequence[Kept]) -> list[Json]:
    """Return the contents of the questions among the messages that have a response."""
    return [content for content in asked_in(messages) if content.get("response")]
