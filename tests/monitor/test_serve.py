"""The page under a server of its own."""

from __future__ import annotations

import socket
from contextlib import suppress
from functools import partial

import httpx2
import pytest
import trio

from trio_lanes import open_lanes
from trio_lanes.monitor import serve_monitor

pytestmark = pytest.mark.real_processes

UPGRADE = (
    b"GET /frames HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", pytest.param("::1", marks=pytest.mark.needs("IPv6"))]
)
async def test_it_is_served_on_loopback_until_cancelled(host: str) -> None:
    with trio.fail_after(120):
        async with open_lanes({"main": 1}) as lanes, trio.open_nursery() as nursery:
            url = await nursery.start(partial(serve_monitor, lanes, host=host, port=0))
            async with httpx2.AsyncClient(timeout=60) as client:
                assert "lanes – monitor" in (await client.get(url)).text
            port = int(url.rstrip("/").rpartition(":")[2])
            async with await trio.open_tcp_stream(host, port) as stream:
                await stream.send_all(b"GET /frames HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await came(stream, b"data: ")
            nursery.cancel_scope.cancel()


async def test_a_host_that_others_reach_needs_authorize() -> None:
    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(ValueError, match="give it authorize="):
            await serve_monitor(lanes, host="0.0.0.0")


async def came(viewer: trio.SocketStream, what: bytes) -> None:
    """Read from ``viewer`` until that came."""
    read = b""
    while what not in read:
        read += await viewer.receive_some()


async def test_a_client_at_which_the_server_fails_ends_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with trio.fail_after(120):
        async with open_lanes({"main": 1}) as lanes, trio.open_nursery() as nursery:
            url = await nursery.start(partial(serve_monitor, lanes, port=0))
            port = int(url.rstrip("/").rpartition(":")[2])
            async with await trio.open_tcp_stream("127.0.0.1", port) as viewer:
                await viewer.send_all(b"GET /frames HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await came(viewer, b"data: ")
                async with await trio.open_tcp_stream("127.0.0.1", port) as bad:
                    # Hypercorn expects no data on a WebSocket that was not accepted.
                    await bad.send_all(UPGRADE + b"\x81\x80\x00\x00\x00\x00" * 9)
                    with suppress(trio.BrokenResourceError):
                        while await bad.receive_some():
                            pass
                await came(viewer, b"data: ")
            nursery.cancel_scope.cancel()
    assert {record.message for record in caplog.records} == {
        "the server of the monitor has failed at a client"
    }


async def test_an_address_in_use_is_an_error() -> None:
    async with open_lanes({"main": 1}) as lanes:
        with (
            socket.create_server(("127.0.0.1", 0)) as taken,
            pytest.raises(OSError, match="in use"),
        ):
            await serve_monitor(lanes, port=taken.getsockname()[1])
