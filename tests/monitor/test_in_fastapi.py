"""The page in a FastAPI application: a real uvicorn, a real client, and one loop of asyncio."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import uvicorn
from fastapi import FastAPI

from tests.monitor.web import scope_of
from tests.support.programs import PATIENCE
from trio_lanes.aio import Lanes, monitor, open_durable_lanes, open_lanes
from trio_lanes.durable import MemoryStore

pytestmark = pytest.mark.real_processes


async def until(condition: Callable[[], object]) -> None:
    """Wait for what no event tells of: it is known to a server, or to a client."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class Frames:
    """The frames that a viewer gets."""

    def __init__(self, response: httpx2.Response) -> None:
        self._lines = response.aiter_lines()

    async def next(self) -> Any:
        """The next frame; None when the stream has ended."""
        async for line in self._lines:
            if line.startswith("data: "):
                return json.loads(line.removeprefix("data: "))
        return None


class Site:
    def __init__(self, lanes: Lanes, client: httpx2.AsyncClient, server: uvicorn.Server) -> None:
        self.lanes, self.client, self.server = lanes, client, server

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[Frames]:
        async with self.client.stream("GET", "/lanes/frames") as response:
            assert response.status_code == 200
            yield Frames(response)


@asynccontextmanager
async def site(key: str | None = None, **options: Any) -> AsyncIterator[Site]:
    """A FastAPI application with the page of its lanes, until the block is left."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_lanes({"main": 1}) as app.state.lanes:
            app.mount("/lanes", monitor(app.state.lanes, key=key, **options))
            yield

    app = FastAPI(lifespan=lifespan)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    asked = {} if key is None else {"key": key}
    async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE, params=asked) as client:
        yield Site(app.state.lanes, client, server)
    server.should_exit = True
    await serving


async def nap() -> None:
    await asyncio.sleep(3600)


def test_the_page_is_served_and_its_stream_shows_the_jobs_of_asyncio() -> None:
    async def main() -> None:
        async with site("shared", title="shop") as shop:
            page = await shop.client.get("/lanes/", follow_redirects=True)
            assert "shop – monitor" in page.text
            assert (await shop.client.get("/lanes/static/page.css")).status_code == 200
            async with shop.looking() as frames, shop.looking() as others:
                assert (await frames.next())["totals"]["active"] == 0
                job = shop.lanes.submit_nowait(nap, session="ann", name="a nap")
                while (frame := await frames.next())["totals"]["active"] == 0:
                    pass
                assert "a nap" in json.dumps(frame)
                while (await others.next())["totals"]["active"] == 0:
                    pass
            story = await shop.client.get(f"/lanes/job/{job.id}")
            assert "a nap" in story.text
            job.cancel("enough")

    asyncio.run(main())


AUTHORIZES: list[Callable[[Any], Any]] = []


@AUTHORIZES.append
def at_once(connection: Any) -> str:
    asyncio.get_running_loop()
    return "operate"


@AUTHORIZES.append
async def after_a_look(connection: Any) -> str:
    async with asyncio.timeout(PATIENCE):
        await asyncio.to_thread(lambda: None)
    return "operate"


@pytest.mark.parametrize("authorize", AUTHORIZES)
def test_an_operator_acts_and_authorize_is_asyncio_code(authorize: Any) -> None:
    async def main() -> None:
        async with site(authorize=authorize) as shop:
            token = (await shop.client.get("/lanes/access")).json()["token"]
            headers = {"Origin": str(shop.client.base_url).rstrip("/"), "X-Lanes-Token": token}
            pause = {"do": "pause", "lane": "main"}
            answer = await shop.client.post("/lanes/act", json=pause, headers=headers)
            assert answer.json()["text"] == "Paused main"
            assert shop.lanes.lane("main").paused
            assert (await shop.client.post("/lanes/act", json=pause)).status_code == 403

    asyncio.run(main())


def test_a_visitor_without_a_role_is_refused() -> None:
    async def main() -> None:
        async with site(authorize=lambda connection: None) as shop:
            assert (await shop.client.get("/lanes/")).status_code == 403

    asyncio.run(main())


def test_the_server_ends_at_once_while_pages_are_open_and_their_streams_end_in_order() -> None:
    async def main() -> None:
        async with site("shared") as shop:
            async with shop.looking() as frames, shop.looking() as others:
                await frames.next()
                await others.next()
                shop.server.should_exit = True
                for viewer in (frames, others):
                    while await viewer.next() is not None:
                        pass

    threads = threading.active_count()
    asyncio.run(main())
    assert threading.active_count() == threads


def test_the_page_shows_durable_lanes_and_their_store() -> None:
    async def handler(payload: object) -> None:
        await asyncio.sleep(0)

    async def main() -> None:
        async with open_durable_lanes(MemoryStore(), {"greet": handler}, {"main": 1}) as lanes:
            await (await lanes.submit("greet", None, session="ann")).wait()
            app = FastAPI()
            app.mount("/lanes", monitor(lanes.local, durable=lanes, key="shared"))
            transport = httpx2.ASGITransport(app, client=("127.0.0.1", 1))
            async with httpx2.AsyncClient(
                transport=transport, base_url="http://127.0.0.1"
            ) as client:
                shown = (await client.get("/lanes/durable?key=shared")).json()
            assert list(shown["lanes"]) == ["main"]

    asyncio.run(main())


def test_a_page_that_is_closed_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with site("shared") as shop:
            tasks = len(asyncio.all_tasks())
            for _ in range(3):
                async with shop.looking() as frames:
                    await frames.next()
            await shop.client.aclose()
            await until(lambda: len(asyncio.all_tasks()) <= tasks)
            shop.client = httpx2.AsyncClient()

    asyncio.run(main())


def test_a_stream_that_has_ended_sends_nothing_more() -> None:
    class Server:
        should_exit = False

        def handle_exit(self, signum: int, frame: object) -> None:
            raise AssertionError

    async def receive() -> Any:
        await asyncio.Event().wait()  # a server that tells of no end

    async def main() -> None:
        async with open_lanes({"main": 1}) as lanes, asyncio.TaskGroup() as group:
            page = monitor(lanes, authorize=lambda connection: "read")

            def look(sent: list[Any]) -> asyncio.Task[None]:
                async def send(message: Any) -> None:
                    sent.append(message)

                scope = scope_of("/frames", "GET", {}, "127.0.0.1")
                return group.create_task(page(scope, receive, send))

            of_one: list[Any] = []
            of_other: list[Any] = []
            one = look(of_one)
            await until(lambda: len(of_one) > 1)
            server.should_exit = True
            await until(lambda: of_one[-1].get("more_body") is False)
            server.should_exit = False
            number = len(of_one)
            other = look(of_other)
            await until(lambda: len(of_other) > 4)
            assert len(of_one) == number
            one.cancel()
            other.cancel()

    server = Server()
    before = signal.signal(signal.SIGTERM, server.handle_exit)
    try:
        asyncio.run(main())
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_is_not_lanes_is_refused_at_the_call() -> None:
    with pytest.raises(TypeError, match="lanes must be Lanes, not 5"):
        monitor(5)  # type: ignore[arg-type]

    async def main() -> None:
        async with open_lanes({"main": 1}) as lanes:
            with pytest.raises(TypeError, match="authorize must be a function or None, not 5"):
                monitor(lanes, authorize=5)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="durable must be DurableLanes or None, not 5"):
                monitor(lanes, durable=5)  # type: ignore[arg-type]

    asyncio.run(main())
