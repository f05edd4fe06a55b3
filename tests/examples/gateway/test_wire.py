"""What the wire shows, whatever clients do: order, limits, and one end for each response."""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from examples.chat_agent.model import Event, Message, Usage
from examples.chat_agent.openai_server import Endpoint, serve

from .gateways import program

pytestmark = [
    pytest.mark.real_processes,
    # the client's own generators, when a test leaves a stream before its end
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

LIMIT = 3
TERMINAL = ("completed", "failed", "cancelled")


class Watched:
    """A model that watches which conversations it answers at once."""

    name = "watched"

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most = 0
        self.asked: dict[str, list[int]] = defaultdict(list)

    @asynccontextmanager
    async def stream(self, messages: Sequence[Message]) -> AsyncIterator[AsyncIterator[Event]]:
        yield self._events(messages[-1].text)

    async def _events(self, text: str) -> AsyncIterator[Event]:
        found = re.fullmatch(r"(conv\w+) (\d+)", text)
        assert found is not None, text
        name, number = found[1], int(found[2])
        self.asked[name].append(number)
        self.now[name] += 1
        try:
            assert self.now[name] == 1  # never two at once in a conversation
            self.most = max(self.most, self.now.total())
            for word in range(5):
                await trio.sleep(0.01)
                yield f"{name} {number} {word} "
            yield Usage(1)
        finally:
            self.now[name] -= 1


async def follow(client: httpx2.AsyncClient, id: str, rng: random.Random) -> dict[str, Any]:
    """Read the events of a response, with breaks, and return the response of the last."""
    numbers: list[int] = []
    while True:
        params = {"stream": "true", "starting_after": str(numbers[-1] if numbers else -1)}
        left = rng.randrange(1, 8)
        async with client.stream("GET", f"responses/{id}", params=params) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    numbers.append(event["sequence_number"])
                    ends = event["type"].removeprefix("response.") in TERMINAL
                    left -= 1
                    if ends or not left:
                        break
        if numbers and ends:
            break
    assert numbers == [*range(len(numbers))]  # no gap, and none twice
    result: dict[str, Any] = event["response"]
    return result


@pytest.mark.slow
@pytest.mark.seeds(2)
async def test_order_limits_and_ends_hold_whatever_clients_do(seed: int) -> None:
    rng = random.Random(seed)
    model = Watched()
    ends: dict[str, dict[str, Any]] = {}
    plain: dict[str, list[int]] = defaultdict(list)

    async def client_of(url: str, name: str) -> None:
        async with httpx2.AsyncClient(base_url=url, timeout=120) as client:

            async def post(**body: Any) -> httpx2.Response:
                return await client.post("responses", json={"conversation": name, **body})

            async with trio.open_nursery() as nursery:

                async def see(id: str) -> None:
                    ends[id] = await follow(client, id, rng)

                for number in range(12):
                    text = f"{name} {number}"
                    does = rng.choice(["wait", "wait", "hang up", "cancel", "interrupt", "reject"])
                    mode = does if does in ("interrupt", "reject") else "followup"
                    metadata = {"when_busy": mode}
                    if does == "hang up":
                        with trio.move_on_after(rng.random() / 5):
                            await post(input=text, stream=True, metadata=metadata)
                        continue
                    posted = await post(input=text, background=True, metadata=metadata)
                    if posted.status_code == 409:
                        assert does == "reject"
                        continue
                    assert posted.status_code == 200, posted.text
                    id = posted.json()["id"]
                    nursery.start_soon(see, id)
                    if mode == "followup":
                        plain[name].append(number)
                    if does == "cancel":
                        await trio.sleep(rng.random() / 5)
                        await client.post(f"responses/{id}/cancel")

    async with trio.open_nursery() as nursery:
        upstream = await nursery.start(serve, Endpoint(model))
        options = ("--port", "0", "--upstream", upstream, "--limit", str(LIMIT), "--grace", "0")
        with program("examples.gateway", *options, announces="the gateway is at ") as (_, url):
            async with trio.open_nursery() as clients:
                for number in range(6):
                    clients.start_soon(client_of, url, f"conv{number}")
            async with httpx2.AsyncClient(base_url=url, timeout=120) as client:
                for id, ended in ends.items():
                    seen = (await client.get(f"responses/{id}")).json()
                    assert seen["status"] == ended["status"] in TERMINAL
                    assert seen["output"] == ended["output"]
            nursery.cancel_scope.cancel()
    assert 1 < model.most <= LIMIT  # never above N
    assert ends
    for name, asked in model.asked.items():
        assert len(set(asked)) == len(asked)  # none twice
        in_order = [number for number in asked if number in plain[name]]
        assert in_order == sorted(in_order)  # followups in the order of the requests
    for ended in ends.values():
        for item in ended["output"]:
            (text,) = {" ".join(w.split()[:2]) for w in [item["content"][0]["text"]]}
            assert text.startswith("conv")


def resident(pid: int) -> int:
    """The resident memory of a process, in KB."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1])


@pytest.mark.slow
def test_a_thousand_conversations_are_flat_in_memory() -> None:
    options = ("--port", "0", "--word-delay", "0", "--limit", "8", "--grace", "0")
    sizes = []
    with program("examples.gateway", *options, announces="the gateway is at ") as (process, url):
        with httpx2.Client(base_url=url, timeout=120) as client:
            for number in range(3_000):
                answer = client.post("responses", json={"input": f"hello {number}"})
                assert answer.status_code == 200
                if number in (1_999, 2_999):  # caches of the interpreter are full by then
                    sizes.append(resident(process.pid))
    assert sizes[1] - sizes[0] < 4_000, sizes
