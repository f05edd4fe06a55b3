"""What an upstream says is known, read over by a list, or an error."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import attrs
import httpx2
import pytest
from trio.testing import MockClock

from examples.chat_agent.model import (
    Cut,
    ModelBusyError,
    ModelError,
    ModelSilentError,
    Refusal,
    ToolCall,
)
from examples.chat_agent.openai_chunks import READ_OVER, events_of
from examples.chat_agent.openai_model import OpenAIModel

from .inside import Script, inside

Json = dict[str, Any]
ONE, TWO = '{"a": 1}', '{"a": 2}'
FF = [("f", ONE), ("f", TWO)]


@attrs.frozen
class Sent:
    data: str


async def events(*chunks: Json) -> list[Any]:
    """The events of an answer with these chunks."""

    async def sent() -> AsyncGenerator[Sent, None]:
        for chunk in chunks:
            yield Sent(json.dumps(chunk))

    async with aclosing(sent()) as chunks_sent, aclosing(events_of(chunks_sent, ["END"])) as said:
        return [event async for event in said]


def choice(finish_reason: str | None = None, /, **delta: Any) -> Json:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def piece(
    index: int | None, id: str | None = None, name: str | None = None, arguments: Any = None
) -> Json:
    """A fragment of a call; None is a field that is not there."""
    function = {"name": name, "arguments": arguments}
    call: Json = {"index": index, "id": id, "type": "function"}
    call = {key: value for key, value in call.items() if value is not None}
    return call | {"function": {k: v for k, v in function.items() if v is not None}}


CALLS: Any = {
    "an index for each": ([piece(0, "x", "f", ONE), piece(1, "y", "f", TWO)], FF),
    "one index for both": ([piece(0, "x", "f", ONE), piece(0, "y", "f", TWO)], FF),
    "one index, in pieces": (
        [piece(0, "x", "f", ""), piece(0, arguments=ONE), piece(0, "y", "f"),
         piece(0, arguments=TWO)], FF,
    ),
    "id and name in each piece": (
        [piece(0, "x", "f", '{"a"'), piece(0, "x", "f", ": 1}"), piece(1, "y", "f", TWO)], FF,
    ),
    "id and name in each piece, and an empty end": (
        [piece(0, "x", "f", ONE), piece(0, "x", "f", ""), piece(1, "y", "f", TWO)], FF,
    ),
    "one id for both": ([piece(0, "x", "f", ONE), piece(1, "x", "f", TWO)], FF),
    "one id and one index for both": ([piece(0, "x", "f", ONE), piece(0, "x", "f", TWO)], FF),
    "no ids, one index": ([piece(0, None, "f", ONE), piece(0, None, "f", TWO)], FF),
    "no ids and no index": ([piece(None, None, "f", ONE), piece(None, None, "f", TWO)], FF),
    "no index": ([piece(None, "x", "f", ONE), piece(None, "y", "f", TWO)], FF),
    "no index, in pieces": (
        [piece(None, "x", "f", '{"a"'), piece(None, arguments=": 1}"),
         piece(None, "y", "f", TWO)], FF,
    ),
    "other names under one index": (
        [piece(0, None, "f", ""), piece(0, None, "g", "")], [("f", ""), ("g", "")],
    ),
    "arguments as objects": ([piece(0, "x", "f", {"a": 1}), piece(1, "y", "f", {"a": 2})], FF),
    "objects under one index": ([piece(0, "x", "f", {"a": 1}), piece(0, "y", "f", {"a": 2})], FF),
    "an empty object": ([piece(0, "x", "f", {})], [("f", "{}")]),
    "a call that is no list": (piece(0, "x", "f", ONE), [("f", ONE)]),
    "the first behind the second": (
        [piece(1, "y", "f", '{"a"'), piece(0, "x", "f", TWO), piece(1, arguments=": 1}")], FF,
    ),
}  # fmt: skip


@pytest.mark.parametrize("shape", CALLS)
@pytest.mark.parametrize("apart", [True, False])
async def test_calls_are_read_in_each_shape(shape: str, apart: bool) -> None:
    fragments, expected = CALLS[shape]
    if apart and isinstance(fragments, list):
        chunks = [choice(tool_calls=[one]) for one in fragments]
    else:
        chunks = [choice(tool_calls=fragments)]
    calls = await events(*chunks, choice("tool_calls"))
    assert [(call.name, call.arguments) for call in calls] == expected
    assert len({call.id for call in calls}) == len(expected)


TEXTS: Any = {
    "a string": ({"content": "hello"}, ["hello"]),
    "a list of parts": (
        {"content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]},
        ["hel", "lo"],
    ),
    "one part": ({"content": {"type": "output_text", "text": "hello"}}, ["hello"]),
    "thoughts among the parts": (
        {"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "hello"}]},
        ["hello"],
    ),
    "thoughts": ({"reasoning_content": "hm", "content": "hello"}, ["hello"]),
    "nothing of something unknown": ({"content": "hello", "audio": None, "images": []}, ["hello"]),
    "a refusal": ({"refusal": "no"}, [Refusal("no")]),
    "a refusal as a part": ({"content": [{"type": "refusal", "refusal": "no"}]}, [Refusal("no")]),
}


@pytest.mark.parametrize("shape", TEXTS)
async def test_texts_are_read_in_each_shape(shape: str) -> None:
    delta, expected = TEXTS[shape]
    found = await events(choice(**delta), choice("stop"))
    assert found == expected
    assert [type(one) for one in found] == [type(one) for one in expected]


async def test_what_is_read_over_changes_nothing() -> None:
    chunk = choice("stop", content="hello", **dict.fromkeys(READ_OVER["a delta"], "x"))
    chunk["choices"][0] |= dict.fromkeys(READ_OVER["a choice"], "x")
    assert await events(chunk | dict.fromkeys(READ_OVER["a chunk"], "x")) == ["hello"]
    call = piece(0, "x", "f", ONE) | dict.fromkeys(READ_OVER["a call"], "x")
    assert await events(choice("stop", tool_calls=[call])) == [ToolCall("x", "f", ONE)]


@pytest.mark.parametrize(
    "chunk",
    [
        choice(content=[{"type": "image", "data": "x"}]),
        choice(content=["hello"]),
        choice(content=3),
        choice(audio={"data": "x"}),
        choice(function_call={"name": "f"}),
        choice(tool_calls=[piece(0, "x", "f", [1])]),
        choice(tool_calls=[piece(0, "x", None, ONE)]),
        choice(tool_calls=[{"index": 0, "id": "x", "type": "custom", "custom": {"name": "f"}}]),
        choice(tool_calls=["f"]),
        {"choices": [{"index": 1, "delta": {"content": "another"}}]},
        {"choices": [choice(content="one")["choices"][0]] * 2},
        {"choices": [{"index": 0, "message": {"content": "whole"}}]},
        {"choices": [{"index": 0, "delta": {}, "error": {"message": "the endpoint sent no more"}}]},
        {"answer": "hello"},
        choice("insufficient_system_resource"),
        choice("error"),
    ],
)
async def test_what_is_not_known_is_an_error(chunk: Json) -> None:
    with pytest.raises(ModelError, match=r"the endpoint (sent|ended|reports)"):
        await events(chunk, choice("stop"))


@pytest.mark.parametrize(
    ("reason", "cut"),
    [("length", "length"), ("MAX_TOKENS", "length"), ("content_filter", "content_filter"),
     ("SAFETY", "content_filter"), ("eos", ""), ("tool_use", "")],
)  # fmt: skip
async def test_the_end_has_other_names_elsewhere(reason: str, cut: str) -> None:
    assert await events(choice(content="x"), choice(reason)) == ["x", *([Cut(cut)] if cut else [])]


# ---- on the wire

ASKS: Any = {
    "/v1/responses": {"input": "hi"},
    "/v1/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/messages": {
        "model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}],
    },
}  # fmt: skip


async def test_a_refusal_is_passed_on(autojump_clock: MockClock) -> None:
    async with inside(Script(["well, ", Refusal("I "), Refusal("cannot")])) as gateway:
        whole = {p: (await gateway.request("POST", p, body)).body for p, body in ASKS.items()}
        streamed: Json = {}
        for path, body in ASKS.items():
            async with gateway.stream("POST", path, body | {"stream": True}) as events:
                streamed[path] = [event async for event in events]
    response, completion, message = whole.values()
    parts = [item["content"] for item in response["output"]]
    assert [part["type"] for (part,) in parts] == ["output_text", "refusal"]
    assert parts[1][0] == {"type": "refusal", "refusal": "I cannot"}
    said = completion["choices"][0]["message"]
    assert (said["content"], said["refusal"]) == ("well, ", "I cannot")
    assert [block["text"] for block in message["content"]] == ["well, ", "I cannot"]
    assert message["stop_reason"] == "refusal"
    response, completion, message = streamed.values()
    assert [e["delta"] for e in response if e["type"] == "response.refusal.delta"] == [
        "I ",
        "cannot",
    ]
    (done,) = [e for e in response if e["type"] == "response.refusal.done"]
    assert (done["refusal"], done["output_index"], done["content_index"]) == ("I cannot", 1, 0)
    deltas = [chunk["choices"][0]["delta"] for chunk in completion[:-1]]
    assert [delta["refusal"] for delta in deltas if "refusal" in delta] == ["I ", "cannot"]
    assert message[-2]["delta"]["stop_reason"] == "refusal"


@pytest.mark.parametrize("path", ASKS)
@pytest.mark.parametrize(
    ("fault", "status", "headers", "options"),
    [
        (ModelError("broken"), 502, {"x-should-retry": "false"}, ()),
        (ModelSilentError("nothing for 300 s"), 504, {"x-should-retry": "false"}, ()),
        (100.0, 504, {"x-should-retry": "false"}, ("--turn-timeout", "10")),
        (ModelBusyError("busy", 61.5), 429, {"retry-after": "62"}, ()),
        (ModelBusyError("busy", None), 429, {"retry-after": None}, ()),
    ],
)  # fmt: skip
async def test_silence_slowness_and_a_busy_upstream_are_told_apart(
    path: str, fault: Any, status: int, headers: Json, options: tuple[str, ...],
    autojump_clock: MockClock,
) -> None:  # fmt: skip
    async with inside(Script([fault]), *options) as gateway:
        reply = await gateway.request("POST", path, ASKS[path])
        assert reply.status == status, reply.raw
        for name, value in headers.items():
            assert reply.headers.get(name) == value
        assert ("x-should-retry" in reply.headers) is (status != 429)
        error = reply.body["error"]
        if path == "/v1/messages":
            kinds = {502: "api_error", 504: "timeout_error", 429: "rate_limit_error"}
            assert error["type"] == kinds[status]
        else:
            codes = {502: "upstream_error", 429: "upstream_rate_limit_exceeded"}
            assert error["code"] in (codes.get(status), "upstream_silent", "turn_timeout")
        option = "--turn-timeout" if options else "--silence-timeout"
        assert (option in error["message"]) is (status == 504)


async def test_an_endpoint_that_says_nothing_is_silent_and_one_that_is_not_there_is_not() -> None:
    faults: list[Exception] = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        raise faults[-1]

    transport = httpx2.MockTransport(answer)
    async with httpx2.AsyncClient(transport=transport, timeout=7) as client:
        model = OpenAIModel(client, "http://x/v1", "tiny", ())
        for fault, kind, text in (
            (httpx2.ReadTimeout("secret"), ModelSilentError, "nothing for 7 s"),
            (httpx2.ConnectTimeout("secret"), ModelError, "ConnectTimeout"),
            (httpx2.InvalidURL("secret"), ModelError, "InvalidURL"),
        ):
            faults.append(fault)
            with pytest.raises(ModelError, match=text) as raised:
                async with model.stream([]):
                    raise AssertionError
            assert type(raised.value) is kind
            assert "secret" not in str(raised.value)


async def test_a_call_of_a_tool_that_was_not_offered_is_an_error_at_once(
    autojump_clock: MockClock,
) -> None:
    model = Script([ToolCall("1", "delete_all", "{}")])
    async with inside(model) as gateway:
        for path, body in ASKS.items():
            assert (await gateway.request("POST", path, body)).status == 502
    assert len(model.prompts) == len(ASKS)
