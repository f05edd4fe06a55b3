"""Background responses with `--durable` outlive the process, and are read on without a gap."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.chaos import times

from .gateways import program

pytestmark = [
    pytest.mark.real_processes,
    # the client's own generators, when a test leaves a stream before its end
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

OPTIONS = ("examples.gateway", "--port", "0", "--limit", "2", "--grace", "0")
TERMINAL = ("response.completed", "response.failed", "response.cancelled")


class Reader:
    """A client that reads the events of one response over all breaks."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.events: list[dict[str, Any]] = []

    @property
    def ended(self) -> bool:
        return bool(self.events) and self.events[-1]["type"] in TERMINAL

    def read(self, client: httpx2.Client, most: float = float("inf")) -> None:
        """Read on after the last number that it has: `most` events, or all."""
        params = {"stream": "true", "starting_after": str(len(self.events) - 1)}
        with client.stream("GET", f"responses/{self.id}", params=params) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                if line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    assert event["sequence_number"] == len(self.events)  # no gap, and none twice
                    self.events.append(event)
                    most -= 1
                    if not most:
                        return


def post(client: httpx2.Client, conversation: str, text: str) -> str:
    body = {"conversation": conversation, "input": text, "background": True}
    posted = client.post("responses", json=body)
    assert posted.status_code == 200, posted.text
    id: str = posted.json()["id"]
    return id


def said(client: httpx2.Client, conversation: str) -> list[str]:
    """What was said in a conversation, in order."""
    params = {"order": "asc", "limit": 1000}
    items = client.get(f"conversations/{conversation}/items", params=params).json()
    return [part["text"] for item in items["data"] for part in item.get("content", ())]


@pytest.mark.slow
def test_background_responses_go_on_over_kills_and_end_once(tmp_path: Path) -> None:
    kills = times(4)
    rng = random.Random(kills)
    readers: list[Reader] = []
    asked: dict[str, list[str]] = defaultdict(list)
    options = (*OPTIONS, "--durable", str(tmp_path), "--word-delay", "0.01")
    for life in range(kills + 1):
        with (
            program(*options, announces="the gateway is at ") as (process, url),
            httpx2.Client(base_url=url, timeout=120) as client,
        ):
            for name in ("ann", "bob", "cleo"):
                text = f"long {rng.randrange(4, 9)} (#{life})"
                readers.append(Reader(post(client, name, text)))
                asked[name].append(text)
            if life == kills:
                for reader in readers:
                    if not reader.ended:
                        reader.read(client)
                break
            for reader in readers:
                if not reader.ended:
                    reader.read(client, rng.randrange(5, 60))
            # a kill, or a Ctrl-C without any grace
            os.kill(process.pid, signal.SIGKILL if life % 3 < 2 else signal.SIGINT)
            process.wait()
    with (
        program(*options, announces="the gateway is at ") as (_, url),
        httpx2.Client(base_url=url, timeout=120) as client,
    ):
        for reader in readers:
            kinds = [event["type"] for event in reader.events]
            assert [kind for kind in kinds if kind in TERMINAL] == ["response.completed"]
            last = reader.events[-1]["response"]
            assert client.get(f"responses/{reader.id}").json() == last  # after one more start
            whole = [item for item in last["output"] if item["status"] == "completed"]
            (text,) = [part["text"] for item in last["output"] for part in item["content"]]
            assert whole[0]["content"][0]["text"] == text
            deltas = [e for e in reader.events if e["type"] == "response.output_text.delta"]
            assert text == "".join(e["delta"] for e in deltas if e["item_id"] == whole[0]["id"])
        for name, texts in asked.items():
            assert said(client, name)[::2] == texts  # each once, in the order of the requests
            assert all(answer.startswith("1. A lane") for answer in said(client, name)[1::2])
    broken = [
        r
        for r in readers
        if "incomplete" in {i["status"] for i in r.events[-1]["response"]["output"]}
    ]
    assert broken  # some answer was in its middle


def test_a_response_that_waited_or_was_cancelled_keeps_its_end_over_a_kill(tmp_path: Path) -> None:
    options = (*OPTIONS, "--durable", str(tmp_path))
    with (
        program(*options, announces="the gateway is at ") as (process, url),
        httpx2.Client(base_url=url, timeout=120) as client,
    ):
        stopped = post(client, "ann", "slow 600")
        assert client.post(f"responses/{stopped}/cancel").json()["status"] == "cancelled"
        running, waiting, cancelled = (post(client, "bob", t) for t in ("slow 3", "two", "three"))
        assert client.post(f"responses/{cancelled}/cancel").json()["status"] == "cancelled"
        assert client.get(f"responses/{waiting}").json()["status"] == "queued"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with (
        program(*options, announces="the gateway is at ") as (_, url),
        httpx2.Client(base_url=url, timeout=120) as client,
    ):
        four = post(client, "bob", "four")  # behind the messages of the process that died
        for id in (running, waiting, four):
            reader = Reader(id)
            reader.read(client)
            assert reader.events[-1]["type"] == "response.completed"
        for id in (stopped, cancelled):
            assert client.get(f"responses/{id}").json()["status"] == "cancelled"
        assert said(client, "bob")[::2] == ["slow 3", "two", "four"]
        assert "message 3" in said(client, "bob")[-1]


def test_a_request_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    options = (*OPTIONS, "--durable", str(tmp_path))
    with (
        program(*options, announces="the gateway is at ") as (_, url),
        httpx2.Client(base_url=url, timeout=120) as client,
    ):
        post(client, "ann", "slow 600")
        body = {"conversation": "ann", "input": "x", "background": True}
        refused = client.post("responses", json=body | {"metadata": {"when_busy": "reject"}})
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "conversation_busy"
        assert len([*(tmp_path / "responses").iterdir()]) == 1
        (tmp_path / "responses").chmod(0o500)
        (tmp_path / "responses").rename(tmp_path / "gone")
        (tmp_path / "responses").touch()  # nothing can be stored
        assert client.post("responses", json=body).status_code == 503


@pytest.mark.parametrize("several", [(), ("--processes", "2")])
def test_a_drain_lets_the_last_answers_reach_their_clients(
    tmp_path: Path, several: tuple[str, ...]
) -> None:
    command = (*OPTIONS[:-1], "60", "--durable", str(tmp_path), *several)
    with program(*command, announces="the gateway is at ") as (process, url):

        def ask(conversation: str, stream: bool) -> bool:
            body = {"input": "slow 4", "conversation": conversation, "stream": stream}
            answer = httpx2.post(f"{url}/responses", json=body, timeout=120).text
            return '"status":"completed"' in answer

        def has_begun(conversation: str) -> bool:
            return bool(httpx2.get(f"{url}/conversations/{conversation}/items").json().get("data"))

        with ThreadPoolExecutor() as pool:
            asked = [pool.submit(ask, "ann", True), pool.submit(ask, "bob", False)]
            while not (has_begun("ann") and has_begun("bob")):
                time.sleep(0.05)
            assert not any(one.done() for one in asked)
            process.send_signal(signal.SIGINT)
            assert [one.result() for one in asked] == [True, True]
        assert process.wait(timeout=120) == 0


def test_a_damaged_conversation_is_no_reason_to_try_again(tmp_path: Path) -> None:
    options = (*OPTIONS, "--durable", str(tmp_path), "--word-delay", "0")
    with (
        program(*options, announces="the gateway is at ") as (_, url),
        httpx2.Client(base_url=url, timeout=120) as client,
    ):
        client.post("responses", json={"input": "hello", "conversation": "c"})
    path = tmp_path / "conversations" / "c.jsonl"
    path.write_bytes(b"x" + path.read_bytes())
    with (
        program(*options, announces="the gateway is at ") as (_, url),
        httpx2.Client(base_url=url, timeout=120) as client,
    ):
        got = client.get("conversations/c/items")
        assert (got.status_code, got.headers["x-should-retry"]) == (500, "false")
        assert got.json()["error"]["code"] == "damaged_conversation"
        other = client.post("responses", json={"input": "hello", "conversation": "d"})
        assert other.json()["status"] == "completed"
