"""`Idempotency-Key`: a POST that is sent again gets the answer of the first, and runs nothing.

The answer is kept as it goes out. A later request with the key reads it from its start, also while
the first one runs. The endpoint runs in a task of its own: a client that leaves may come back with
its key, so its request goes on.
"""

from __future__ import annotations

import math
import secrets
from collections import OrderedDict
from contextlib import aclosing
from functools import partial
from hashlib import sha256
from typing import Final

import attrs
import trio
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trio_lanes.agents import Feed

from .errors import Refused
from .http import ShapeOf, raw_of, refusal_of, unless_lost

AGE: Final = 24 * 3600.0  # seconds for which an answer is kept
KEPT: Final = 1_000  # answers
KEPT_BYTES: Final = 50_000_000  # of them together


@attrs.define(eq=False)
class Key:
    """The key of a request, and what the request asks for; a request without one has a new one."""

    id: str = attrs.field(factory=partial(secrets.token_hex, 12))  # in the ids of what it begins
    body: str = ""
    given: bool = False
    begun: bool = False  # whether also an error is the answer from now on

    def check(self, body: str) -> None:
        """Raise unless the request with this key had this body."""
        if self.body != body:
            text = "this Idempotency-Key was used for another request"
            raise Refused(422, text, "idempotency_key_reused")


def key_of(request: Request) -> Key:
    """Return the key of a request."""
    key: Key = request.scope.get("once") or Key()
    return key


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:24]


@attrs.define(eq=False)
class _Said:
    """The answer to a request, as far as it has gone out."""

    key: Key
    until: float
    messages: Feed[Message] = attrs.field(factory=lambda: Feed(math.inf))
    size: int = 0

    def may_leave(self, body: str) -> bool:
        """Whether it is to another request, and may yet leave the key to the one with ``body``."""
        return self.key.body != body and not self.key.begun and not self.messages.closed


class Once:
    """ASGI middleware: requests with a key, which endpoints find by `key_of`.

    Args:
      is_durable: whether ids follow from keys. If not, a key is forgotten, and may come again.
    """

    def __init__(
        self, app: ASGIApp, nursery: trio.Nursery, shape_of: ShapeOf, is_durable: bool
    ) -> None:
        self._app: Final = app
        self._is_durable: Final = is_durable
        self._nursery: Final = nursery
        self._shape_of: Final = shape_of
        self._known: Final[OrderedDict[str, _Said]] = OrderedDict()  # {key: answer}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get("idempotency-key") if scope.get("method") == "POST" else ""
        if not given:
            return await self._app(scope, receive, send)
        request = Request(scope, receive)
        try:
            said = await self._said(scope, given, await raw_of(request))
        except Refused as refused:
            return await self._shape_of(scope["path"])(refused)(scope, receive, send)

        async def tell() -> None:
            async with aclosing(said.messages.read()) as messages:
                async for _, message in messages:
                    await send(message)

        await unless_lost(request, tell)

    async def _said(self, scope: Scope, given: str, raw: bytes) -> _Said:
        """Return the answer to the request; begin the request if it is the first with its key.

        Another request that has the key, and may still be refused, is waited for.
        """
        body = _digest(scope["path"].encode() + b"\n" + raw)
        self._forget()
        while (said := self._known.get(given)) is not None and said.may_leave(body):
            await said.messages.wait_beyond(said.messages.last)
        if said is None:
            key = Key(body=body, given=True)
            if self._is_durable:
                key.id = _digest(given.encode())
            said = self._known[given] = _Said(key, trio.current_time() + AGE)
            self._nursery.start_soon(self._run, scope, raw, given, said)
        said.key.check(body)
        return said

    async def _run(self, scope: Scope, raw: bytes, given: str, said: _Said) -> None:
        parts = [raw]
        status, complete = 0, False

        async def receive() -> Message:
            if not parts:
                await trio.sleep_forever()  # the client never leaves
            return {"type": "http.request", "body": parts.pop(), "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status, complete
            status = message.get("status", status)
            complete = message["type"] == "http.response.body" and not message.get("more_body")
            said.size += len(message.get("body", b""))
            said.messages.publish(message)

        try:
            await self._app({**scope, "once": said.key}, receive, send)
        except Exception as fault:
            refused = refusal_of(fault, dict)
            if not status:
                await self._shape_of(scope["path"])(refused)(scope, receive, send)
        finally:
            counts = complete and (status < 300 or said.key.begun)  # 307: a slash too much
            said.messages.close()
            if not counts:
                del self._known[given]  # the next try is a new request

    def _forget(self) -> None:
        """Forget the oldest answers: those that are too old, too many or too large together."""
        size = sum(said.size for said in self._known.values())
        for id, said in [*self._known.items()]:
            kept = len(self._known) <= KEPT and size <= KEPT_BYTES
            if kept and trio.current_time() < said.until:
                return
            if said.messages.closed:
                del self._known[id]
                size -= said.size
