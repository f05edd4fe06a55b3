"""Who may look and act: the Host, the origin, then the application's ``authorize`` or a key.

A request is looked at in this order. Its Host must be a name of this machine for itself, or one of
``hosts``: a page of another site can have its name lead to this machine (DNS rebinding), but cannot
choose the Host that the browser then sends. Its origin, where it has one, must be this site. Then
``authorize`` decides; without it, who has the key may read. An address decides nothing: behind a
proxy on this machine everybody comes from here.

A browser that opens the page with the key in its address gets a cookie, and an address without the
key. The cookie holds a digest of the key: who has the same key, such as another process of the same
application, takes it, and so it outlives a restart.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_address
from typing import Final, Literal, TypeAlias, final
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse

from .._config.names import MONITOR_KEY

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


class RefusedError(Exception):
    """A request or an action that is not done; the message is for the operator."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


@final
class Guard:
    """Decides about each request.

    Raises:
      TypeError, ValueError: for a bad ``authorize``, ``key``, ``hosts`` or ``prefix``, or a bad key
        in the environment.
    """

    def __init__(
        self,
        authorize: Authorize | None,
        key: str | None = None,
        hosts: Iterable[str] = (),
        prefix: str = "",
    ) -> None:
        if authorize is not None and not callable(authorize):
            raise TypeError(f"authorize must be a function or None, not {authorize!r}")
        if authorize is not None and key is not None:
            raise ValueError("authorize decides who may look, so there can be no key")
        self._authorize: Final = authorize
        self._hosts: Final = _checked_hosts(hosts)
        self._prefix: Final = _checked_prefix(prefix)
        given = (
            "" if authorize is not None else configured_key() if key is None else _checked_key(key)
        )
        self.has_drawn: Final = authorize is None and not given
        """Whether the key was drawn here, so that nobody else knows it yet."""
        self.key: Final = secrets.token_urlsafe(24) if self.has_drawn else given
        """Who has it may read; empty with ``authorize``."""
        digest = hashlib.sha256(b"trio_lanes.monitor\n" + self.key.encode()).hexdigest()
        # Cookies do not belong to a port, so pages with other keys on this host have other names.
        self._cookie, self._ticket = f"trio-lanes-{digest[:8]}", digest[8:]
        self.token: Final = secrets.token_urlsafe(24)
        """What a page has to send with an action."""

    async def role(self, connection: HTTPConnection) -> Role:
        """Return what this connection may do.

        Raises:
          RefusedError: if it may do nothing; the message says why.
          TypeError: if ``authorize`` returns no role.
        """
        self._check_host(connection)
        _check_origin(connection)
        if self._authorize is None:
            if not (self._has_key(connection) or self._has_cookie(connection)):
                raise RefusedError(
                    401,
                    "this page needs its key: add ?key=... to its address, with the key from the "
                    f"log of the application. Several processes share one by {MONITOR_KEY}",
                )
            return "read"
        role = self._authorize(connection)
        if inspect.isawaitable(role):
            role = await role
        if role is None:
            raise RefusedError(403, "this page is not for you")
        if role not in ("read", "operate"):
            raise TypeError(f'authorize must return None, "read" or "operate", not {role!r}')
        return role

    def check_token(self, connection: HTTPConnection) -> None:
        """Refuse an action that comes from no page that this monitor has sent.

        Raises:
          RefusedError: then.
        """
        sent = connection.headers.get("x-lanes-token", "")
        if "origin" not in connection.headers or not _equal(sent, self.token):
            raise RefusedError(
                403, "the action has no token of this page; load the page again to act"
            )

    def without_key(self, connection: HTTPConnection) -> RedirectResponse | None:
        """Return where a browser goes that has opened the page with the key in its address.

        The answer sets the cookie. None if there is no key in the address.
        """
        if self._authorize is not None or "key" not in connection.query_params:
            return None
        path = self._prefix or quote("/" + connection.scope.get("root_path", "").strip("/"))
        others = [(k, v) for k, v in connection.query_params.multi_items() if k != "key"]
        query = f"?{urlencode(others)}" if others else ""
        answer = RedirectResponse(f"{path.rstrip('/')}/{query}", 303, headers=HEADERS)
        answer.set_cookie(
            self._cookie,
            self._ticket,
            path=path,
            # a proxy that ends TLS says so; what a client says here can only add the flag
            secure=connection.scope.get("scheme") == "https"
            or connection.headers.get("x-forwarded-proto", "").lower().startswith("https"),
            httponly=True,
            samesite="strict",
        )
        return answer

    def _has_key(self, connection: HTTPConnection) -> bool:
        return _equal(connection.query_params.get("key", ""), self.key)

    def _has_cookie(self, connection: HTTPConnection) -> bool:
        return _equal(connection.cookies.get(self._cookie, ""), self._ticket)

    def _check_host(self, connection: HTTPConnection) -> None:
        given = connection.headers.get("host", "")
        host = _parts(f"//{given}").hostname
        if not (is_loopback_host(host) or host in self._hosts):
            raise RefusedError(
                403,
                f"the page has no host {given!r}: name it in hosts=, or let the proxy send the "
                "Host of its upstream",
            )


def configured_key() -> str:
    """Return the key from the environment; empty if there is none.

    Raises:
      ValueError: if it cannot be a key.
    """
    key = os.environ.get(MONITOR_KEY, "").strip()
    return _checked_key(key, MONITOR_KEY) if key else ""


def policy(nonce: str) -> str:
    """Return the Content-Security-Policy of the page."""
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def is_loopback_host(host: str | None) -> bool:
    """Whether ``host`` is a name or an address of this machine for itself."""
    if host is None or host == "localhost":
        return host is not None
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _check_origin(connection: HTTPConnection) -> None:
    """Refuse a request that names another site as its origin.

    Names are compared, and ports where both are given: a proxy may send the Host without its port.

    Raises:
      RefusedError: then.
    """
    origin = connection.headers.get("origin")
    if origin is None:
        if connection.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise RefusedError(403, "another site has asked for this page; open its address")
        return
    host = connection.headers.get("host", "")
    theirs, ours = _parts(origin), _parts(f"//{host}")
    ports = {port for port in (_port(theirs), _port(ours)) if port is not None}
    if theirs.hostname is None or theirs.hostname != ours.hostname or len(ports) > 1:
        raise RefusedError(
            403,
            f"the request comes from {origin!r}, and the page is at {host!r}: a proxy in between "
            "must send the Host that the browser names, and hosts= must have it",
        )


def _checked_key(key: object, name: str = "key") -> str:
    if not isinstance(key, str):
        raise TypeError(f"{name} must be text or None, not a {type(key).__name__}")
    if not key or not key.isprintable() or " " in key:  # the text is secret
        raise ValueError(f"{name} must be text without spaces, line ends and the like, not empty")
    return key


def _checked_hosts(hosts: Iterable[object]) -> frozenset[str]:
    if isinstance(hosts, str):
        raise TypeError(f"hosts must be names of hosts, such as [{hosts!r}], not a text")
    found = set()
    for host in hosts:
        name = host.lower() if isinstance(host, str) else ""
        parts = _parts(f"//[{name}]" if name.count(":") > 1 and name[0] != "[" else f"//{name}")
        if not name or parts.netloc.strip("[]") != name.strip("[]") or _port(parts) is not None:
            raise ValueError(f"hosts must be names of hosts without ports, not {host!r}")
        found.add(parts.hostname or "")
    return frozenset(found)


def _checked_prefix(prefix: str) -> str:
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be text, not {prefix!r}")
    path = prefix.rstrip("/")
    if prefix and (not prefix.startswith("/") or prefix.startswith("//") or quote(path) != path):
        raise ValueError(f"prefix must be a path of a URL such as '/lanes', not {prefix!r}")
    return path


def _equal(one: str, other: str) -> bool:
    return secrets.compare_digest(one.encode(), other.encode())


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError:
        return -1  # which no other port equals


def _parts(url: str) -> SplitResult:
    """Return the parts of ``url``, which are empty if it is none."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")
