"""Requests to the monitor's ASGI application, without a server: deterministic, on any clock."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import trio
import trio.testing
from starlette.applications import Starlette

from trio_lanes import Lanes
from trio_lanes.monitor import monitor

HOST = "localhost:8000"


def page(lanes: Lanes, **options: Any) -> Starlette:
    """The page of `lanes` for everybody who asks on this machine."""
    return monitor(lanes, authorize=lambda connection: "read", **options)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def scope_of(url: str, method: str, headers: dict[str, str], client: str | None) -> dict[str, Any]:
    parts = urlsplit(url)
    lines = {"host": HOST, **headers}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(parts.path),
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in lines.items()],
        "client": None if client is None else (client, 50000),
        "server": ("127.0.0.1", 8000),
    }


async def ask(
    app: Any,
    url: str = "/",
    *,
    method: str = "GET",
    body: bytes | None = b"",
    client: str | None = "127.0.0.1",
    leaves: bool = False,
    **headers: str,
) -> Answer:
    """The answer to one request. With ``body=None`` the body never comes."""
    lines = {name.replace("_", "-"): value for name, value in headers.items()}
    answer: dict[str, Any] = {"body": b""}
    bodies = [] if body is None else [body]

    async def receive() -> dict[str, Any]:
        if leaves:
            return {"type": "http.disconnect"}
        if not bodies:
            await trio.sleep_forever()
        return {"type": "http.request", "body": bodies.pop(), "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer["status"] = message["status"]
            answer["headers"] = {
                name.decode().lower(): value.decode() for name, value in message["headers"]
            }
        else:
            answer["body"] += message.get("body", b"")

    await app(scope_of(url, method, lines, client), receive, send)
    return Answer(answer["status"], answer["headers"], answer["body"])


class Viewer:
    """An open page: it gets frames until it leaves."""

    def __init__(self) -> None:
        self.status = 0
        self.frames: list[dict[str, Any]] = []
        self.raw: list[bytes] = []
        self.ended = trio.Event()
        self.slow = 0.0  # seconds that it takes for each frame
        # Called with each frame, in the moment of which the frame tells
        self.on_frame: Callable[[dict[str, Any]], object] = lambda frame: None
        self._came = trio.Event()

    async def next(self) -> dict[str, Any]:
        """The next frame that comes."""
        self._came = trio.Event()
        await self._came.wait()
        return self.frames[-1]

    def take(self, body: bytes) -> None:
        if b"data: " in body:
            self.raw.append(body)
            self.frames.append(json.loads(body.partition(b"data: ")[2]))
            self.on_frame(self.frames[-1])
            self._came.set()


@asynccontextmanager
async def looking(app: Any, **headers: str) -> AsyncIterator[Viewer]:
    """While a viewer looks at ``app``."""
    viewer, leaves = Viewer(), trio.Event()

    async def receive() -> dict[str, Any]:
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            viewer.status = message["status"]
        else:
            viewer.take(message.get("body", b""))
            await trio.sleep(viewer.slow)

    async def view() -> None:
        await app(scope_of("/frames", "GET", headers, "127.0.0.1"), receive, send)
        viewer.ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(view)
        await trio.testing.wait_all_tasks_blocked()
        yield viewer
        leaves.set()


class Operator:
    """Someone who may act, with the token of the page."""

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._token = token

    async def act(self, status: int = 200, **action: Any) -> Any:
        answer = await post(self._app, json.dumps(action).encode(), self._token)
        assert answer.status == status, answer.json
        return answer.json


async def post(app: Any, body: bytes | None, token: str, **options: Any) -> Answer:
    options = {"origin": f"http://{HOST}", "x_lanes_token": token, **options}
    return await ask(app, "/act", method="POST", body=body, **options)


async def token_of(app: Any) -> str:
    return str((await ask(app, "/access")).json["token"])


async def operator(app: Any) -> Operator:
    return Operator(app, await token_of(app))
