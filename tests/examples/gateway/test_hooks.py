"""Webhooks in the shapes that Slack, Telegram and Discord send, signed here, and their replies."""

from __future__ import annotations

import hmac
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
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.chaos import examples

from .gateways import program

pytestmark = [pytest.mark.real_processes]

PATIENCE = 180  # seconds
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SECRETS = {
    "SLACK_SECRET": "8f742231b10e8888abcd99yyyzzz85a5",
    "SLACK_TOKEN": "xoxb-token",
    "TELEGRAM_SECRET": "hook-secret",
    "TELEGRAM_TOKEN": "123:abc",
    "DISCORD_SECRET": KEY.public_key().public_bytes_raw().hex(),
}


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
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

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


def slack(client: httpx2.Client, number: int, text: str, thread: str = "1.5", **more: Any) -> Any:
    body = {
        "token": "x", "team_id": "T1", "api_app_id": "A1", "type": "event_callback",
        "event_id": f"Ev{number}", "event_time": 1,
        "event": {"type": "message", "channel": "C1", "user": "U1", "text": text, "ts": "9.1",
                  "thread_ts": thread},
    } | more  # fmt: skip
    raw = json.dumps(body).encode()
    stamp = str(int(time.time()))
    digest = hmac.new(SECRETS["SLACK_SECRET"].encode(), f"v0:{stamp}:".encode() + raw, "sha256")
    headers = {"x-slack-request-timestamp": stamp, "x-slack-signature": f"v0={digest.hexdigest()}"}
    return client.post("hooks/slack", content=raw, headers=headers)


def telegram(client: httpx2.Client, update: int, text: str, secret: str = "hook-secret") -> Any:
    body = {
        "update_id": update,
        "message": {"message_id": 5, "date": 1, "text": text, "chat": {"id": 77, "type": "private"},
                    "from": {"id": 9, "is_bot": False, "first_name": "Ann"}},
    }  # fmt: skip
    headers = {"x-telegram-bot-api-secret-token": secret}
    return client.post("hooks/telegram", json=body, headers=headers)


def discord(client: httpx2.Client, body: Any, stamp: str = "1700000000") -> Any:
    raw = json.dumps(body).encode()
    signature = KEY.sign(b"1700000000" + raw).hex()
    headers = {"x-signature-ed25519": signature, "x-signature-timestamp": stamp}
    return client.post("hooks/discord", content=raw, headers=headers)


def test_deliveries_are_checked_acknowledged_and_answered_once_and_in_order() -> None:
    with Stub() as stub, running(stub, "--limit", "4") as (_, client):
        began = time.monotonic()
        for event in range(5):
            for _ in range(2):  # Slack delivers again what it thinks was lost
                assert slack(client, event, f"slow 0.{5 - event} {event}").status_code == 200
        assert telegram(client, 1, "hello").json() == {"ok": True}
        assert telegram(client, 1, "hello").json() == {"ok": True}
        command = {
            "id": "555", "application_id": "app", "type": 2, "token": "tok", "channel_id": "C2",
            "data": {"name": "ask", "options": [{"name": "question", "value": "hello"}]},
        }  # fmt: skip
        assert discord(client, command).json() == {"type": 5}
        assert time.monotonic() - began < 3 * 13
        stub.wait(7)
        time.sleep(0.3)  # for a reply that must not come
        assert len(stub.replies) == 7
        slacks = [body for path, body in stub.replies if path == "/chat.postMessage"]
        assert len(slacks) == 5
        assert all((b["channel"], b["thread_ts"]) == ("C1", "1.5") for b in slacks)
        (telegrams,) = [body for path, body in stub.replies if path == "/bot123:abc/sendMessage"]
        assert telegrams["chat_id"] == 77
        assert telegrams["text"].startswith("Hello")
        (commands,) = [b for path, b in stub.replies if path.startswith("/webhooks/app/tok/")]
        assert commands["content"].startswith("Hello")


def test_several_processes_answer_deliveries_once_and_in_order(tmp_path: Path) -> None:
    several = ("--limit", "4", "--durable", str(tmp_path), "--processes", "2")
    with Stub() as stub, running(stub, *several) as (_, first):
        base = str(first.base_url)
        for event in range(6):
            for _ in range(2):  # over connections of their own: to any process
                with httpx2.Client(base_url=base, timeout=PATIENCE) as client:
                    assert slack(client, event, f"number {event}.").status_code == 200
        stub.wait(6)
        time.sleep(0.3)  # for a reply that must not come
        texts = [body["text"].removeprefix("You said: ") for _, body in stub.replies]
        assert [text.partition(" (")[0] for text in texts] == [f"number {n}." for n in range(6)]


def test_what_is_not_signed_is_refused_and_what_needs_no_answer_gets_none() -> None:
    with Stub() as stub, running(stub) as (_, client):
        assert client.post("hooks/slack", json={"type": "x"}).status_code == 401
        assert telegram(client, 1, "hello", secret="wrong").status_code == 401
        assert discord(client, {"type": 1}, stamp="5").status_code == 401
        assert client.post("hooks/irc", json={}).status_code == 404
        old = {"x-slack-request-timestamp": "1531420618", "x-slack-signature": "v0=5"}
        assert client.post("hooks/slack", content=b"{}", headers=old).status_code == 401
        challenge = {"type": "url_verification", "challenge": "3eZb"}
        assert slack(client, 1, "", **challenge).json() == {"challenge": "3eZb"}
        assert discord(client, {"type": 1}).json() == {"type": 1}
        assert slack(client, 2, "", event={"type": "message", "bot_id": "B1"}).json() == {}
        assert slack(client, 3, "", event={"type": "reaction_added"}).json() == {}
        assert slack(client, 4, "", event=5).status_code == 400
        assert stub.replies == []


@pytest.mark.slow
def test_no_webhook_is_answered_twice_however_often_the_gateway_is_killed(tmp_path: Path) -> None:
    kills = examples(8)  # CHAOS=13: a hundred
    rng = random.Random(kills)
    sent: dict[str, list[str]] = defaultdict(list)
    number = 0
    with Stub(delay=0.02) as stub:
        for kill in range(kills + 1):
            with running(stub, "--limit", "4", "--durable", str(tmp_path)) as (process, client):
                for _ in range(3):
                    thread = f"{rng.randrange(3)}.1"
                    if slack(client, number, f"number {number}.", thread).status_code == 200:
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
