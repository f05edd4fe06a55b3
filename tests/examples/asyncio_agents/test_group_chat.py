"""`examples/asyncio_agents/group_chat.py`: people by WebSockets, and a model behind the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from websockets.asyncio.client import ClientConnection, connect

from examples.asyncio_agents import group_chat
from tests.examples.gateway.gateways import gateway
from tests.examples.test_asyncio_applications import served
from tests.support.loops import ALL_LOOPS
from tests.support.programs import PATIENCE, ROOT

pytestmark = pytest.mark.real_processes

SHOWN = ROOT / "examples" / "asyncio_agents" / "group_chat.txt"


@pytest.mark.parametrize("new_loop", ALL_LOOPS)
def test_the_bot_answers_once_for_all_and_has_a_digest_of_what_was_too_much(
    monkeypatch: pytest.MonkeyPatch, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    shown = SHOWN.read_text("utf-8").splitlines()
    seen: list[str] = []

    async def chat(people: dict[str, ClientConnection]) -> None:
        """Say what the page shows that they say; the rest, the bot has to say."""
        for number, line in enumerate(shown):
            who, _, text = line.partition(": ")
            if who in people and number >= len(seen):  # else the bot has quoted them
                await people[who].send(text)
            while len(seen) <= number:
                seen.extend(str(await people["ann"].recv()).splitlines())

    async def main() -> None:
        async with (
            asyncio.timeout(PATIENCE),
            served(group_chat.app) as client,
            connect(f"ws://{client.base_url.netloc.decode()}/ann", proxy=None) as ann,
            connect(f"ws://{client.base_url.netloc.decode()}/bob", proxy=None) as bob,
        ):
            await chat({"ann": ann, "bob": bob})

    with gateway() as url:
        monkeypatch.setattr(group_chat, "MODEL_URL", url)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
    assert seen == shown
