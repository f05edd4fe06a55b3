"""`Address`: where a server is, read from a URL, and a connection to it.

The transport is connected before coredis has a connection object: of an object whose transport
cannot be connected, coredis leaves streams unclosed.
"""

from __future__ import annotations

import logging
import ssl
from typing import Final, final
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import anyio
import attrs
import trio
from anyio.abc import ByteStream
from coredis.connection import BaseConnection, TCPLocation, UnixDomainSocketLocation

PORT: Final = 6379
SCHEMES: Final = ("valkey", "valkeys", "redis", "rediss", "unix")


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], trio.Cancelled)


# coredis logs the cancellation of a connection that is being made as an error, with its traceback
logging.getLogger("coredis").addFilter(_is_no_cancellation)


@final
@attrs.frozen
class Address:
    """Where a server is, and as which user and to which database to connect."""

    host: str
    port: int
    path: str
    """The path of a Unix socket; empty: host and port are used."""
    tls: bool
    db: int
    username: str | None
    password: str | None = attrs.field(repr=False)

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}/{self.db}"

    async def connect(self) -> BaseConnection:
        """Return a connection object over a connected transport; `run` makes it usable.

        Raises:
          OSError: if the server cannot be reached.
        """
        if self.path:
            return _ConnectionOver(self, await anyio.connect_unix(self.path))
        if not self.tls:
            return _ConnectionOver(self, await anyio.connect_tcp(self.host, self.port))
        stream = await anyio.connect_tcp(
            self.host, self.port, ssl_context=ssl.create_default_context()
        )
        return _ConnectionOver(self, stream)


class _ConnectionOver(BaseConnection):
    """A connection of coredis over a transport that is connected already."""

    def __init__(self, address: Address, stream: ByteStream) -> None:
        path, host, port = address.path, address.host, address.port
        super().__init__(
            UnixDomainSocketLocation(path) if path else TCPLocation(host, port),
            username=address.username,
            password=address.password,
            db=address.db,
            decode_responses=True,
        )
        self._transport: Final = stream
        self._address: Final = address

    async def _connect(self) -> ByteStream:
        return self._transport

    def describe(self) -> str:
        return f"<connection to {self._address}>"


def read_address(url: str) -> Address:
    """Return the address in a URL.

    Raises:
      ValueError: if it is no URL of a server.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its text may have the password
        raise ValueError(
            "the url of a Valkey store cannot be read: look at its port, and for a / in the "
            "password, which is encoded as %2F"
        ) from None
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ValueError(f"the url of a Valkey store begins with one of {known}")
    if parts.fragment:
        raise ValueError("the url of a Valkey store has no fragment")
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password else None
    if parts.scheme == "unix":
        if not parts.path or parts.hostname:
            raise ValueError("a unix:// url has the absolute path of a socket: unix:///run/valkey")
        return Address("", 0, unquote(parts.path), False, _database(parts, ""), user, password)
    if parts.query:
        raise ValueError("the url of a Valkey store has no query; only unix:// has ?db=")
    return Address(
        parts.hostname or "localhost",
        port or PORT,
        "",
        parts.scheme in ("valkeys", "rediss"),
        _database(parts, parts.path),
        user,
        password,
    )


def _database(parts: SplitResult, path: str) -> int:
    text = path.removeprefix("/")
    if parts.query:
        given = parse_qs(parts.query, keep_blank_values=True)
        if list(given) != ["db"]:
            raise ValueError("a unix:// url has at most the query ?db=NUMBER")
        (text,) = given["db"]
    if not text:
        return 0
    if not text.isascii() or not text.isdigit():
        # the text may have the password, if the slashes are wrong
        raise ValueError("the database of a Valkey store is a number: valkey://HOST:PORT/NUMBER")
    return int(text)
