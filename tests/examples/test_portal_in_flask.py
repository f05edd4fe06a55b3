"""The portal behind a real Flask application, on a real server with a thread for each request."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import flask
import httpx2
import pytest
import trio
from werkzeug.serving import make_server

from trio_lanes import JobTimeoutError, Lanes, LanesClosedError, LanesPortal, open_lanes

pytestmark = pytest.mark.real_processes

PATIENCE = 60  # seconds, on a machine that has much else to do


class Chat:
    """What each session is told, in order; a reply to "wait" waits until it may go on."""

    def __init__(self) -> None:
        self.told: dict[str, list[str]] = {}
        self.waits, self.may_go_on = trio.Event(), trio.Event()

    async def reply(self, user: str, text: str) -> str:
        if text == "wait":
            self.waits.set()
            await self.may_go_on.wait()
        told = self.told.setdefault(user, [])
        before = len(told)
        await trio.lowlevel.checkpoint()
        told.append(text)  # no other job of this session ran meanwhile
        assert len(told) == before + 1
        return f"{len(told)}: {text}"


def application(portal: LanesPortal, chat: Chat) -> flask.Flask:
    app = flask.Flask("chat")

    @app.post("/<user>")
    def say(user: str) -> str:
        text = flask.request.get_data(as_text=True)
        return portal.run(chat.reply, user, text, session=user, timeout=PATIENCE)

    @app.post("/<user>/patiently")
    def say_patiently(user: str) -> tuple[str, int]:
        """For so long, and no longer."""
        text = flask.request.get_data(as_text=True)
        future = portal.submit(chat.reply, user, text, session=user)
        try:
            return future.result(timeout=0.05), 200
        except TimeoutError:
            future.cancel()
            return "busy", 504

    @app.errorhandler(LanesClosedError)
    def closed(error: LanesClosedError) -> tuple[str, int, dict[str, str]]:
        return str(error), 503, {"Retry-After": f"{error.retry_after:.0f}"}

    @app.errorhandler(JobTimeoutError)
    def slow(error: JobTimeoutError) -> tuple[str, int]:
        return str(error), 504

    return app


@asynccontextmanager
async def served(app: flask.Flask) -> AsyncIterator[str]:
    """The address of ``app``, on a server with a thread for each request."""
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(PATIENCE)
        server.server_close()


async def test_requests_run_in_the_lanes_each_session_in_order_and_never_two_at_once() -> None:
    chat = Chat()
    answers: list[tuple[str, str]] = []

    async def user(address: str, name: str) -> None:
        async with httpx2.AsyncClient(base_url=address, timeout=PATIENCE) as client:
            for n in range(5):
                response = await client.post(f"/{name}", content=f"{n}")
                answers.append((name, response.raise_for_status().text))

    async with open_lanes({"main": 2}) as lanes:
        async with served(application(lanes.portal(), chat)) as address:
            async with trio.open_nursery() as nursery:
                for name in ("alice", "bob", "carol", "alice"):
                    nursery.start_soon(user, address, name)
    assert chat.told["bob"] == chat.told["carol"] == ["0", "1", "2", "3", "4"]
    assert sorted(chat.told["alice"]) == sorted("0123401234")
    assert len(answers) == len(set(answers)) == 20


async def test_a_handler_gives_up_and_takes_its_job_along() -> None:
    chat = Chat()
    async with open_lanes({"main": 1}) as lanes:
        async with served(application(lanes.portal(), chat)) as address:
            async with httpx2.AsyncClient(base_url=address, timeout=PATIENCE) as client:
                assert (await client.post("/alice/patiently", content="wait")).status_code == 504
                assert (await client.post("/alice", content="hello")).text == "1: hello"


async def test_while_the_lanes_drain_requests_are_refused_and_open_ones_end_well() -> None:
    chat = Chat()

    async def drain(lanes: Lanes) -> None:
        lanes.close("restarting", retry_after=7)
        await lanes.drain()

    async with open_lanes({"main": 1}) as lanes:
        async with served(application(lanes.portal(), chat)) as address:
            async with (
                httpx2.AsyncClient(base_url=address, timeout=PATIENCE) as client,
                trio.open_nursery() as nursery,
            ):
                answers: list[httpx2.Response] = []

                @nursery.start_soon
                async def open_request() -> None:
                    answers.append(await client.post("/alice", content="wait"))

                await chat.waits.wait()
                nursery.start_soon(drain, lanes)
                await lanes.wait_closing()
                refused = await client.post("/bob", content="hello")
                assert refused.status_code == 503
                assert refused.headers["Retry-After"] == "7"
                chat.may_go_on.set()
            assert [answer.text for answer in answers] == ["1: wait"]


async def test_the_handlers_can_be_tested_without_a_server() -> None:
    chat = Chat()
    async with open_lanes({"main": 1}) as lanes:
        client = application(lanes.portal(), chat).test_client()

        def request() -> str:
            return client.post("/alice", data="hello").text

        assert await trio.to_thread.run_sync(request) == "1: hello"
        with pytest.raises(RuntimeError, match="own thread"):  # it would wait for itself
            flask_app = application(lanes.portal(), chat)
            flask_app.testing = True
            flask_app.test_client().post("/alice", data="hello")
