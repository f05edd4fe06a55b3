"""Secrets: read in one place, which strips and checks them, and taken out of every text.

A text of a library, or of another program, may hold a secret: the header that is not valid, the URL
that cannot be reached, the key that was refused. Whatever of it goes to a client, a log, the reason
of a job or a terminal goes through `without_secrets`.
"""

from __future__ import annotations

import logging
import os
from base64 import b64encode
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

SHORTEST: Final = 8  # of a text that is taken out: shorter ones stand in place of a key ("EMPTY")
_known: Final[set[str]] = set()


class SecretError(SystemExit):
    """A secret cannot be one; the text names its variable, and not the secret."""


def secret(name: str) -> str:
    """Return the secret in an environment variable, stripped; empty if there is none.

    Raises:
      SecretError: if it has a sign that no key has, and no header can.
    """
    value = os.environ.get(name, "").strip()
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise SecretError(f"{name} has a sign that no key has: a space, a line end, or no ASCII")
    hide(value)
    return value


def hide(*values: str) -> None:
    """Take these texts out of all others from now on."""
    for value in values:
        _known.update(text for text in (value, quote(value, safe="")) if len(text) >= SHORTEST)


def hide_in(url: str) -> str:
    """Take what is secret in a URL out of all texts from now on. Return the URL."""
    try:
        parts = urlsplit(url)
        given = [unquote(parts.password or ""), parts.password or ""]
        if parts.password:  # so it is in a header
            pair = f"{unquote(parts.username or '')}:{given[0]}"
            given.append(b64encode(pair.encode()).decode())
    except ValueError:  # no URL, so all of it may be secret
        hide(url)
        return url
    hide(*given, *(value for _, value in parse_qsl(parts.query)))
    return url


def without_secrets(text: str) -> str:
    """Return a text without the secrets that are known."""
    for value in sorted(_known, key=len, reverse=True):
        text = text.replace(value, "***")
    return text


def what(error: BaseException) -> str:
    """Return what an error of a library is, for people: its class and its text, without secrets."""
    return without_secrets(f"{type(error).__name__}: {error}".removesuffix(": "))


class _Hiding(logging.Filter):
    """Keeps secrets out of the log of a library."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = without_secrets(record.getMessage()), ()
        return True


# it logs each URL, and that of Telegram has the token
logging.getLogger("httpx2").addFilter(_Hiding())
