"""`examples/asyncio_agents/support_bot.py`: uvicorn, its files, and a model behind the gateway."""

from __future__ import annotations

import asyncio
import json
import shlex
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import pytest
import trio

from examples.asyncio_agents import support_bot
from tests.examples.gateway.gateways import gateway
from tests.examples.test_asyncio_applications import served
from tests.support.loops import ALL_LOOPS
from tests.support.programs import PATIENCE, ROOT, Program, running
from trio_lanes.agents import Message

pytestmark = pytest.mark.real_processes

APP = ["--app-dir", "examples/asyncio_agents", "support_bot:app", "--port", "0"]
SHOWN = ROOT / "examples" / "asyncio_agents" / "support_bot.txt"
SHOWN_JOB = "1796001047661167"
T = TypeVar("T")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a bot's files. Its model has one place: a request that is kept holds up all."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("BOT_FOLDER", str(tmp_path))
    with gateway() as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        yield tmp_path


@asynccontextmanager
async def bot() -> AsyncIterator[tuple[Program, httpx2.AsyncClient]]:
    async with running("-m", "uvicorn", *APP) as program:
        url = (await program.line("Uvicorn running on ")).split()[0]
        async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE) as client:
            yield program, client


async def until(look: Callable[[], Awaitable[T]]) -> T:
    while not (found := await look()):  # noqa: ASYNC110 - another process knows it
        await trio.sleep(0.02)
    return found


async def post(client: httpx2.AsyncClient, id: str, text: str, **more: str) -> None:
    message = {"customer": "ann", "id": id, "text": text, **more}
    assert (await client.post("/hook", json=message)).status_code == 202


async def questions(client: httpx2.AsyncClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.get("/questions")).json()
    return found


async def answered(client: httpx2.AsyncClient, number: int) -> list[str]:
    """The chat, when so many of its messages are answers."""

    async def look() -> list[str]:
        said: list[str] = (await client.get("/chats/ann")).json()
        return said if sum(line.startswith("assistant: ") for line in said) == number else []

    return await until(look)


def refunds(folder: Path) -> list[int]:
    with closing(sqlite3.connect(folder / "refunds.db")) as db:
        return [number for (number,) in db.execute("SELECT number FROM refunds")]


async def curl(client: httpx2.AsyncClient, command: str) -> str:
    """What a command of the page prints, as far as it needs no more than these options."""
    _, *words = shlex.split(command)
    options = dict(zip(words[:-1:2], words[1:-1:2], strict=True))
    body = options.get("--json")
    reply = await client.request(
        options.get("-X", "POST" if body else "GET"),
        words[-1].removeprefix("127.0.0.1:8000"),
        json=json.loads(body) if body else None,
    )
    return reply.text


async def test_a_question_survives_kill_9_as_the_page_shows_and_the_money_is_sent_once(
    folder: Path,
) -> None:
    job = ""
    async with AsyncExitStack() as stack:
        for part in SHOWN.read_text("utf-8").removeprefix("$ ").split("\n$ "):
            command, _, shown = part.partition("\n")
            if command.startswith("python"):
                program, client = await stack.enter_async_context(bot())
            elif command.startswith("kill -9"):
                program.process.kill()
                await program.process.wait()
                await stack.aclose()
            else:
                job = job or await curl(client, command)  # the first one: it prints the number
                asked = command.replace(SHOWN_JOB, job)
                wanted = shown.strip().replace(SHOWN_JOB, job)

                async def printed() -> bool:
                    return await curl(client, asked) == wanted  # noqa: B023

                await until(printed)  # the bot may not be so far
        assert refunds(folder) == [5]
        await post(client, "m1", "Please refund order 5")  # its sender delivers it again
        await post(client, "m2", "thanks")
        assert "thanks" in (await answered(client, 2))[-1]
        assert refunds(folder) == [5]


@pytest.mark.parametrize("new_loop", ALL_LOOPS)
def test_another_call_with_the_same_id_is_decided_by_the_url_of_its_question(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    monkeypatch.setattr(support_bot, "FOLDER", folder)

    async def ask_model(messages: Sequence[Message]) -> dict[str, Any]:
        """Ask for two refunds, one after the other, under one id."""
        order = sum(message.role == "tool" for message in messages)
        if order == 2:
            return {"content": "done"}
        function = {"name": "refund", "arguments": json.dumps({"order": order})}
        return {"content": "", "tool_calls": [{"id": "a/b", "function": function}]}

    monkeypatch.setattr(support_bot, "ask_model", ask_model)

    async def main() -> None:
        async with asyncio.timeout(PATIENCE), served(support_bot.app) as client:
            await post(client, "m1", "Please refund both")
            for order, call, decision in ((0, "a/b", "no"), (1, "a/b#2", "yes")):
                while (asked := await questions(client)) == [] or asked[0]["call"] != call:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                assert asked[0]["data"] == {"refund": order}
                reply = await client.post(f"{asked[0]['url']}?decision={decision}")
                assert reply.status_code == 200
            while (await client.get("/chats/ann")).json()[-1] != "assistant: done":  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    assert refunds(folder) == [1]


async def test_answers_are_in_order_may_be_interrupted_and_send_no_money_without_a_yes(
    folder: Path,
) -> None:
    async with bot() as (_, client):

        async def begun(text: str) -> bool:
            return f"user: {text}" in (await client.get("/chats/ann")).json()

        for number in ("one", "two"):
            await post(client, number, number, when_busy="followup")
        assert await answered(client, 2) == [
            "user: one",
            "assistant: You said: one (That was message 1 of this conversation.)",
            "user: two",
            "assistant: You said: two (That was message 2 of this conversation.)",
        ]
        await post(client, "slow", "slow 3000")
        await until(lambda: begun("slow 3000"))
        await post(client, "hello", "hello", when_busy="interrupt")
        assert "Hello!" in (await answered(client, 3))[-1]  # the model was free again
        await post(client, "slow again", "slowly 3000")
        await until(lambda: begun("slowly 3000"))
        assert (await client.post("/chats/ann/stop")).json() is True
        await post(client, "thanks", "thanks")
        assert "thanks" in (await answered(client, 4))[-1]
        await post(client, "refund", "Please refund order 5")
        (asked,) = await until(lambda: questions(client))
        assert (await client.post(f"{asked['url']}?decision=no")).status_code == 200
        assert "a person has refused it" in (await answered(client, 5))[-1]
    assert not (folder / "refunds.db").exists()
