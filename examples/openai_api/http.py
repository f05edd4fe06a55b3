"""HTTP: bounded bodies, errors in the API's own shape, and streams that notice a lost client."""

from __future__ import annotations

import json
import logging
import math
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

import trio
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trio_lanes import LaneFullError, Lanes, LanesClosedError
from trio_lanes.agents import TranscriptError
from trio_lanes.durable import KeyConflictError, PayloadError, StoreError

from ..chat_agent.web.server import is_ours
from .errors import BadInputError, Refused
from .fields import IGNORED
from .wire import Json

logger: Final = logging.getLogger(__name__)
MAX_BODY: Final = 4_000_000  # bytes
BODY_SECONDS: Final = 30.0  # in which a body has to arrive
ALIVE_SECONDS: Final = 15.0  # between two signs of life: proxies close a stream that is silent
ALIVE: Final = b": alive\n\n"
FAREWELL_SECONDS: Final = 3.0
MAX_REQUESTS: Final = 2_000  # open at once
MAX_DEPTH: Final = 200  # levels of a body
NAME: Final = re.compile(r"(?!\.)[A-Za-z0-9_.-]{1,100}")
RESPONSE: Final = re.compile(rf"resp_{NAME.pattern}\.[A-Za-z0-9]{{1,40}}")  # an id


REQUEST: Final[ContextVar[str]] = ContextVar("REQUEST", default="a request")  # its id, for logs
Endpoint = Callable[[Request], Awaitable[Response]]
Shape = Callable[[Refused], Response]  # of an error
ShapeOf = Callable[[str], Shape]  # of the errors of a path


def guarded(endpoint: Endpoint, full: Callable[[], dict[str, str]], shape: Shape) -> Endpoint:
    """Return the endpoint with its exceptions as errors; ``full`` has the headers of a 429."""

    async def call(request: Request) -> Response:
        IGNORED.set(told := list[str]())  # of this request, which has a context of its own
        try:
            response = await endpoint(request)
        except Exception as fault:
            return shape(refusal_of(fault, full))
        if told:
            response.headers["x-lanes-ignored"] = ", ".join(dict.fromkeys(told))
        return response

    return call


def refusal_of(fault: Exception, full: Callable[[], dict[str, str]]) -> Refused:
    """Return the error for an exception that is handled; ``full`` has the headers of a 429."""
    match fault:
        case Refused():
            return fault
        case LanesClosedError():
            return Refused(503, str(fault), "shutting_down")
        case PayloadError():
            return Refused(413, str(fault))
        case StoreError() | OSError():
            logger.exception("%s was refused, because it could not be stored", REQUEST.get())
            text = "what has to be stored cannot be stored now; try again later"
            return Refused(503, text, "store_unavailable")
        case TranscriptError():
            logger.exception("%s was refused: its conversation cannot be read", REQUEST.get())
            text = "the stored conversation is damaged; the log of the gateway has the place"
            return Refused(500, text, "damaged_conversation", x_should_retry="false")
        case KeyConflictError():
            return Refused(409, str(fault))
        case LaneFullError():
            text = "too much work waits; try again later"
            return Refused(429, text, "rate_limit_exceeded", **full())
    logger.exception("%s has failed", REQUEST.get())
    text = f"the gateway failed: {type(fault).__name__}"
    return Refused(500, text, "server_error", x_should_retry="false")


def full(lanes: Lanes, name: str) -> dict[str, str]:
    """Return the headers of a 429: about the time in which a place of a lane becomes free."""
    lane = lanes.lane(name)
    oldest = lanes.statistics().lanes[name].oldest_wait
    seconds = max(0.2, min(10.0, (oldest or 1.0) / max(1, lane.waiting)))
    return {
        "retry_after_ms": str(round(seconds * 1000)),
        "x_ratelimit_limit_requests": str(lane.config.max_waiting),
        "x_ratelimit_remaining_requests": "0",
        "x_ratelimit_reset_requests": f"{seconds:.1f}s",
    }


async def body_of(request: Request) -> Json:
    """Return the JSON object of a request."""
    return json_of(await raw_of(request))


async def raw_of(request: Request) -> bytes:
    """Return the body of a request, whose size and time are bounded."""
    body = bytearray()
    with trio.move_on_after(BODY_SECONDS) as limit:
        async with aclosing(request.stream()) as parts:
            async for part in parts:
                body += part
                if len(body) > MAX_BODY:
                    raise Refused(413, f"a body has at most {MAX_BODY:,} bytes")
    if limit.cancelled_caught:
        raise Refused(408, f"the body did not arrive within {BODY_SECONDS:g} s")
    return bytes(body)


def json_of(raw: bytes) -> Json:
    """Return the JSON object in a body; an empty body is an empty object.

    What it has can be sent back: JSON has no infinite number, and UTF-8 no lone surrogate.
    """
    try:
        body = json.loads(raw or b"{}", parse_constant=_finite, parse_float=_finite)
        level = [body]
        for _ in range(MAX_DEPTH):
            parts = [part for part in level if isinstance(part, dict | list)]
            level = [v for p in parts for v in (p.values() if isinstance(p, dict) else p)]
        if level:  # how deep Python can go depends on its version
            raise RecursionError
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Refused(400, "the body has half of a character: a lone surrogate") from None
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON (NaN and Infinity are not), or too deep") from None
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    return body


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


async def not_found(shape_of: ShapeOf, request: Request, fault: Exception) -> Response:
    """Return the error for an unknown path, or for a method that a path does not have."""
    assert isinstance(fault, HTTPException)
    path = request.url.path
    text = f"{fault.detail}: {request.method} {path[:100]} is not of this API"
    answer = shape_of(path)(Refused(fault.status_code, text, "unknown_url"))
    answer.headers.update(fault.headers or {})
    return answer


def listed(request: Request, found: list[Json]) -> JSONResponse:
    """Return a page of a list, newest first unless the request has `order=asc`."""
    query = request.query_params
    if query.get("order", "desc") not in ("asc", "desc"):
        raise Refused(400, "order must be asc or desc", param="order")
    limit = query.get("limit", "20")
    if not re.fullmatch("[0-9]{1,4}", limit) or not 1 <= int(limit) <= 1_000:
        raise Refused(400, "limit must be a number from 1 to 1000", param="limit")
    if query.get("order") != "asc":
        found = found[::-1]
    ids = [item["id"] for item in found]
    for name in ("after", "before"):
        if name in query and query[name] not in ids:
            raise Refused(400, f"{name}: there is no such item", param=name)
    start = ids.index(query["after"]) + 1 if "after" in query else 0
    found = found[start : ids.index(query["before"]) if "before" in query else None]
    return page_of(found[: int(limit)], len(found) > int(limit))


def page_of(data: Sequence[Json], has_more: bool = False) -> JSONResponse:
    """Return items as a page of a list."""
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    shown = {"data": data, "first_id": first, "last_id": last, "has_more": has_more}
    return JSONResponse({"object": "list", **shown})


def field(body: Json, name: str, kind: Any, default: Any = None) -> Any:
    """Return a field of a body that has this type, or is missing."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, str) and len(value) > MAX_BODY):
        raise Refused(400, f"{name} has the wrong type", "invalid_type", param=name)
    return value


def named(value: str, param: str | None = None) -> str:
    """Return ``value`` if it is a valid name of a session, a user or an id."""
    if not NAME.fullmatch(value):
        raise BadInputError("a name has up to 100 letters, digits and the signs _ . -", param)
    return value


class EventStream(StreamingResponse):
    """Server-sent events; ``lost`` is called if the client leaves before the end.

    While no event comes, there is a comment from time to time, which clients ignore.
    """

    def __init__(self, events: AsyncIterator[str], lost: Callable[[], object] = bool) -> None:
        headers = {"Cache-Control": "no-store"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._events, self._lost = events, lost

    async def stream_response(self, send: Send) -> None:
        try:
            async with aclosing(self._events):  # type: ignore[type-var]
                await self._send_alive(send)
        except BaseException:
            self._lost()
            raise

    async def _send_alive(self, send: Send) -> None:
        sent_at, more = trio.current_time(), True

        async def put(message: Message) -> None:  # a whole event, or more of them
            nonlocal sent_at, more
            sent_at, more = trio.current_time(), message.get("more_body", True)
            await send(message)
            if message["type"] == "http.response.start":
                nursery.start_soon(show_life)

        async def show_life() -> None:
            while True:
                await trio.sleep_until(sent_at + ALIVE_SECONDS)
                if not more:
                    return
                if trio.current_time() >= sent_at + ALIVE_SECONDS:
                    await put({"type": "http.response.body", "body": ALIVE, "more_body": True})

        async with trio.open_nursery() as nursery:
            await super().stream_response(put)
            nursery.cancel_scope.cancel()


async def unless_lost(request: Request, wait: Callable[[], Awaitable[object]]) -> bool:
    """Wait; return False if the client leaves first."""
    done = False

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await wait()
        done = True
        nursery.cancel_scope.cancel()
    return done


class Requests:
    """The number of open requests."""

    def __init__(self) -> None:
        self.open = 0
        self._none: Final = trio.lowlevel.ParkingLot()

    def closed(self) -> None:
        """A request was answered, or its client has left."""
        self.open -= 1
        if not self.open:
            self._none.unpark_all()

    async def wait_none(self) -> None:
        """Wait until the last answers have reached their clients, for some seconds at most."""
        with trio.move_on_after(FAREWELL_SECONDS):
            while self.open:
                await self._none.park()


class Bounded:
    """ASGI middleware: requests and WebSockets of this machine alone, not too many at once."""

    def __init__(self, app: ASGIApp, requests: Requests, shape_of: ShapeOf) -> None:
        self._app: Final = app
        self._requests: Final = requests
        self._shape_of: Final = shape_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = None
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        if not is_ours(HTTPConnection(scope)):
            refused = Refused(403, "this gateway is for this machine alone")
        elif self._requests.open >= MAX_REQUESTS:
            refused = Refused(503, "too many requests are open", retry_after_ms="1000")
        if refused is not None:
            return await self._shape_of(scope["path"])(refused)(scope, receive, send)
        self._requests.open += 1
        id = REQUEST.set(f"req_{secrets.token_hex(12)}")
        try:
            await self._app(scope, receive, partial(_send_with, REQUEST.get(), send))
        finally:
            REQUEST.reset(id)
            self._requests.closed()


async def _send_with(id: str, send: Send, message: Message) -> None:
    """Send a message; the head of a reply has the id of the request, by both APIs' names."""
    if message["type"] == "http.response.start":
        pairs = [(name, id.encode()) for name in (b"x-request-id", b"request-id")]
        message = {**message, "headers": [*message["headers"], *pairs]}
    await send(message)
