"""What a turn of a long conversation costs in the gateway, and what its model is shown."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from examples.chat_agent.model import Event, Message, Model, ModelError, Settings, Usage
from examples.chat_agent.toolbox import Toolbox
from examples.gateway.asks import Ask
from examples.gateway.engine import TURNS, Engine
from examples.openai_api.history import CONVERSATIONS, MESSAGES, Histories
from examples.openai_api.items import exchange_of, for_model, once
from examples.openai_api.wire import Answer, Json
from tests.support.calls import Calls
from tests.support.chaos import times
from trio_lanes import open_lanes
from trio_lanes.agents import JsonlTranscript, MemoryTranscript, SharedTranscripts, TranscriptStore
from trio_lanes.agents import Message as Kept
from trio_lanes.durable import SqliteStore, open_durable_lanes


@attrs.define
class Upstream:
    """A model that keeps what it is shown, and answers with a word."""

    name: str = "watched"
    shown: Sequence[Message] = ()

    def model(self, tools: Sequence[Json], settings: Settings) -> Model:
        return self

    @asynccontextmanager
    async def stream(self, messages: Sequence[Message]) -> AsyncIterator[AsyncIterator[Event]]:
        self.shown = messages
        yield self._events()

    async def _events(self) -> AsyncIterator[Event]:
        yield "yes"
        yield Usage(1)


@attrs.define
class Gateway:
    """The engine of a gateway in a test."""

    engine: Engine
    upstream: Upstream

    async def ask(self, text: str, previous: str | None = None) -> str:
        """Ask in the conversation "c"; return the id of the response."""
        answer = Answer.begun("c", "model", {})
        ask = Ask(answer, [{"role": "user", "content": text}], previous=previous)
        self.engine.post(ask)
        await answer.ended.wait()
        assert answer.status == "completed", answer.error
        return answer.id


@asynccontextmanager
async def gateway(store: TranscriptStore) -> AsyncIterator[Gateway]:
    upstream = Upstream()
    async with open_lanes({TURNS: 1}) as lanes, trio.open_nursery() as nursery:
        yield Gateway(Engine(lanes, nursery, upstream, Toolbox(), store), upstream)


@asynccontextmanager
async def opened(kind: str, folder: Path) -> AsyncIterator[TranscriptStore]:
    if kind == "memory":
        yield MemoryTranscript()
    elif kind == "jsonl":
        yield JsonlTranscript(folder)
    else:
        async with open_durable_lanes(SqliteStore(folder / "jobs.db"), {}, {}) as durable:
            yield SharedTranscripts(durable)


@pytest.mark.slow
@pytest.mark.parametrize("in_chain", [False, True], ids=["conversation", "chain"])
@pytest.mark.parametrize("kind", ["memory", "jsonl", "sqlite"])
async def test_a_late_turn_costs_as_many_calls_as_an_early_one(
    kind: str, in_chain: bool, tmp_path: Path
) -> None:
    late = times(100)  # some calls more for each turn before would be thousands here
    costs: dict[int, list[int]] = {10: [], late: []}
    async with opened(kind, tmp_path) as store, gateway(store) as here:
        previous: str | None = None
        for number in range(late + 10):
            with Calls() as calls:
                response = await here.ask(f"message {number}", previous)
            previous = response if in_chain else None
            for after, counts in costs.items():
                if after <= number < after + 10:
                    counts.append(calls.count)
        assert len(here.upstream.shown) == 2 * (late + 9) + 1  # all of it is sent
    # the store may write some turns together with others
    assert min(costs[late]) <= min(costs[10]) + 20, costs


# ---- what the model is shown


def as_defined(
    history: Sequence[Kept], previous: str | None, again: Sequence[str]
) -> list[str] | None:
    """What the model is shown, by definition; None if there is no such response."""
    history = once(history, again)
    parents = {
        id: (exchange_of(message), message.usage["previous"])
        for message in history
        if message.usage
        for id in message.usage["responses"]
    }
    chain: set[str] = set()
    at = previous
    while at is not None:
        if at not in parents:
            return None
        exchange, at = parents[at]
        chain.add(exchange)
    shown = [m for m in history if previous is None or exchange_of(m) in chain]
    return [message.text for message in for_model(shown)]


def exchange(number: int, response: str, previous: str | None) -> list[Kept]:
    """The messages of an exchange with one response, as a conversation keeps them."""
    question = {"input": [{"role": "user", "content": f"question {number}"}], "response": response}
    usage = {"responses": [response], "previous": previous, "tokens": 1}
    return [
        Kept("user", question, id=f"{number}.1"),
        Kept("assistant", f"answer {number}", id=f"{number}.2", usage=usage),
    ]


@pytest.mark.seeds(30)
def test_the_model_is_shown_what_the_definition_says_whatever_the_order_of_turns(seed: int) -> None:
    rng = random.Random(seed)
    histories = Histories()
    exchanges: list[list[Kept]] = []
    running: list[tuple[int, list[Kept]]] = []  # with the place that the exchange has
    came_from: dict[str, str | None] = {}  # {response: the one that it goes on from}
    for number in range(60):
        response = f"response {number}"
        previous = rng.choice([None, None, *[*came_from][-3:], *[*came_from][:1]])
        last = [one for one in came_from if one not in came_from.values()]
        if last and rng.random() < 0.1:  # a crash has cut it off: it is begun again
            response = rng.choice(last)
            previous = came_from[response]
        known = set(came_from)
        came_from[response] = previous
        shown = tuple(message for one in exchanges for message in one)
        expected = as_defined(shown, previous, [response])
        try:
            got = histories.read("c", shown, previous, [response])
        except ModelError:
            assert expected is None
            if len(came_from) > len(known):  # what is refused is asked of no model
                del came_from[response]
            continue
        assert [message.text for message in got] == expected
        new = exchange(number, response, previous)
        if rng.random() < 0.1:  # its turn goes on while others come and go
            running.append((len(exchanges), new))
        else:
            exchanges.append(new)
        if running and rng.random() < 0.3:
            place, ended = running.pop()
            exchanges.insert(min(place, len(exchanges)), ended)
        if exchanges and rng.random() < 0.05:
            del exchanges[rng.randrange(len(exchanges))]  # rolled back


def test_the_conversations_that_were_used_last_are_kept() -> None:
    histories = Histories()
    for number in range(CONVERSATIONS + 20):
        history = tuple(exchange(number, f"response {number}", None))
        assert len(histories.read(f"c{number}", history, None, [])) == 2
    assert len(histories) == CONVERSATIONS
    long = tuple(Kept("user", {"input": []}, id=f"{number}.1") for number in range(MESSAGES))
    assert histories.read("long", long, None, []) == []
    assert len(histories) == 1
