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
# the key, the session, the text (None: a message to answer that has none), and where the reply goes
Found = tuple[str, str, str | None, Json] | None


def _read_slack(body: Json) -> Found:
    event = body["event"]
    is_message = event["type"] in ("message", "app_mention") and event.get("subtype") in SUBTYPES
    is_direct = event.get("channel_type") == "im"
    has_more = is_direct and (event.get("files") or event.get("attachments"))
    text = event.get("text") or None
    if not is_message or event.get("bot_id") or not event.get("user") or not (text or has_more):
        return None
    channel, ts = event["channel"], event["ts"]
    # a message that mentions the bot comes as two events, which have the time in common
    key, session, to = f"{channel}-{ts}", f"slack-{channel}", {"channel": channel}
    thread = event.get("thread_ts")
    if not is_direct:  # in a channel each message begins a thread
        thread = thread or ts
        session = f"{session}-{thread}"
    return key, session, text, to | ({"thread_ts": thread} if thread else {})


# what a person sends that has no text; all else without one is news of the chat, as that a person
# has joined
WITHOUT_TEXT: Final = (
    "animation", "audio", "contact", "dice", "document", "location", "photo", "poll", "sticker",
    "story", "video", "video_note", "voice",
)  # fmt: skip


def _read_telegram(body: Json) -> Found:
    business = body.get("business_message")
    message = body.get("message") or body.get("channel_post") or business or {}
    # an anonymous administrator, and a channel, have no `from`
    sender, chat = message.get("from", {}), message.get("chat", {})
    text = message.get("text") or message.get("caption")
    # an album is several messages, of which one has the text
    is_direct = chat.get("type") == "private" and not message.get("media_group_id")
    has_more = is_direct and any(name in message for name in WITHOUT_TEXT)
    if sender.get("is_bot") or not (text or has_more):
        return None
    to = {"chat_id": chat["id"]}
    # other groups have the number of a thread, too, but refuse it in a reply
    if topic := message.get("is_topic_message") and message["message_thread_id"]:
        to["message_thread_id"] = topic
    session = f"telegram-{to['chat_id']}-{topic or 0}"
    if business:
        if sender["id"] != chat["id"]:  # it is what the owner of the account has written
            return None
        to["business_connection_id"] = business["business_connection_id"]
        session = f"{session}-{to['business_connection_id']}"
    return str(body["update_id"]), session, text, to


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
