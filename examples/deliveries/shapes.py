"""Check the signature of a delivery, read it, and make the request that replies to it."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

Json = dict[str, Any]
MAX_AGE: Final = 300.0  # seconds, of a signed delivery


def _slack_is_valid(secret: str, headers: Mapping[str, str], raw: bytes) -> bool:
    stamp = headers.get("x-slack-request-timestamp", "")
    if not stamp.isdigit() or abs(time.time() - int(stamp)) > MAX_AGE:
        return False
    digest = hmac.new(secret.encode(), b"v0:" + stamp.encode() + b":" + raw, hashlib.sha256)
    return _same(f"v0={digest.hexdigest()}", headers.get("x-slack-signature", ""))


def _telegram_is_valid(secret: str, headers: Mapping[str, str], raw: bytes) -> bool:
    return _same(secret, headers.get("x-telegram-bot-api-secret-token", ""))


def _discord_is_valid(secret: str, headers: Mapping[str, str], raw: bytes) -> bool:
    """The secret is the public key of the application."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    stamp = headers.get("x-signature-timestamp", "").encode()
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(secret))
        key.verify(bytes.fromhex(headers.get("x-signature-ed25519", "")), stamp + raw)
    except (InvalidSignature, ValueError):
        return False
    return True


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


Found = tuple[str, str, str, Json] | None  # the key, the session, the text, and where it goes


def _read_slack(body: Json) -> Found:
    event = body["event"]
    if event["type"] not in ("message", "app_mention") or event.get("bot_id"):
        return None
    thread = event.get("thread_ts", event["ts"])
    to = {"channel": event["channel"], "thread_ts": thread}
    return body["event_id"], f"slack-{event['channel']}-{thread}", event["text"], to


def _read_telegram(body: Json) -> Found:
    message = body.get("message")
    if message is None or "text" not in message or message["from"].get("is_bot"):
        return None
    to = {"chat_id": message["chat"]["id"]}
    if topic := message.get("message_thread_id"):
        to["message_thread_id"] = topic
    session = f"telegram-{to['chat_id']}-{topic or 0}"
    return str(body["update_id"]), session, message["text"], to


def _read_discord(body: Json) -> Found:
    if body["type"] != 2:  # a command
        return None
    text = " ".join(str(option["value"]) for option in body["data"]["options"])
    to = {"application": body["application_id"], "token": body["token"]}
    return body["id"], f"discord-{body['channel_id']}", text, to


APIS: Final = {
    "slack": "https://slack.com/api",
    "telegram": "https://api.telegram.org",
    "discord": "https://discord.com/api/v10",
}


def reply_request(chat: str, to: Json, text: str, base: str, token: str) -> Json:
    """Return the arguments of the HTTP request that replies; ``base`` is the API of the chat."""
    if chat == "discord":
        url = f"{base}/webhooks/{to['application']}/{to['token']}/messages/@original"
        return {"method": "PATCH", "url": url, "json": {"content": text}}
    if chat == "telegram":
        return {
            "method": "POST",
            "url": f"{base}/bot{token}/sendMessage",
            "json": to | {"text": text},
        }
    headers = {"Authorization": f"Bearer {token}"}
    url = f"{base}/chat.postMessage"
    return {"method": "POST", "url": url, "json": to | {"text": text}, "headers": headers}


CHECKS: Final[dict[str, Callable[[str, Mapping[str, str], bytes], bool]]] = {
    "slack": _slack_is_valid, "telegram": _telegram_is_valid, "discord": _discord_is_valid,
}  # fmt: skip
READERS: Final[dict[str, Callable[[Any], Found]]] = {
    "slack": _read_slack, "telegram": _read_telegram, "discord": _read_discord,
}  # fmt: skip
