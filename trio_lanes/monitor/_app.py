"""The page as an ASGI application: it can be mounted in any Starlette application on Trio."""

from __future__ import annotations

import html
import inspect
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from importlib.resources import files
from typing import Any, Final, TypeAlias, final

import trio
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from trio_lanes import Lanes
from trio_lanes.durable import DurableLanes

from .._config.names import MONITOR_KEY
from ._actions import Actions
from ._durable import Durable
from ._ended import ended
from ._frames import Frames
from ._guard import HEADERS, Authorize, Guard, RefusedError, Role, policy
from ._history import History
from ._notes import Notes
from ._records import Records
from ._search import JobSearch
from ._shown import Frame, clipped
from ._story import lane_story, session_story, story
from ._whatif import WhatIf

logger: Final = logging.getLogger("trio_lanes.monitor")

MAX_VIEWERS: Final = 32
_MAX_BYTES: Final = 4096  # of an action
_MAX_HISTORY: Final = 1000
_MAX_WANTED: Final = 200  # characters that are looked for
_STREAM_SECONDS: Final = 300.0  # then the page connects again, and is authorized again
_FIRST_LOOK: Final = 1.0  # seconds that the first frame waits for the store
_BODY_SECONDS: Final = 10.0  # seconds that the body of an action may take

Answer: TypeAlias = Callable[[Request, Role], object]
"""Returns what JSON can carry, or an awaitable of it."""

MEDIA_TYPES: Final = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
"""By the endings of the files that a page may load."""


def monitor(
    lanes: Lanes,
    *,
    durable: DurableLanes | None = None,
    authorize: Authorize | None = None,
    key: str | None = None,
    hosts: Iterable[str] = (),
    prefix: str = "",
    title: str = "lanes",
) -> Starlette:
    """Return the page over ``lanes`` as an ASGI application, to be mounted or served.

    ::

        Starlette(routes=[Mount("/lanes", monitor(lanes, authorize=who))])

    It runs in the thread and the Trio run of ``lanes``. Not a checkpoint. Nothing is made or
    recorded while no page is open.

    Args:
      durable: durable lanes whose store is shown as well: its instances, its retries, and its dead
        letters by error. ``lanes`` may be ``durable.local``.
      authorize: says what a connection may do: None, ``"read"`` or ``"operate"``; it may be async.
        Without it, who has the key may read, and nobody else may look, from wherever.
      key: the key without ``authorize``, which is sent as ``?key=...`` and then kept as a cookie.
        Without it, the environment variable ``TRIO_LANES_MONITOR_KEY`` has it; else one is drawn,
        and written to the log as a warning.
      hosts: names of hosts, without ports, under which the page is reached; those of this machine
        for itself are always allowed, and a request with any other Host is refused.
      prefix: the path under which a proxy that strips it shows the page; without it, the path at
        which the page is mounted.
      title: the name of the application, for people.

    Raises:
      TypeError: if ``lanes`` are no `Lanes`, ``durable`` no
        `trio_lanes.durable.DurableLanes`, ``authorize`` cannot
        be called, ``key`` or ``prefix`` is no text, or ``hosts`` is one.
      ValueError: for a key that is empty or has spaces, a key with ``authorize``, a host that is no
        name, or a prefix that is no path.
    """
    guard = Guard(authorize, key, hosts, prefix)
    app = page(lanes, durable, guard, title)
    if guard.has_drawn:
        logger.warning(
            "the page of %r is for who has its key: add ?key=%s to its address; several processes "
            "share a key by the variable %s",
            title,
            guard.key,
            MONITOR_KEY,
        )
    return app


def page(lanes: Lanes, durable: DurableLanes | None, guard: Guard, title: str) -> Starlette:
    """`monitor`, with a guard that is made already."""
    if not isinstance(lanes, Lanes):
        raise TypeError(f"lanes must be Lanes, not {lanes!r}")
    if durable is not None and not isinstance(durable, DurableLanes):
        raise TypeError(f"durable must be DurableLanes or None, not {durable!r}")
    return _Page(lanes, durable, guard, title).app()


@final
class _Page:
    def __init__(
        self, lanes: Lanes, durable: DurableLanes | None, guard: Guard, title: str
    ) -> None:
        self._lanes: Final = lanes
        self._guard: Final = guard
        self._title: Final = title
        self._notes: Final = Notes(lanes)
        records = Records(lanes)
        self._store: Final = None if durable is None else Durable(durable, self._notes)
        self._frames: Final = Frames(lanes, self._notes, records, self._store)
        self._actions: Final = Actions(lanes, self._frames, self._notes)
        if self._store is not None:
            for verb in (self._store.requeue, self._store.retry, self._store.promote):
                self._actions.verbs[verb.__name__] = verb
        self._hours: Final = History(lanes, self._notes, records)
        self._search: Final = JobSearch(lanes, self._frames)
        self._what_if: Final = WhatIf(lanes, records)
        folder = files(__package__).joinpath("static")
        self._html: Final = folder.joinpath("page.html").read_text(encoding="utf-8")
        self._files: Final = {
            file.name: file.read_bytes()
            for file in folder.iterdir()
            if file.name.rpartition(".")[2] in MEDIA_TYPES
        }
        lanes.add_instrument(self._notes)

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                Route("/", self._page),
                Route("/static/{name}", self._static),
                Route("/frames", self._stream),
                Route("/act", self._act, methods=["POST"]),
                *(self._answered(path, by) for path, by in self._answers.items()),
            ],
            exception_handlers={RefusedError: _refused},
        )

    def _answered(self, path: str, by: Answer) -> Route:
        """Return the route that answers who may read with JSON."""

        async def respond(request: Request) -> Response:
            found = by(request, await self._role(request))
            return _json(await found if inspect.isawaitable(found) else found)

        return Route(path, respond)

    async def _role(self, request: Request, *, operates: bool = False) -> Role:
        """Return the role of ``request``.

        Raises:
          RefusedError: if it has none, or does not operate.
        """
        role = await self._guard.role(request)
        if operates:
            if role != "operate":
                raise RefusedError(
                    403, "you may look, and not act; load the page again if you may by now"
                )
            self._guard.check_token(request)
        return role

    async def _page(self, request: Request) -> Response:
        role = await self._role(request)
        if (elsewhere := self._guard.without_key(request)) is not None:
            return elsewhere
        nonce = secrets.token_urlsafe(16)
        text = self._html
        for name, value in (
            ("nonce", nonce),
            ("role", role),
            ("title", self._title),
            ("durable", "" if self._store is None else "yes"),
        ):
            text = text.replace(f"{{{{{name}}}}}", html.escape(value))
        headers = {**HEADERS, "Content-Security-Policy": policy(nonce)}
        return Response(text, media_type="text/html; charset=utf-8", headers=headers)

    async def _static(self, request: Request) -> Response:
        await self._role(request)
        name = request.path_params["name"]
        if name not in self._files:
            raise RefusedError(404, "there is no such file")
        media_type = MEDIA_TYPES[name.rpartition(".")[2]]
        return Response(self._files[name], media_type=media_type, headers=HEADERS)

    async def _stream(self, request: Request) -> Response:
        await self._role(request)
        if self._frames.viewers >= MAX_VIEWERS:
            raise RefusedError(503, f"{MAX_VIEWERS} viewers look already; try again later")
        if self._store is not None:
            with trio.move_on_after(_FIRST_LOOK):  # so that the first frame has the store, too
                await self._store.view()
        return _Stream(self._frames, self._store)

    # ---- what is answered with JSON

    @property
    def _answers(self) -> dict[str, Answer]:
        frames, store = self._frames, self._store
        return {
            # what this connection may do, and the token that its actions need
            "/access": lambda asked, role: {
                "role": role,
                "token": self._guard.token if role == "operate" else "",
            },
            # the last records, for a page that has just been opened, or has missed frames
            "/history": lambda asked, role: {
                "ended": frames.history(_number(asked, "after", "0"), _MAX_HISTORY)
            },
            "/job/{number:int}": self._job,
            "/session/{key:path}": lambda asked, role: session_story(
                self._lanes, frames, asked.path_params["key"]
            ),
            "/lane/{key:path}": lambda asked, role: lane_story(
                self._lanes, frames, asked.path_params["key"]
            ),
            "/find": lambda asked, role: self._search.find(
                asked.query_params.get("text", "")[:_MAX_WANTED]
            ),
            # what has ended, by error and name
            "/ended": lambda asked, role: ended(
                frames.records,
                error=asked.query_params.get("error"),
                name=asked.query_params.get("name"),
            ),
            "/hour": lambda asked, role: self._hours.hour(asked.query_params.get("lane", "")),
            # what another limit of a lane would have done in the last minutes
            "/replay": lambda asked, role: self._what_if.ask(
                asked.query_params.get("lane", ""), _number(asked, "limit", "", digits=6)
            ),
            "/durable": lambda asked, role: store and store.view(),
            "/durable/{number:int}": lambda asked, role: (
                store and store.story(asked.path_params["number"], operates=role == "operate")
            ),
        }

    async def _job(self, request: Request, role: Role) -> Frame | None:
        job = await self._search.job(request.path_params["number"])
        return None if job is None else story(self._lanes, self._frames, job)

    # ---- actions

    async def _act(self, request: Request) -> Response:
        await self._role(request, operates=True)
        try:
            asked = await _body(request)
        except (ValueError, RecursionError):
            raise RefusedError(400, "the request is not JSON") from None
        if asked is None:
            raise RefusedError(413, "the request is too long, or too slow")
        return _json(await self._actions.do(asked, _name_of(request)))


@final
class _Stream(StreamingResponse):
    """The frames as server-sent events for one viewer, who looks until it has ended."""

    def __init__(self, frames: Frames, store: Durable | None) -> None:
        self._frames: Final = frames
        self._store: Final = store
        self._events: Final = self._follow()
        headers = {**HEADERS, "X-Accel-Buffering": "no"}
        super().__init__(self._events, media_type="text/event-stream", headers=headers)

    async def __call__(self, *args: Any) -> None:
        with self._frames.viewed():  # no checkpoint was since the number of viewers was looked at
            async with aclosing(self._events):  # a viewer may leave at any await
                if self._store is None:
                    await super().__call__(*args)
                    return
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._store.follow)
                    await super().__call__(*args)
                    nursery.cancel_scope.cancel()

    async def _follow(self) -> AsyncGenerator[bytes, None]:
        ends_at, number = trio.current_time() + _STREAM_SECONDS, 0
        yield b"retry: 1000\n\n"
        while trio.current_time() < ends_at:
            number, frame = await self._frames.after(number)
            yield b"id: %d\ndata: %s\n\n" % (number, frame)


def _number(request: Request, name: str, default: str, digits: int = 12) -> int:
    """Return a whole number of the query.

    Raises:
      RefusedError: if it is none, or has more than ``digits``.
    """
    text = request.query_params.get(name, default)
    if not (text.isascii() and text.isdecimal() and len(text) <= digits):
        raise RefusedError(400, f"{name} must be a whole number")
    return int(text)


async def _body(request: Request) -> object:
    """Return the decoded JSON of ``request``; None if it is too long or too slow.

    Raises:
      ValueError: if it is not JSON.
    """
    body = b""
    with trio.move_on_after(_BODY_SECONDS):
        try:
            async with aclosing(request.stream()) as chunks:
                async for chunk in chunks:
                    body += chunk
                    if len(body) > _MAX_BYTES:
                        return None
        except ClientDisconnect:
            return None
        return json.loads(body)
    return None


def _name_of(request: Request) -> str:
    """Return who acts: the user that a middleware has found, or the address of the client."""
    name = getattr(request.scope.get("user"), "display_name", "")
    return clipped(name or (request.client.host if request.client else "an operator"))


def _json(value: object) -> Response:
    return JSONResponse(value, headers=HEADERS)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return JSONResponse({"error": str(error)}, error.status, headers=HEADERS)
