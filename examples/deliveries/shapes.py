"""Check the signature of a delivery, and read it."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

Json = dict[str, Any]
MAX_AGE: Final = 300.0  # seconds, of a signed delivery
STAMP: Final = re.compile(r"[0-9]{1,15}")


def _slack_is_valid(secret: str, headers: Mapping[str, str], raw: bytes) -> bool:
    stamp = headers.get("x-slack-request-timestamp", "")
    if not STAMP.fullmatch(stamp) or abs(time.time() - int(stamp)) > MAX_AGE:
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


# What is no question is not in it: an edit, a deletion, a link that unfurls, a member that joins.
SUBTYPES: Final = (None, "file_share", "me_message", "thread_broadcast")
Found = tuple[str, str, str, Json] | None  # the key, the session, the text, and where it goes


def _read_slack(body: Json) -> Found:
    event = body["event"]
    is_message = event["type"] in ("message", "app_mention") and event.get("subtype") in SUBTYPES
    if not is_message or event.get("bot_id") or not event.get("user") or not event.get("text"):
        return None
    channel, ts = event["channel"], event["ts"]
    thread = event.get("thread_ts", ts)
    to = {"channel": channel, "thread_ts": thread}
    # a message that mentions the bot comes as two events, which have the time in common
    return f"{channel}-{ts}", f"slack-{channel}-{thread}", event["text"], to


def _read_telegram(body: Json) -> Found:
    message = body.get("message") or {}
    # an anonymous administrator has no `from`
    if not message.get("text") or message.get("from", {}).get("is_bot"):
        return None
    to = {"chat_id": message["chat"]["id"]}
    # other groups have the number of a thread, too, but refuse it in a reply
    if topic := message.get("is_topic_message") and message["message_thread_id"]:
        to["message_thread_id"] = topic
    session = f"telegram-{to['chat_id']}-{topic or 0}"
    return str(body["update_id"]), session, message["text"], to


def _read_discord(body: Json) -> Found:
    if body["type"] != 2:  # a command
        return None
    text = " ".join(_values(body["data"])) or f"/{body['data']['name']}"
    to = {"application": body["application_id"], "token": body["token"]}
    return body["id"], f"discord-{body['channel_id']}", text, to


def _values(data: Json) -> list[str]:
    """Return the values of the options of a command, and of its subcommands."""
    return [
        value
        for option in data.get("options") or ()
        for value in ([str(option["value"])] if "value" in option else _values(option))
    ]


CHECKS: Final[dict[str, Callable[[str, Mapping[str, str], bytes], bool]]] = {
    "slack": _slack_is_valid, "telegram": _telegram_is_valid, "discord": _discord_is_valid,
}  # fmt: skip
READERS: Final[dict[str, Callable[[Any], Found]]] = {
    "slack": _read_slack, "telegram": _read_telegram, "discord": _read_discord,
}  # fmt: skip
