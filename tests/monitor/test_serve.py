"""The page under a server of its own."""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from functools import partial
from urllib.parse import urlsplit

import httpx2
import pytest
import trio

from trio_lanes import Lanes, open_lanes
from trio_lanes.monitor import serve_monitor

pytestmark = pytest.mark.real_processes

FRAMES = b"GET /frames?key=a-key HTTP/1.1\r\nHost: localhost\r\n\r\n"
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
            url = await nursery.start(partial(serve_monitor, lanes, host=host, port=0, key="a-key"))
            async with httpx2.AsyncClient(timeout=60) as client:
                assert (await client.get(bare(url))).status_code == 401
                page = await client.get(url, follow_redirects=True)
                assert "lanes – monitor" in page.text
                assert str(page.url) == bare(url)
            port = int(urlsplit(url).port or 0)
            async with await trio.open_tcp_stream(host, port) as stream:
                await stream.send_all(FRAMES)
                await came(stream, b"data: ")
            nursery.cancel_scope.cancel()


async def test_a_host_that_others_reach_needs_authorize_or_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bound(*args: object, **options: object) -> None:
        raise OSError("it would be served")

    async with open_lanes({"main": 1}) as lanes:
        monkeypatch.setattr(socket, "create_server", bound)
        for host in ("0.0.0.0", "::", "", "192.0.2.7"):
            with pytest.raises(ValueError, match="give it authorize=, key=, or the variable"):
                await serve_monitor(lanes, host=host)
            with pytest.raises(TypeError, match="hosts must be names"):
                await serve_monitor(lanes, host=host, hosts="shop.example")
            with pytest.raises(OSError, match="it would be served"):
                await serve_monitor(lanes, host=host, key="a-key")
            with pytest.raises(OSError, match="it would be served"):
                await serve_monitor(lanes, host=host, authorize=lambda connection: None)
        monkeypatch.setenv("TRIO_LANES_MONITOR_KEY", "a-key")
        with pytest.raises(OSError, match="it would be served"):
            await serve_monitor(lanes, host="0.0.0.0")


@pytest.mark.parametrize("is_configured", [True, False])
async def test_a_drawn_key_is_logged_and_printed_with_the_whole_address(
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_configured: bool,
) -> None:
    if not is_configured:  # then Python prints warnings by itself
        monkeypatch.setattr(logging.Logger, "hasHandlers", lambda self: False)
    async with open_lanes({"main": 1}) as lanes, trio.open_nursery() as nursery:
        url = await nursery.start(partial(serve_monitor, lanes, port=0))
        known = await nursery.start(partial(serve_monitor, lanes, port=0, key="a/key"))
        nursery.cancel_scope.cancel()
    assert known.endswith("/?key=a%2Fkey")
    (record,) = caplog.records
    assert url in record.getMessage()
    assert capsys.readouterr().err == (f"{url}\n" if is_configured else "")


async def test_an_error_of_the_page_itself_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Lanes, key: str) -> None:
        raise KeyError("a fault")

    with trio.fail_after(120):
        async with open_lanes({"main": 1}) as lanes, trio.open_nursery() as nursery:
            url = await nursery.start(partial(serve_monitor, lanes, port=0, key="a-key"))
            monkeypatch.setattr(Lanes, "session", broken)
            async with httpx2.AsyncClient(timeout=60) as client:
                answer = await client.get(f"{bare(url)}session/ann?key=a-key")
                assert answer.status_code == 500
                # on the same connection, so the server has done with the first
                assert (await client.get(f"{bare(url)}access?key=a-key")).status_code == 200
            nursery.cancel_scope.cancel()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "a fault" in caplog.text


def bare(url: str) -> str:
    """`url` without its key."""
    return url.partition("?")[0]


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
            url = await nursery.start(partial(serve_monitor, lanes, port=0, key="a-key"))
            port = int(urlsplit(url).port or 0)
            async with await trio.open_tcp_stream("127.0.0.1", port) as viewer:
                await viewer.send_all(FRAMES)
                await came(viewer, b"data: ")
                async with await trio.open_tcp_stream("127.0.0.1", port) as bad:
                    # Hypercorn expects no data on a WebSocket that was not accepted.
                    await bad.send_all(UPGRADE + b"\x81\x80\x00\x00\x00\x00" * 9)
                    with suppress(trio.BrokenResourceError):
                        while await bad.receive_some():
                            pass
                await came(viewer, b"data: ")
            nursery.cancel_scope.cancel()
    assert "the server of the monitor has failed at a client" in caplog.messages


async def test_an_address_in_use_is_an_error() -> None:
    async with open_lanes({"main": 1}) as lanes:
        with (
            socket.create_server(("127.0.0.1", 0)) as taken,
            pytest.raises(OSError, match="in use"),
        ):
            await serve_monitor(lanes, port=taken.getsockname()[1])
