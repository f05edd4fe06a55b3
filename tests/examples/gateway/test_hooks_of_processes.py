"""Webhooks of a gateway whose processes are killed, and of several processes."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.chaos import times

from .deliveries import SECRETS, said, slack
from .gateways import program

pytestmark = [pytest.mark.real_processes]

PATIENCE = 180  # seconds


class Stub:
    """The APIs that replies go to; they remember what arrives, and in which order."""

    def __init__(self, delay: float = 0.0) -> None:
        self.replies: list[tuple[str, dict[str, Any]]] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                stub.replies.append((self.path, body))
                time.sleep(delay)  # between the arrival and the answer
                self.send_response(200)
                self.send_header("content-length", "12")
                self.end_headers()
                self.wfile.write(b'{"ok": true}')

            do_PATCH = do_POST

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *arguments: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> Stub:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def wait(self, count: int) -> None:
        """Wait until that many replies have arrived."""
        until = time.monotonic() + PATIENCE
        while len(self.replies) < count:
            assert time.monotonic() < until, self.replies
            time.sleep(0.02)


@contextmanager
def running(stub: Stub, *options: str) -> Iterator[tuple[Any, httpx2.Client]]:
    """A gateway whose replies go to the stub, and a client for its hooks."""
    env = SECRETS | {f"{name}_API": stub.url for name in ("SLACK", "TELEGRAM", "DISCORD")}
    with program(
        "examples.gateway", "--port", "0", "--word-delay", "0.005", "--grace", "5", *options,
        announces="the gateway is at ", env=env,
    ) as (process, url):  # fmt: skip
        with httpx2.Client(base_url=url.removesuffix("v1"), timeout=60) as client:
            yield process, client


def test_several_processes_answer_deliveries_once_and_in_order(tmp_path: Path) -> None:
    several = ("--limit", "4", "--durable", str(tmp_path), "--processes", "2")
    with Stub() as stub, running(stub, *several) as (_, first):
        base = str(first.base_url)
        for number in range(6):
            event = said(f"number {number}.", ts=f"{number}.1")
            for _ in range(2):  # over connections of their own: to any process
                with httpx2.Client(base_url=base, timeout=PATIENCE) as client:
                    assert client.post(**slack(event)).status_code == 200
        stub.wait(6)
        time.sleep(0.3)  # for a reply that must not come
        texts = [body["text"].removeprefix("You said: ") for _, body in stub.replies]
        assert [text.partition(" (")[0] for text in texts] == [f"number {n}." for n in range(6)]


@pytest.mark.slow
def test_no_webhook_is_answered_twice_however_often_the_gateway_is_killed(tmp_path: Path) -> None:
    kills = times(8)  # CHAOS=13: a hundred
    rng = random.Random(kills)
    sent: dict[str, list[str]] = defaultdict(list)
    number = 0
    with Stub(delay=0.02) as stub:
        for kill in range(kills + 1):
            with running(stub, "--limit", "4", "--durable", str(tmp_path)) as (process, client):
                for _ in range(3):
                    thread = f"{rng.randrange(3)}.1"
                    event = said(f"number {number}.", ts=f"{number}.1", thread=thread)
                    if client.post(**slack(event, number)).status_code == 200:
                        sent[thread].append(f"number {number}.")
                    number += 1
                if kill < kills:
                    time.sleep(rng.random() * 0.4)
                    os.kill(process.pid, signal.SIGKILL)
                    continue
                until = time.monotonic() + PATIENCE
                while "waiting" in (left := status(tmp_path)):
                    assert time.monotonic() < until, left
                    time.sleep(0.2)
        answered: dict[str, list[str]] = defaultdict(list)
        for _, body in stub.replies:
            text = body["text"].removeprefix("You said: ").partition(" (")[0]
            answered[body["thread_ts"]].append(text)
    for thread, texts in answered.items():
        assert len(set(texts)) == len(texts)  # none twice
        assert texts == [text for text in sent[thread] if text in texts]  # in order
    missing = sum(map(len, sent.values())) - sum(map(len, answered.values()))
    assert 0 <= missing <= len(left)  # and none lost: answered, or failed for a person to see


def status(folder: Path) -> list[str]:
    """The states of the jobs that were not answered."""
    import trio

    from trio_lanes.durable import DurableState, SqliteStore, open_durable_lanes

    async def main() -> list[str]:
        store = SqliteStore(folder / "jobs.db")
        async with open_durable_lanes(store, {}, worker=False) as lanes:
            open_states = (DurableState.WAITING, DurableState.PARKED, DurableState.RUNNING)
            waiting = await lanes.jobs(states=open_states)
            failed = await lanes.jobs(states=(DurableState.FAILED,))
            return ["waiting"] * len(waiting) + ["failed"] * len(failed)

    return trio.run(main)
