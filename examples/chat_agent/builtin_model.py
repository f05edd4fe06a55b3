"""A small model that needs no network: it follows rules, and the same words get the same answer.

It streams word by word on Trio's clock, calls tools, and is long, slow or broken when asked to be:
enough to see how lanes treat each kind of answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import lru_cache
from typing import Any, Final

import trio

from .instances import instance_of
from .model import Cut, Event, Message, ModelError, Settings, Stopped, ToolCall, Usage
from .tools import ASK_SUBAGENT

MAX_SECONDS: Final = 3600.0
MAX_SENTENCES: Final = 500
LIMITS: Final = ("max_completion_tokens", "max_tokens")

SLOW: Final = re.compile(r"\bslow(?:ly)?\b(?: (?:for |by )?(\d{1,6}(?:\.\d{1,3})?))?", re.I)
FAIL: Final = re.compile(r"^(?:\W*please)?\W*fail\b|\bfail (?:now|please)\b", re.I)
LONG: Final = re.compile(
    r"\blong (?:answer|story|text)\b(?: (?:of |with )?(\d{1,6}))?|^long\b\s*(\d{1,6})?", re.I
)
TIME: Final = re.compile(r"\b(?:what time|the time|time is it|time in)\b|^time\b", re.I)
ZONE: Final = re.compile(r"\btime(?: is it)? in ([A-Za-z]+(?:/[A-Za-z_]+)*)")
CALC: Final = re.compile(r"\bcalc(?:ulate)?\b[: ]*([^?!,;]*[^?!,;. ])", re.I)
# two numbers with a sign between them
SUM: Final = re.compile(r"\(*-?\d+(?:\.\d+)?\)*(?:\s*(?:\*\*|//|[-+*/%])\s*\(*-?\d+(?:\.\d+)?\)*)+")
SEARCH: Final = re.compile(
    r"\b(?:search|find|look up|tell me about)\b(?: for)?:?\s+([^?!,;.]+)", re.I
)
QUESTION: Final = re.compile(r"^(?:what|how|why|when|who)\b[^?]*\blanes?\b[^?]*", re.I)
HELLO: Final = re.compile(r"^\W*(?:hello|hi|hey|good (?:morning|evening))\b", re.I)
SUBAGENT: Final = re.compile(r"\bask (?:a |the )?sub-?agents?\b(?: to| for| about)?:?\s+(.+)", re.I)
MAIL: Final = re.compile(
    r"\b(?:send (?:a |an )?)?(?:e-?mail|mail)\b:?\s+(?:to\s+)?(.+)", re.I | re.S
)

SENTENCES: Final = (
    "A lane keeps its jobs in order.",
    "A session never runs two of its jobs at once.",
    "A limit holds over all sessions together.",
    "Waiting jobs can be cleared, and running jobs can be stopped.",
    "A nursery owns it all, so nothing is left behind.",
)


class BuiltinModel:
    """Deterministic answers by rule to all messages that have no answer yet.

    Args:
      word_delay: the pause before each word, in seconds.
      tools: the functions that it may call, as in chat completions; None: the bundled tools.
      settings: it honours the choice and number of tools, the format, the maximum length, and stop
        texts. There is no chance in its answers, so a temperature or a seed changes nothing.
    """

    name: Final = "built-in"

    def __init__(
        self,
        word_delay: float = 0.03,
        tools: Sequence[Mapping[str, Any]] | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._word_delay: Final = word_delay
        self._tools: Final = tools
        self._settings: Final = settings or {}

    @asynccontextmanager
    async def stream(self, messages: Sequence[Message]) -> AsyncIterator[AsyncIterator[Event]]:
        async with aclosing(self._events(messages)) as events:
            yield events

    async def _events(self, messages: Sequence[Message]) -> AsyncGenerator[Event, None]:
        # Messages that were collected or steered in, and results, stand behind the last answer.
        answers = [place for place, message in enumerate(messages) if message.role == "assistant"]
        start = answers[-1] + 1 if answers else 0
        results = [message.text for message in messages[start:] if message.role == "tool"]
        texts = [text for text in results if text not in ("cancelled", "skipped")]
        calls: list[ToolCall] = []
        fails = False
        count = sum(message.role == "user" for message in messages[:start])
        for place, message in enumerate(messages[start:], start):
            if message.role != "user":
                continue
            count += 1
            asked = message.text
            if not SUBAGENT.search(asked) and (slow := SLOW.search(asked)):
                await trio.sleep(min(float(slow[1] or 2), MAX_SECONDS))
            wanted = self._calls(asked, place)
            calls += wanted
            fails = fails or bool(FAIL.search(asked))
            if not wanted:
                texts.append(_answer(asked, count))
        if not calls and (calls := self._forced(messages)):
            texts = []
        if self._settings.get("parallel_tool_calls") is False:
            calls = calls[:1]
        text, stop = self._formed("\n".join(texts), bool(calls))
        words: list[str | ToolCall] = [*_words(text), *calls]
        limit = min(self._settings.get(name) or len(words) for name in LIMITS)
        for word in words[:limit]:
            await trio.sleep(self._word_delay)
            yield word
        if fails:
            raise ModelError("the built-in model failed, as it was asked to")
        if limit < len(words):
            yield Cut("length")
        elif stop:
            yield Stopped(stop)
        yield _usage(messages, min(limit, len(words)))

    def _forced(self, messages: Sequence[Message]) -> list[ToolCall]:
        """Return the call that the settings demand, if they do."""
        choice = self._settings.get("tool_choice")
        name = choice["function"]["name"] if isinstance(choice, Mapping) else None
        forced = [tool for tool in self._tools or () if name in (None, tool["name"])]
        if name is None and choice != "required":
            return []
        asked = next((m.text for m in reversed(messages) if m.role == "user"), "")
        return [
            ToolCall(f"call_{len(messages)}", tool["name"], json.dumps(_arguments(tool, asked)))
            for tool in forced[:1]
        ]

    def _formed(self, text: str, has_calls: bool) -> tuple[str, str]:
        """Return the text in the format that the settings demand, up to the first stop text.

        Also return that stop text; "" if there is none.
        """
        form = self._settings.get("response_format") or {"type": "text"}
        if form["type"] != "text":
            schema = form.get("json_schema", {}).get("schema", {"properties": {"answer": {}}})
            text = "" if has_calls else json.dumps(instance_of(schema, text))
        stops, found = self._settings.get("stop") or [], ""
        for stop in [stops] if isinstance(stops, str) else stops:
            if stop in text:
                text, found = text.partition(stop)[0], stop
        return text, found

    def _calls(self, asked: str, place: int) -> list[ToolCall]:
        """Return the tool calls for a message."""
        if self._tools is None:
            return _wanted(asked, place)
        choice = self._settings.get("tool_choice")
        if choice == "none" or isinstance(choice, Mapping):
            return []
        offered = {str(tool["name"]): tool for tool in self._tools}
        wanted = [call for call in _wanted(asked, place) if call.name in offered]
        taken = {call.name for call in wanted}
        for name, tool in offered.items():
            # "get_weather" is wanted by "what is the weather in Paris?"
            word = name.rpartition("_")[2]
            if name not in taken and re.search(rf"\b{re.escape(word)}\b", asked, re.I):
                arguments = json.dumps(_arguments(tool, asked))
                wanted.append(ToolCall(f"call_{place}_{name}", name, arguments))
        return wanted


def _arguments(tool: Mapping[str, Any], asked: str) -> dict[str, Any]:
    """Return a value for each argument: a number of the message, the word behind "in", or a list.

    The list is what the message names behind the tool: "research owls, bees and foxes".
    """
    numbers = iter(re.findall(r"-?\d{1,15}(?:\.\d{1,15})?", asked))
    word = re.escape(tool["name"].rpartition("_")[2])
    behind = re.split(rf"\b{word}\b", asked, maxsplit=1, flags=re.I)[-1].strip(" .:?!")
    where = re.search(r"\b(?:in|for|of) (\w+)", asked)
    properties = (tool.get("parameters") or {}).get("properties") or {}
    if not isinstance(properties, Mapping):
        return {}
    return {
        name: _number(next(numbers, "0"))
        if isinstance(schema, Mapping) and schema.get("type") in ("number", "integer")
        else re.split(r"\s*,\s*(?:and\s+)?|\s+and\s+", behind)
        if isinstance(schema, Mapping) and schema.get("type") == "array"
        else where[1]
        if where
        else asked
        for name, schema in properties.items()
    }


def _number(text: str) -> int | float:
    return float(text) if "." in text else int(text)


def _wanted(asked: str, turn: int) -> list[ToolCall]:
    """Return the tool calls for a message."""
    wanted: list[tuple[str, dict[str, str]]] = []
    if subagent := SUBAGENT.search(asked):
        tasks = filter(None, map(str.strip, subagent[1].split(";")))
        return _calls(turn, [(ASK_SUBAGENT, {"task": task}) for task in tasks])
    if mail := MAIL.search(asked):
        return _calls(turn, [("send_mail", {"message": mail[1].strip()})])
    if FAIL.search(asked) or LONG.search(asked):
        return []
    if TIME.search(asked):
        zone = ZONE.search(asked)
        wanted.append(("time", {"zone": zone[1]} if zone else {}))
    if calc := CALC.search(asked):
        wanted.append(("calc", {"expression": calc[1].strip()}))
    elif sums := SUM.search(asked):
        wanted.append(("calc", {"expression": sums[0]}))
    if search := SEARCH.search(asked):
        wanted.append(("search", {"query": search[1].strip()}))
    elif not wanted and (question := QUESTION.search(asked)):
        wanted.append(("search", {"query": question[0].strip()}))
    return _calls(turn, wanted)


def _calls(turn: int, wanted: list[tuple[str, dict[str, str]]]) -> list[ToolCall]:
    return [
        ToolCall(f"call_{turn}_{place}", name, json.dumps(arguments))
        for place, (name, arguments) in enumerate(wanted)
    ]


def _usage(messages: Sequence[Message], said: int) -> Usage:
    """Return the usage. The tokens of this model are words, of the prompt and of the answer."""
    prompt = sum(_count_words(message.text) for message in messages)
    return Usage(prompt + said, prompt, said)


@lru_cache(4096)  # a long conversation is counted again at each turn
def _count_words(text: str) -> int:
    return len(text.split())


def _answer(asked: str, count: int) -> str:
    if FAIL.search(asked):
        return "I will try,"
    if long := LONG.search(asked):
        length = min(int(long[1] or long[2] or 12), MAX_SENTENCES)
        return "\n".join(
            f"{place + 1}. {SENTENCES[place % len(SENTENCES)]}" for place in range(length)
        )
    if SLOW.search(asked):
        return "Sorry that it took me so long."
    if HELLO.search(asked):
        return "Hello! Ask me for the time, for 6 * 7, about lanes, or for a long answer."
    return f"You said: {asked} (That was message {count} of this conversation.)"


def _words(text: str) -> Iterator[str]:
    """Split a text into words with their white space, so that the joined words are the text."""
    return (match[0] for match in re.finditer(r"\S+\s*", text))
