"""Replies: the parts of a text, the request that sends a part, and what became of it."""

from __future__ import annotations

from typing import Any, Final

import httpx2

from trio_lanes import retry_after
from trio_lanes.durable import NoRetry, Retry

from ..chat_agent.keys import without_secrets
from .shapes import Json

APIS: Final = {
    "slack": "https://slack.com/api",
    "telegram": "https://api.telegram.org",
    "discord": "https://discord.com/api/v10",
}
# Slack cuts a text off above 40,000 characters, and asks for at most 4,000
LARGEST: Final = {"slack": 4_000, "telegram": 4_096, "discord": 2_000}
FOR_NOW: Final = (429, 503, "ratelimited", "rate_limited", "service_unavailable")
REPLY_SECONDS: Final = 15.0  # for a service to answer a request
AGAIN_SECONDS: Final = 10.0  # before a reply is sent again, if the service does not say when
NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
NEVER_SENT: Final = (  # no time makes a request of it
    httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.LocalProtocolError,
)  # fmt: skip
NO_TEXT: Final = "I can read text only: please write it."


class LaterError(Retry):
    """The reply was not taken, and is sent again later."""

    def __init__(self, reason: str, seconds: float | None = None) -> None:
        # what a service asks for does not count as an attempt; a second is against a loop
        after = AGAIN_SECONDS if seconds is None else max(1.0, seconds)
        super().__init__(after, counts=seconds is None)
        self._reason = reason

    def __str__(self) -> str:
        return f"{self._reason}: {super().__str__()}"


class ArrivalUnknownError(Exception):
    """A request was begun, and it is not known whether it was done."""


def client_for_replies() -> httpx2.AsyncClient:
    """Return a client that sends replies, each over a connection of its own.

    Of a connection that was kept, and which the service has closed meanwhile, it is not known
    whether a request went through.
    """
    unshared = httpx2.Limits(max_keepalive_connections=0)
    return httpx2.AsyncClient(limits=unshared, timeout=REPLY_SECONDS)


def parts_of(text: str, largest: int) -> list[str]:
    """Return a text in parts, which end with a paragraph, a line or a word if they can.

    Args:
      largest: of a part, in units of UTF-16, since no service counts a character as more.
    """
    parts = []
    while text.strip():
        # a character that needs two units, and has room for one, is left for the next part
        head = text[:largest].encode("utf-16-le", "replace")[: 2 * largest]
        cut = after = len(head.decode("utf-16-le", "ignore"))
        if cut < len(text):
            for mark in ("\n\n", "\n", " "):
                found = text.rfind(mark, cut // 2, cut + 1)
                if found > 0:
                    cut, after = found, found + len(mark)
                    break
        parts.append(text[:cut].strip("\n"))
        text = text[after:]
    return [part for part in parts if part.strip()]  # no service takes an empty one


def replaces_itself(chat: str, place: int) -> bool:
    """Return whether this part of a reply may be sent twice without harm."""
    return chat == "discord" and place == 0


def request_of(chat: str, to: Json, text: str, place: int, base: str, token: str) -> Json:
    """Return the arguments of the HTTP request that sends a part; ``base`` is the chat's API."""
    if chat == "discord":
        hook, first = f"{base}/webhooks/{to['application']}/{to['token']}", place == 0
        url = f"{hook}/messages/@original" if first else hook
        return {"method": "PATCH" if first else "POST", "url": url, "json": {"content": text}}
    method, headers = "chat.postMessage", {"Authorization": f"Bearer {token}"}
    if chat == "telegram":
        method, headers = f"bot{token}/sendMessage", {}
    json = to | {"text": text}
    return {"method": "POST", "url": f"{base}/{method}", "json": json, "headers": headers}


def check(chat: str, response: httpx2.Response) -> None:
    """Return if a part has arrived.

    Raises:
      LaterError: if the service refused it for now.
      NoRetry: if the service refused it.
      ArrivalUnknownError: if the answer does not say what became of it.
    """
    try:
        body: Any = response.json()
    except ValueError:
        body = None
    body = body if isinstance(body, dict) else {}
    reason = body.get("error") or body.get("description") or body.get("message") or ""
    answer = without_secrets(f"{chat} answered {response.status_code} {reason}".rstrip())
    if response.is_success and (chat != "slack" or body.get("ok") is True):
        return
    refused = response.is_client_error
    if chat == "slack" and response.is_success:  # 200 is also the status of what was not done
        # at an error of the server some of it may have been done, by Slack's own words
        refused = body.get("ok") is False and reason not in ("fatal_error", "internal_error")
    if response.status_code in FOR_NOW or (refused and reason in FOR_NOW):
        raise LaterError(answer, retry_after(response.headers))
    if refused:
        raise NoRetry(f"the reply was refused: {answer}")
    raise ArrivalUnknownError(answer)
