"""Deliveries in the shapes that Slack, Telegram and Discord send, signed here."""

from __future__ import annotations

import hmac
import json
import time
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Json = dict[str, Any]
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SECRETS = {
    "SLACK_SECRET": "8f742231b10e8888abcd99yyyzzz85a5",
    "SLACK_TOKEN": "xoxb-token",
    "TELEGRAM_SECRET": "hook-secret",
    "TELEGRAM_TOKEN": "123:abc",
    "DISCORD_SECRET": KEY.public_key().public_bytes_raw().hex(),
}


def slack(event: Any, number: int = 1, stamp: bytes | None = None, **more: Any) -> Json:
    """The arguments of the request that delivers an event of Slack."""
    body = {
        "token": "x", "team_id": "T1", "api_app_id": "A1", "type": "event_callback",
        "event_id": f"Ev{number}", "event_time": 1, "event": event,
    } | more  # fmt: skip
    raw = json.dumps(body).encode()
    stamp = str(int(time.time())).encode() if stamp is None else stamp
    digest = hmac.new(SECRETS["SLACK_SECRET"].encode(), b"v0:" + stamp + b":" + raw, "sha256")
    signature = f"v0={digest.hexdigest()}".encode()
    headers = [(b"x-slack-request-timestamp", stamp), (b"x-slack-signature", signature)]
    return {"url": "hooks/slack", "content": raw, "headers": headers}


def said(text: str, ts: str = "9.1", thread: str = "1.5", **more: Any) -> Json:
    """The event of a message in Slack."""
    fields = {"channel": "C1", "user": "U1", "text": text, "ts": ts, "thread_ts": thread}
    return {"type": "message", **fields, **more}


def telegram(update: int, text: str = "hello", secret: str = "hook-secret", **more: Any) -> Json:
    """The arguments of the request that delivers a message of Telegram; ``None`` leaves out."""
    fields = {"message_id": 5, "date": 1, "text": text, "chat": {"id": 77, "type": "private"},
              "from": {"id": 9, "is_bot": False, "first_name": "Ann"}} | more  # fmt: skip
    message = {name: value for name, value in fields.items() if value is not None}
    headers = {"x-telegram-bot-api-secret-token": secret}
    return {"url": "hooks/telegram", "json": {"update_id": update, "message": message},
            "headers": headers}  # fmt: skip


def discord(body: Any, stamp: str = "1700000000") -> Json:
    """The arguments of the request that delivers an interaction of Discord."""
    raw = json.dumps(body).encode()
    signature = KEY.sign(b"1700000000" + raw).hex()
    headers = {"x-signature-ed25519": signature, "x-signature-timestamp": stamp}
    return {"url": "hooks/discord", "content": raw, "headers": headers}


def command(*options: Json, id: str = "555") -> Json:
    """A command of Discord with these options."""
    data = {"id": "1", "name": "ask", "type": 1} | ({"options": [*options]} if options else {})
    return {"id": id, "application_id": "app", "type": 2, "token": "tok", "channel_id": "C2",
            "data": data}  # fmt: skip
