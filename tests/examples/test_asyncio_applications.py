"""Applications on asyncio whose work runs in lanes: FastAPI on uvicorn, aiogram, openai-agents."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2
import pytest
import trio
import uvicorn
from agents import Agent, OpenAIResponsesModel, Runner, set_tracing_disabled
from aiohttp import web
from openai import AsyncOpenAI

from examples.fastapi_app import app as fastapi_app
from tests.examples.gateway.gateways import gateway
from tests.support.programs import PATIENCE, ROOT, Program, running
from trio_lanes import JobCancelledError
from trio_lanes.aio import open_lanes
from trio_lanes.testing import LaneRecorder

pytestmark = pytest.mark.real_processes


async def until(condition: Callable[[], object]) -> None:
    """Wait for what no event tells of: it is known to a server, or to a client."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


# ---- FastAPI


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of ``app``, which uvicorn serves in this loop until the block is left."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    many = httpx2.Limits(max_connections=None)
    try:
        async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE, limits=many) as client:
            yield client
    finally:  # uvloop would not close over a server that was left, where warnings are errors
        server.should_exit = True
        await serving


def test_the_fastapi_example_answers_each_user_in_order_and_with_503_when_it_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRIO_LANES_MONITOR_KEY", "shared")

    async def main() -> None:
        recorder = LaneRecorder()
        ended: list[str] = []

        async def ask(client: httpx2.AsyncClient, user: str, text: str) -> int:
            answer = await client.post(f"/chat/{user}", params={"text": text})
            if answer.status_code == 200:
                assert answer.json() == f"you said {text!r}"
                ended.append(user + text)
            return answer.status_code

        async with served(fastapi_app) as client:
            lanes = fastapi_app.state.lanes
            lanes.trio.add_instrument(recorder)
            assert (await client.get("/lanes/")).status_code == 401
            page = await client.get("/lanes/?key=shared", follow_redirects=True)
            assert "lanes – monitor" in page.text
            assert page.url.path == "/lanes/"
            lanes.pause("main")
            asked = []
            for number in range(140):
                asked.append(asyncio.create_task(ask(client, f"u{number % 7}", f"{number:03}")))
                wanted = min(number + 1, 100)
                await until(lambda: lanes.statistics().waiting >= wanted)  # noqa: B023
            await until(lambda: sum(task.done() for task in asked) == 40)
            assert lanes.statistics().waiting == 100
            lanes.resume("main")
            assert Counter(await asyncio.gather(*asked)) == {200: 100, 503: 40}
        for user in range(7):
            of_user = [which for which in ended if which.startswith(f"u{user}")]
            assert of_user == sorted(of_user)
        recorder.check()

    asyncio.run(main())


# A job of it says that it has begun, and ends when the test says so.
SERVER = """
import asyncio, sys
from contextlib import asynccontextmanager
import uvicorn
from fastapi import FastAPI
from trio_lanes.aio import monitor, open_lanes

go = None

async def work(name):
    print("began", name, flush=True)
    try:
        await asyncio.shield(go)
    except asyncio.CancelledError:
        print("cancelled", name, flush=True)
        raise
    print("ended", name, flush=True)
    return name

@asynccontextmanager
async def lifespan(app):
    global go
    go = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    async with open_lanes({"main": 1}) as app.state.lanes:
        app.mount("/lanes", monitor(app.state.lanes, key="shared"))
        yield
    print("left", flush=True)

app = FastAPI(lifespan=lifespan)

@app.post("/{name}")
async def ask(name: str) -> str:
    app.state.lanes.start_soon(work, name + " afterwards", session=name)
    return await app.state.lanes.run(work, name, session=name)

grace = int(sys.argv[2]) if sys.argv[2:] else None
uvicorn.run(app, port=0, loop=sys.argv[1], timeout_graceful_shutdown=grace)
"""


@asynccontextmanager
async def busy_server(*arguments: str) -> AsyncIterator[tuple[Program, httpx2.AsyncClient]]:
    async with running("-c", SERVER, *arguments) as program:
        url = (await program.line("Uvicorn running on ")).split()[0]
        async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE) as client:
            yield program, client


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_at_a_signal_uvicorn_ends_requests_and_jobs_and_then_itself(
    signum: signal.Signals, loop: str
) -> None:
    async with busy_server(loop) as (program, client), trio.open_nursery() as nursery:
        answers: list[httpx2.Response] = []

        @nursery.start_soon
        async def ask() -> None:
            answers.append(await client.post("/ann"))

        async with client.stream("GET", "/lanes/frames?key=shared") as frames:  # an open page
            await program.until("began ann afterwards")
            program.process.send_signal(signum)
            await program.until("Shutting down")
            async for _ in frames.aiter_lines():
                pass
        await program.tell("go")
        await program.until("ended ann afterwards")
        await program.until("ended ann")
        await program.until("left")
        await program.until("Application shutdown complete")
        assert await program.exit_code() == (-signum if signum == signal.SIGTERM else 0)
    assert [answer.text for answer in answers] == ['"ann"']
    assert "Traceback" not in program.text


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_when_uvicorns_grace_is_over_open_requests_and_their_jobs_are_cancelled(
    loop: str,
) -> None:
    async with busy_server(loop, "1") as (program, client), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def ask() -> None:
            with suppress(httpx2.HTTPError):
                assert (await client.post("/ann")).status_code == 500

        await program.until("began ann afterwards")
        program.process.send_signal(signal.SIGTERM)
        await program.until("Waiting for application shutdown")
        await program.tell("go")
        await program.until("ended ann afterwards")
        await program.until("left")
        assert await program.exit_code() == -signal.SIGTERM
    assert program.text.count("began") == 1


# From Python 3.12 on, uvicorn waits for open connections on asyncio's own loop, whatever comes.
@pytest.mark.parametrize(
    "loop", ["uvloop", "asyncio"] if sys.version_info < (3, 12) else ["uvloop"]
)
async def test_at_the_second_ctrl_c_running_jobs_are_cancelled_and_waiting_ones_never_start(
    loop: str,
) -> None:
    async with busy_server(loop) as (program, client), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def ask() -> None:
            assert (await client.post("/ann")).status_code == 500

        await program.until("began ann afterwards")
        program.process.send_signal(signal.SIGINT)
        await program.until("Shutting down")
        program.process.send_signal(signal.SIGINT)
        await program.until("cancelled ann afterwards")
        await program.tell("go")  # the thread that reads can end
        await program.exit_code()
    assert program.text.count("began") == 1


# ---- aiogram


def update(number: int, chat: int, text: str) -> dict[str, Any]:
    """As Telegram sends it."""
    person = {"id": chat, "is_bot": False, "first_name": "A"}
    message = {
        "message_id": number,
        "date": 1_700_000_000 + number,
        "chat": {"id": chat, "type": "private", "first_name": "A"},
        "from": person,
        "text": text,
    }
    return {"update_id": number, "message": message}


@asynccontextmanager
async def listening(*routes: web.RouteDef) -> AsyncIterator[str]:
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, handler_cancellation=True)  # when the client goes
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def test_a_bot_answers_each_chat_in_order_and_never_more_than_four_at_once() -> None:
    # here, since each worker would import them to collect this, for seven seconds
    from aiogram import Bot
    from aiogram.client.session.aiohttp import AiohttpSession
    from aiogram.client.telegram import TelegramAPIServer
    from aiogram.webhook.aiohttp_server import SimpleRequestHandler

    from examples.asyncio_bot import in_lanes

    sent: list[tuple[int, str]] = []

    async def send_message(request: web.Request) -> web.Response:
        fields = await request.post()
        chat, text = int(str(fields["chat_id"])), str(fields["text"])
        sent.append((chat, text))
        answer = update(len(sent), chat, text)["message"]
        return web.json_response({"ok": True, "result": answer})

    async def main() -> None:
        recorder = LaneRecorder()
        async with (
            listening(web.post("/bot{token}/sendMessage", send_message)) as telegram,
            open_lanes({"main": 4}, instruments=[recorder]) as lanes,
            Bot("1:a", AiohttpSession(api=TelegramAPIServer.from_base(telegram))) as bot,
        ):
            hook = SimpleRequestHandler(in_lanes(lanes), bot)
            async with (
                listening(web.post("/hook", hook.handle)) as ours,
                httpx2.AsyncClient(base_url=ours, timeout=PATIENCE) as client,
            ):
                for number in range(30):
                    said = update(number, number % 6, "x" * (5 - number // 6))
                    assert (await client.post("/hook", json=said)).status_code == 200
                await until(lambda: len(sent) == 30)
                await lanes.wait_idle()
        assert recorder.peak("main") == 4
        recorder.check()

    asyncio.run(main())
    for chat in range(6):
        texts = [text for which, text in sent if which == chat]
        assert texts == [f"you said {'x' * length!r}" for length in range(5, 0, -1)]


# ---- openai-agents


def test_turns_of_an_agent_keep_the_order_of_each_user() -> None:
    with gateway("--limit", "4") as url:
        done = subprocess.run(
            [sys.executable, "-W", "error::RuntimeWarning", "examples/asyncio_agent.py"],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "OPENAI_BASE_URL": url,
                "OPENAI_API_KEY": "any",
                "OPENAI_AGENTS_DISABLE_TRACING": "1",
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    assert [line[:4] for line in done.stdout.splitlines()] == ["ann:", "bob:", "ann:"]


def response(text: str) -> web.Response:
    """As the Responses API says it."""
    content = {"type": "output_text", "text": text, "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed"}
    answer = {"id": "r", "object": "response", "created_at": 0, "model": "m", "tools": []}
    answer |= {"output": [message | {"content": [content]}], "status": "completed"}
    return web.json_response(answer | {"parallel_tool_calls": False, "tool_choice": "auto"})


def test_cancelling_a_turn_ends_its_request_and_then_the_next_turn_of_the_user_starts() -> None:
    async def main() -> None:
        came, gone = asyncio.Event(), asyncio.Event()

        async def answer(request: web.Request) -> web.Response:
            if "think for ever" in await request.text():
                came.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    gone.set()
            return response("done")

        async def turn(text: str) -> str:
            return str((await Runner.run(agent, text)).final_output)

        set_tracing_disabled(True)
        recorder = LaneRecorder()
        async with (
            listening(web.post("/responses", answer)) as url,
            AsyncOpenAI(base_url=url, api_key="any", timeout=PATIENCE) as client,
            open_lanes({"main": 4}, instruments=[recorder]) as lanes,
        ):
            agent = Agent("helper", model=OpenAIResponsesModel("m", client))
            first = lanes.submit_nowait(turn, "think for ever", session="ann")
            second = lanes.submit_nowait(turn, "hello", session="ann")
            await came.wait()
            assert not second.done
            first.cancel("stop")
            with pytest.raises(JobCancelledError, match="stop"):
                await first.wait()
            assert await second.wait() == "done"
            await gone.wait()
        recorder.check()

    asyncio.run(main())
