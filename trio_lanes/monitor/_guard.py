"""Who may look and act: the application's ``authorize``, Host, Origin and a token.

Without ``authorize`` the page is for this machine alone: the client and the Host must be loopback,
so that neither another machine nor a page of another site with a name for 127.0.0.1 gets in.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Final, Literal, TypeAlias, final
from urllib.parse import SplitResult, urlsplit

from starlette.requests import HTTPConnection

Role: TypeAlias = Literal["read", "operate"]
Authorize: TypeAlias = (
    Callable[[HTTPConnection], Role | None] | Callable[[HTTPConnection], Awaitable[Role | None]]
)

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@final
class Guard:
    """Decides about each request."""

    def __init__(self, authorize: Authorize | None) -> None:
        self._authorize: Final = authorize
        self.token: Final = secrets.token_urlsafe(24)
        """What a page has to send with an action."""

    async def role(self, connection: HTTPConnection) -> Role | None:
        """Return what this connection may do; None if nothing.

        Raises:
          TypeError: if ``authorize`` returns another value.
        """
        if not _from_this_site(connection):
            return None
        if self._authorize is None:
            return "read" if _is_loopback(connection) else None
        role = self._authorize(connection)
        if inspect.isawaitable(role):
            role = await role
        if role not in (None, "read", "operate"):
            raise TypeError(f'authorize must return None, "read" or "operate", not {role!r}')
        return role

    def has_token(self, connection: HTTPConnection) -> bool:
        """Whether this request comes from a page that this monitor has sent."""
        sent = connection.headers.get("x-lanes-token", "")
        return "origin" in connection.headers and secrets.compare_digest(
            sent.encode(), self.token.encode()
        )


def policy(nonce: str) -> str:
    """Return the Content-Security-Policy of the page."""
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def _from_this_site(connection: HTTPConnection) -> bool:
    """Whether the request names no other site as its origin."""
    origin = connection.headers.get("origin")
    if origin is None:
        return connection.headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    netloc = _parts(origin).netloc.lower()
    return netloc != "" and netloc == connection.headers.get("host", "").lower()


def _is_loopback(connection: HTTPConnection) -> bool:
    client = connection.client
    if client is None or not _is_loopback_address(client.host):
        return False
    return is_loopback_host(_parts(f"//{connection.headers.get('host', '')}").hostname)


def is_loopback_host(host: str | None) -> bool:
    """Whether ``host`` is a name or an address of this machine for itself."""
    return host == "localhost" or (host is not None and _is_loopback_address(host))


def _is_loopback_address(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def _parts(url: str) -> SplitResult:
    """Return the parts of ``url``, which are empty if it is none."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")
