"""A web server that is told to end while answers stream: the docs' Starlette under hypercorn."""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx2
import pytest
import trio

from tests.support.programs import HOWTO, PATIENCE, Program, running

pytestmark = pytest.mark.real_processes

LONG = " ".join(map(str, range(6)))
ENDLESS = " ".join(["word"] * 10_000)
# On a clock that stands until the test says so: no grace ends, and every answer has its first word.
SERVER = """
import os, sys, trio, trio.testing
sys.path.insert(0, sys.argv[1])
import web_server
clock = trio.testing.MockClock()
async def let_time_go_by():
    async with trio.lowlevel.FdStream(os.dup(0)) as stdin:
        await stdin.receive_some()
    clock.rate = 1
async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(let_time_go_by)
        await web_server.main(0, *(getattr(web_server, name) for name in sys.argv[2:]))
        nursery.cancel_scope.cancel()
trio.run(main, clock=clock)
"""


REFUSING = "refusing new work: the lanes are closed: draining; retry after 3 s"


@asynccontextmanager
async def client_of(program: Program) -> AsyncIterator[httpx2.AsyncClient]:
    url = await program.line("serving on ")
    async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        yield client


class Stream:
    """What an event stream has said."""

    def __init__(self, response: httpx2.Response) -> None:
        self.status = response.status_code
        self.data: list[str] = []
        self._lines = response.aiter_lines()

    async def next(self) -> None:
        async for line in self._lines:
            if line.startswith("data: "):
                self.data.append(line.removeprefix("data: "))
                return

    async def rest(self) -> list[str]:
        """To its end; an error, if it is cut off."""
        async for line in self._lines:
            if line.startswith("data: "):
                self.data.append(line.removeprefix("data: "))
        return self.data


@asynccontextmanager
async def stream(client: httpx2.AsyncClient, user: str, text: str) -> AsyncIterator[Stream]:
    async with client.stream("POST", f"/{user}", content=text) as response:
        opened = Stream(response)
        await opened.next()
        yield opened


async def connect(url: str) -> trio.SocketStream:
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    return await trio.open_tcp_stream(address.hostname, address.port)


async def begin_request(url: str, user: str) -> trio.SocketStream:
    """A request that the server has begun to read, and waits for the end of."""
    connection = await connect(url)
    head = f"POST /{user} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    await connection.send_all(head.encode())
    assert b" 100 " in await connection.receive_some()
    return connection


async def response_of(connection: trio.SocketStream) -> str:
    received = b""
    async for data in connection:
        received += data
    return received.decode()


async def refuses_connections(url: str) -> None:
    """Wait until it does."""
    while True:
        try:
            async with await connect(url):
                await trio.sleep(0.01)
        except OSError:
            return


def no_complaint_in(log: str) -> bool:
    return not re.search("Error|Warning|ERROR|WARNING", log.replace(REFUSING, ""))


async def test_open_streams_end_well_and_a_request_on_its_way_is_told_when_to_come_again() -> None:
    async with running("-c", SERVER, HOWTO) as program, client_of(program) as client:
        async with stream(client, "alice", LONG) as alice, stream(client, "bob", LONG) as bob:
            on_its_way = await begin_request(str(client.base_url), "carol")
            program.process.terminate()
            await program.until("draining\n")
            await refuses_connections(str(client.base_url))
            await on_its_way.send_all(b"hi")
            refused = await response_of(on_its_way)
            assert refused.startswith("HTTP/1.1 503 ")
            assert "retry-after: 3\r\n" in refused
            await program.tell("let time go by")
            for opened in (alice, bob):
                assert await opened.rest() == [*LONG.split(), "complete"]
        await on_its_way.aclose()
        assert await program.exit_code() == 0
        assert program.text.endswith("ended\n")
        assert no_complaint_in(program.text)


async def test_a_server_that_answers_until_the_work_has_ended_refuses_new_requests_politely() -> (
    None
):
    async with (
        running("-c", SERVER, HOWTO, "until_drained") as program,
        client_of(program) as client,
    ):
        async with stream(client, "alice", LONG) as alice:
            program.process.terminate()
            await program.until("draining\n")
            refused = await client.post("/bob", content="hi")
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "3")
            await program.tell("let time go by")
            assert await alice.rest() == [*LONG.split(), "complete"]
        assert await program.exit_code() == 0
        assert no_complaint_in(program.text)


async def test_a_second_signal_ends_streams_and_says_so_in_them() -> None:
    async with running("-c", SERVER, HOWTO) as program, client_of(program) as client:
        async with stream(client, "alice", ENDLESS) as alice:
            behind_it = await begin_request(str(client.base_url), "alice")
            await behind_it.send_all(b"hi")
            program.process.terminate()
            await program.until("draining\n")
            program.process.send_signal(signal.SIGINT)
            *_, last = await alice.rest()
            assert last == "the job was cancelled: draining"
            assert (await response_of(behind_it)).startswith("HTTP/1.1 503 ")
        await behind_it.aclose()
        assert await program.exit_code() == 0
        assert no_complaint_in(program.text)


async def test_a_client_that_goes_away_holds_up_neither_its_session_nor_the_end() -> None:
    async with running("-c", SERVER, HOWTO) as program, client_of(program) as client:
        async with await connect(str(client.base_url)) as alice_before:
            head = f"POST /alice HTTP/1.1\r\nHost: x\r\nContent-Length: {len(ENDLESS)}\r\n\r\n"
            await alice_before.send_all((head + ENDLESS).encode())
            await alice_before.receive_some()  # it has begun
            await program.tell("let time go by")
        async with stream(client, "alice", "hello again") as alice:
            program.process.terminate()
            assert await alice.rest() == ["hello", "again", "complete"]
        assert await program.exit_code() == 0
        assert no_complaint_in(program.text)
