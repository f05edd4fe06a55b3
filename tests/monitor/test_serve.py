"""The page under a server of its own."""

from __future__ import annotations

from typing import Any

import httpx2
import hypercorn.trio
import pytest
import trio

from trio_lanes import open_lanes
from trio_lanes.monitor import serve_monitor

pytestmark = pytest.mark.real_processes


@pytest.mark.parametrize(
    "host", ["127.0.0.1", pytest.param("::1", marks=pytest.mark.needs("IPv6"))]
)
async def test_it_is_served_on_loopback_until_cancelled(host: str) -> None:
    with trio.fail_after(120):
        async with open_lanes({"main": 1}) as lanes, trio.open_nursery() as nursery:

            async def serve(task_status: Any) -> None:
                await serve_monitor(lanes, host=host, port=0, task_status=task_status)

            url = await nursery.start(serve)
            async with httpx2.AsyncClient(timeout=60) as client:
                assert "lanes – monitor" in (await client.get(url)).text
            port = int(url.rstrip("/").rpartition(":")[2])
            async with await trio.open_tcp_stream(host, port) as stream:
                await stream.send_all(b"GET /frames HTTP/1.1\r\nHost: localhost\r\n\r\n")
                came = b""
                while b"data: " not in came:
                    came += await stream.receive_some()
            nursery.cancel_scope.cancel()


async def test_a_host_that_others_reach_needs_authorize() -> None:
    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(ValueError, match="give it authorize="):
            await serve_monitor(lanes, host="0.0.0.0")


async def test_a_failure_of_the_server_at_its_start_is_raised_and_a_later_one_restarts_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    starts = 0

    async def fragile(*args: Any, task_status: Any, **options: Any) -> None:
        nonlocal starts
        starts += 1
        if starts == 3:
            raise OSError("no more")
        task_status.started()
        raise ValueError("a message of one client")

    monkeypatch.setattr(hypercorn.trio, "serve", fragile)
    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(ExceptionGroup) as caught:
            await serve_monitor(lanes, port=0)
    assert caught.group_contains(OSError, match="no more")
    assert [record.name for record in caplog.records] == ["trio_lanes.monitor"] * 2
