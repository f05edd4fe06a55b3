"""Signs of life on streams that wait, and bodies that are slow or come in small pieces."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import trio
from starlette.requests import Request
from trio.testing import MockClock

from examples.openai_api.http import ALIVE, ALIVE_SECONDS, BODY_SECONDS, EventStream, raw_of

from .inside import Gateway, Script, inside

COMPLETION = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
STREAMS = [("/v1/responses", {"input": "hello"}), ("/v1/chat/completions", COMPLETION)]


async def pieces(gateway: Gateway, path: str, body: Any) -> list[tuple[float, bytes]]:
    """All that comes on a stream, with the seconds since its beginning."""
    began = trio.current_time()
    async with gateway.stream("POST", path, body | {"stream": True}) as reply:
        return [(trio.current_time() - began, piece) async for piece in reply.chunks]


def check(stream: Sequence[tuple[float, bytes]], seconds: float) -> None:
    """Check that a stream was never silent for long, and has no comment inside of an event."""
    times = [0.0, *(time for time, _ in stream)]
    assert times[-1] >= seconds
    assert max(b - a for a, b in pairwise(times)) <= ALIVE_SECONDS
    comments = [piece for _, piece in stream if piece.startswith(b":")]
    assert comments == [ALIVE] * int(seconds // ALIVE_SECONDS)
    for _, piece in stream:
        assert piece.endswith(b"\n\n")
        for line in piece.splitlines():
            name, _, data = line.partition(b": ")
            assert name in (b"", b"event", b"data")
            assert name != b"data" or data == b"[DONE]" or json.loads(data)


@pytest.mark.parametrize(("path", "body"), STREAMS)
async def test_a_stream_that_waits_for_the_model_shows_life(
    autojump_clock: MockClock, path: str, body: Any
) -> None:
    async with inside(Script(["one ", 40.0, "two"])) as gateway:
        stream = await pieces(gateway, path, body)
    check(stream, 40)
    assert len([piece for _, piece in stream if b'"two"' in piece]) == 1


@pytest.mark.parametrize(("path", "body"), STREAMS)
async def test_a_stream_that_waits_for_its_turn_shows_life(
    autojump_clock: MockClock, path: str, body: Any
) -> None:
    async with inside(Script([100.0, "first"], ["second"])) as gateway:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gateway.request, "POST", "/v1/responses", {"input": "hello"})
            await trio.sleep(1)
            stream = await pieces(gateway, path, body)
    check(stream, 99)


async def test_no_comment_comes_before_the_head_or_behind_the_end_of_a_stream(
    autojump_clock: MockClock,
) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        await trio.sleep(40)  # a slow client

    async def events() -> AsyncIterator[str]:
        yield "data: 1\n\n"

    await EventStream(events(), lambda: None).stream_response(send)
    bodies = [message.get("body") for message in sent if message.get("body") != ALIVE]
    assert bodies == [None, b"data: 1\n\n", b""]
    assert [sent[0]["type"], sent[1]["body"]] == ["http.response.start", b"data: 1\n\n"]
    assert sent[-1]["more_body"] is False


# ---- bodies


class Piece(bytes):
    """A piece of a body; it counts how often its length is asked for."""

    asked = 0

    def __len__(self) -> int:
        Piece.asked += 1
        return super().__len__()


def arriving(parts: Sequence[bytes], pause: float = 0.0) -> Request:
    """A request whose body arrives in these parts."""
    left = [*enumerate(reversed(parts))]

    async def receive() -> Any:
        await trio.sleep(pause)
        more, part = left.pop()
        return {"type": "http.request", "body": part, "more_body": bool(more)}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


async def test_a_body_in_pieces_of_one_byte_costs_as_much_for_each_as_a_short_one(
    autojump_clock: MockClock,
) -> None:
    count = 10_000
    Piece.asked = 0
    assert await raw_of(arriving([Piece(b"x")] * count)) == b"x" * count
    assert Piece.asked <= 2 * count


async def test_a_body_that_does_not_arrive_in_time_is_a_408_and_nothing_runs(
    autojump_clock: MockClock,
) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        await trio.sleep(BODY_SECONDS / 4)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    model = Script()
    async with inside(model) as gateway:
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.1"}, "method": "POST",
            "path": "/v1/responses", "raw_path": b"/v1/responses", "query_string": b"",
            "root_path": "", "scheme": "http", "headers": [(b"host", b"127.0.0.1")],
        }  # fmt: skip
        began = trio.current_time()
        await gateway.app(scope, receive, send)
        assert trio.current_time() - began == BODY_SECONDS
    assert sent[0]["status"] == 408
    assert "did not arrive" in json.loads(sent[1]["body"])["error"]["message"]
    assert model.prompts == []
