"""A client that floods the gateway, and another that wants an answer."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from examples.gateway.engine import CAP

from .inside import Gateway, Script, inside

SLOW = Script(["yes", 1.0])  # a turn takes a second


async def flood(gateway: Gateway, path: str, bodies: list[Any]) -> Counter[int]:
    """Make requests at once, while another client makes the last of them; check its time."""
    statuses: Counter[int] = Counter()

    async def ask(body: Any) -> None:
        statuses[(await gateway.request("POST", path, body)).status] += 1

    async with trio.open_nursery() as nursery:
        for body in bodies[:-1]:
            nursery.start_soon(ask, body)
        await trio.sleep(0.1)
        began = trio.current_time()
        assert (await gateway.request("POST", path, bodies[-1])).status == 200
        assert trio.current_time() - began < 4
    return statuses


async def test_a_conversation_that_floods_is_refused_and_another_is_answered_next(
    autojump_clock: MockClock,
) -> None:
    bodies = [{"input": "hello", "conversation": "flood"} for _ in range(60)]
    async with inside(SLOW) as gateway:
        statuses = await flood(gateway, "/v1/responses", [*bodies, {"input": "hello"}])
    assert statuses == {200: CAP, 429: 60 - CAP}


async def test_a_user_that_floods_completions_takes_turns_with_another(
    autojump_clock: MockClock,
) -> None:
    messages = [{"role": "user", "content": "hello"}]
    bodies = [{"messages": messages, "user": "flood"} for _ in range(60)]
    async with inside(SLOW) as gateway:
        bodies.append({"messages": messages, "user": "other"})
        assert await flood(gateway, "/v1/chat/completions", bodies) == {200: 60}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_a_user_with_many_conversations_leaves_room_to_others(
    path: str, autojump_clock: MockClock
) -> None:
    messages = [{"role": "user", "content": "hello"}]
    said = {"input": "hello"} if path == "/v1/responses" else {"messages": messages}
    statuses: Counter[int] = Counter()
    async with inside(SLOW, "--waiting", "20") as gateway:

        async def ask(**more: Any) -> None:
            statuses[(await gateway.request("POST", path, said | more)).status] += 1

        for _ in range(2):  # what has ended takes no room
            async with trio.open_nursery() as nursery:
                for _ in range(60):
                    nursery.start_soon(partial(ask, user="flood"))
                await trio.sleep(0.1)
                assert statuses == {429: 60 - 11}
                assert (await gateway.request("POST", path, said | {"user": "a"})).status == 200
                assert (await gateway.request("POST", path, said)).status == 200
            assert statuses == {429: 60 - 11, 200: 11}
            statuses.clear()
