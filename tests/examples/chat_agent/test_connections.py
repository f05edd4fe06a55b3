"""The bounds of the web server for connections that are idle, slow, or too many."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from examples.chat_agent.web import server
from tests.support.programs import PATIENCE

pytestmark = pytest.mark.real_processes
GET = b"GET /%s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class Site:
    """A page that answers at once, and a stream without an end."""

    def __init__(self) -> None:
        self.ended = trio.Event()  # a request

    def app(self) -> Starlette:
        async def page(request: Request) -> Response:
            if request.method == "POST":
                await trio.sleep(0.3)  # more of the body comes than the server keeps
            return PlainTextResponse("hello")

        async def stream(request: Request) -> Response:
            return StreamingResponse(Much())

        async def call(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
            try:
                await inner(scope, receive, send)
            finally:
                self.ended.set()

        inner = Starlette(
            routes=[Route("/", page, methods=["GET", "POST"]), Route("/stream", stream)]
        )
        return call  # type: ignore[return-value]


class Much:
    """A body without an end. No generator: it is left where it is."""

    def __aiter__(self) -> Much:
        return self

    async def __anext__(self) -> bytes:
        return b"x" * 100_000


@asynccontextmanager
async def served(site: Site) -> AsyncIterator[int]:
    """The port of a server of the site."""
    listener = server.listen(0)
    port = listener.getsockname()[1]
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, site.app(), listener)
            yield port
            nursery.cancel_scope.cancel()


async def client_of(port: int) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", port)


async def rest_of(client: trio.SocketStream) -> bytes:
    """What still comes until the server closes the connection."""
    return b"".join([piece async for piece in client])


async def test_a_connection_that_is_idle_or_sends_a_slow_head_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.3)
    async with served(Site()) as port:
        for beginning in (b"", GET[:20], GET % b""):
            async with await client_of(port) as client:
                await client.send_all(beginning)
                answer = await rest_of(client)  # ends, since the server closes it
                assert answer.endswith(b"hello") is (b"\r\n\r\n" in beginning)


async def test_connections_above_the_bound_are_closed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 2)
    async with served(Site()) as port:
        first, second = await client_of(port), await client_of(port)
        for client in (first, second):
            await client.send_all(GET % b"")
            assert await client.receive_some()
        async with await client_of(port) as third:
            assert await rest_of(third) == b""
        await first.aclose()
        while True:  # the server notices the end of the first
            async with await client_of(port) as fourth:
                try:
                    await fourth.send_all(GET % b"")
                    if await fourth.receive_some():
                        break
                except trio.BrokenResourceError:
                    pass
            await trio.sleep(0.01)
        await second.aclose()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
async def test_a_client_that_takes_nothing_of_a_stream_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "STALLED_SECONDS", 0.5)
    site = Site()
    async with served(site) as port, await client_of(port) as client:
        await client.send_all(GET % b"stream")
        await site.ended.wait()


async def test_a_request_ends_whose_body_is_longer_than_what_is_read_of_it() -> None:
    site = Site()
    async with served(site) as port, await client_of(port) as client:
        head = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000000\r\n\r\n"
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                try:
                    await client.send_all(head + b"x" * 20_000_000)
                except trio.BrokenResourceError:
                    pass

            nursery.start_soon(send)
            await site.ended.wait()
