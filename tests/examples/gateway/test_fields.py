"""Each field of a request is passed on, done, or refused before anything runs; none is ignored."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from openai.types.beta.thread_create_params import ThreadCreateParams
from openai.types.beta.threads.message_create_params import MessageCreateParams
from openai.types.beta.threads.run_create_params import (
    RunCreateParamsNonStreaming,
    RunCreateParamsStreaming,
)
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)
from openai.types.conversations.conversation_create_params import ConversationCreateParams
from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)
from trio.testing import MockClock

from examples.openai_api import fields

from .inside import Gateway, Script, inside

RESPONSES = "/v1/responses"
COMPLETIONS = "/v1/chat/completions"
ASKED = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("table", "types"),
    [
        (fields.RESPONSES, (ResponseCreateParamsNonStreaming, ResponseCreateParamsStreaming)),
        (fields.COMPLETIONS, (CompletionCreateParamsNonStreaming, CompletionCreateParamsStreaming)),
        (fields.CONVERSATIONS, (ConversationCreateParams,)),
        (fields.THREADS, (ThreadCreateParams,)),
        (fields.RUNS, (RunCreateParamsNonStreaming, RunCreateParamsStreaming)),
        (fields.MESSAGES, (MessageCreateParams,)),
    ],
    ids=["responses", "completions", "conversations", "threads", "runs", "messages"],
)
def test_each_field_that_the_client_library_knows_is_in_the_table(
    table: fields.Table, types: tuple[type, ...]
) -> None:
    known = {name for one in types for name in one.__annotations__}
    assert known - table.keys() == set()


SCHEMA = {"name": "n", "strict": True, "schema": {"type": "object", "properties": {}}}
SAME: list[tuple[str, Any]] = [
    ("model", "another"), ("temperature", 0.25), ("top_p", 0.5), ("frequency_penalty", 1),
    ("presence_penalty", -1), ("prompt_cache_key", "k"), ("prompt_cache_retention", "24h"),
    ("prompt_cache_options", {"ttl": "30m"}), ("safety_identifier", "s"), ("service_tier", "flex"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "settings"),
    [
        *[(RESPONSES, {name: value}, {name: value}) for name, value in SAME],
        *[(COMPLETIONS, {name: value}, {name: value}) for name, value in SAME],
        (RESPONSES, {"max_output_tokens": 16}, {"max_completion_tokens": 16}),
        (RESPONSES, {"reasoning": {"effort": "high"}}, {"reasoning_effort": "high"}),
        (
            RESPONSES,
            {"text": {"format": {"type": "json_schema", **SCHEMA}, "verbosity": "low"}},
            {
                "response_format": {"type": "json_schema", "json_schema": SCHEMA},
                "verbosity": "low",
            },
        ),
        (COMPLETIONS, {"max_tokens": 16, "seed": 7}, {"max_tokens": 16, "seed": 7}),
        (COMPLETIONS, {"stop": ["a"]}, {"stop": ["a"]}),
        (
            COMPLETIONS,
            {"response_format": {"type": "json_object"}, "reasoning_effort": "low"},
            {"response_format": {"type": "json_object"}, "reasoning_effort": "low"},
        ),
    ],
)
async def test_a_setting_reaches_the_model(
    autojump_clock: MockClock, path: str, body: dict[str, Any], settings: dict[str, Any]
) -> None:
    model = Script()
    async with inside(model) as gateway:
        reply = await gateway.request("POST", path, asking(path) | body)
    assert reply.status == 200, reply.raw
    assert model.settings == [settings]


def asking(path: str) -> dict[str, Any]:
    return {"messages": ASKED} if path == COMPLETIONS else {"input": "hello"}


TOOL = {"type": "function", "name": "f", "strict": True, "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("choice", "passed"),
    [
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
async def test_tools_and_their_choice_reach_the_model(
    autojump_clock: MockClock, choice: Any, passed: Any
) -> None:
    model = Script()
    function = {name: value for name, value in TOOL.items() if name != "type"}
    chat = {"tools": [{"type": "function", "function": function}], "parallel_tool_calls": False}
    async with inside(model) as gateway:
        body = {"input": "x", "tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
        assert (await gateway.request("POST", RESPONSES, body)).status == 200
        body = {"messages": ASKED, "tool_choice": passed, **chat}
        assert (await gateway.request("POST", COMPLETIONS, body)).status == 200
    assert model.settings == [{"tool_choice": passed, "parallel_tool_calls": False}] * 2
    assert model.offered == [chat["tools"]] * 2


def server(**more: Any) -> dict[str, Any]:
    return {"tools": [{"type": "mcp", "server_label": "gateway", **more}]}


NO_OBJECT = {"type": "function", "function": {"name": "f", "parameters": 5}}
APPROVAL = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}
POST = "/v1/threads/t/messages"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (RESPONSES, {"temperature": "hot"}, "temperature"),
    (RESPONSES, {"temperature": 3}, "temperature"),
    (RESPONSES, {"temperature": True}, "temperature"),
    (RESPONSES, {"max_output_tokens": 0}, "max_output_tokens"),
    (RESPONSES, {"background": "no"}, "background"),
    (RESPONSES, {"background": True, "store": False}, "store"),
    (RESPONSES, {"conversation": False}, "conversation"),
    (RESPONSES, {"conversation": {"id": ".."}}, "conversation"),
    (RESPONSES, {"prompt": {"id": "pmpt_1"}}, "prompt"),
    (RESPONSES, {"top_logprobs": 2}, "top_logprobs"),
    (RESPONSES, {"include": ["message.output_text.logprobs"]}, "include"),
    (RESPONSES, {"reasoning": {"summary": "long"}}, "reasoning.summary"),
    (RESPONSES, {"access_programs": [{}]}, "access_programs"),
    (RESPONSES, {"client_metadata": "x"}, "client_metadata"),
    (RESPONSES, {"text": {"format": {"type": "grammar"}}}, "text.format"),
    (RESPONSES, {"metadata": {"a": 5}}, "metadata"),
    (RESPONSES, {"metadata": {"when_busy": "never"}}, "metadata.when_busy"),
    (RESPONSES, {"no_such_field": 1}, "no_such_field"),
    (RESPONSES, {"tool_choice": "required"}, "tool_choice"),
    (RESPONSES, {"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
    (RESPONSES, {"tools": [{"type": "web_search"}]}, "tools[0]"),
    (RESPONSES, {"tools": [TOOL, {**TOOL, "parameters": "x"}]}, "tools[1].parameters"),
    (RESPONSES, server(headers={"a": "b"}), "tools[0].headers"),
    (RESPONSES, server(allowed_tools={"read_only": True}), "tools[0].allowed_tools"),
    (RESPONSES, server(require_approval="sometimes"), "tools[0].require_approval"),
    (RESPONSES, {"input": []}, "input"),
    (RESPONSES, {"input": [APPROVAL]}, "input"),
    (RESPONSES, {"input": [{"type": "reasoning", "summary": []}]}, "input"),
    (RESPONSES, {"input": [OUTPUT]}, "input"),
    (COMPLETIONS, {"n": 2}, "n"),
    (COMPLETIONS, {"logprobs": True}, "logprobs"),
    (COMPLETIONS, {"store": True}, "store"),
    (COMPLETIONS, {"stop": [5]}, "stop"),
    (COMPLETIONS, {"functions": []}, "functions"),
    (COMPLETIONS, {"top_k": 5}, "top_k"),
    (COMPLETIONS, {"tools": [{"type": "function"}]}, "tools[0]"),
    (COMPLETIONS, {"tools": [NO_OBJECT]}, "tools[0].function.parameters"),
    (COMPLETIONS, {"messages": [*ASKED, {"role": "assistant", "tool_calls": [{}]}]}, "messages"),
    (COMPLETIONS, {"messages": []}, "messages"),
    ("/v1/conversations", {"metadata": 5}, "metadata"),
    ("/v1/threads", {"tool_resources": {"file_search": {}}}, "tool_resources"),
    (POST, {"role": "assistant", "content": "x"}, "role"),
    (POST, {"role": "user", "content": "x", "attachments": [{}]}, "attachments"),
    ("/v1/threads/t/runs", {"assistant_id": "a", "stream": True}, "stream"),
    ("/v1/threads/t/runs", {"assistant_id": "a", "tools": [5]}, "tools[0]"),
]  # fmt: skip


async def test_what_cannot_be_done_is_refused_with_its_name_and_nothing_runs(
    autojump_clock: MockClock,
) -> None:
    model = Script()
    async with inside(model) as gateway:
        for path, body, param in REFUSED:
            if path in (RESPONSES, COMPLETIONS):
                body = asking(path) | body
            reply = await gateway.request("POST", path, body)
            assert reply.status == 400, (path, body)
            assert reply.body["error"]["param"] == param
            assert reply.body["error"]["type"] == "invalid_request_error"
    assert model.prompts == []


BROKEN = [r'"\ud800"', r'{"a": "\udfff"}', "NaN", "-Infinity", "1e999", "[" * 990 + "]" * 990]


async def test_what_cannot_be_sent_back_is_refused_at_once(autojump_clock: MockClock) -> None:
    model = Script()
    async with inside(model) as gateway:
        for path in (RESPONSES, COMPLETIONS, "/v1/conversations", "/v1/threads"):
            for name in ("model", "instructions", "metadata", "input", "anything"):
                for value in BROKEN:
                    body = f'{{"input": "hi", "messages": [], "{name}": {value}}}'
                    reply = await gateway.request("POST", path, body.encode())
                    assert reply.status == 400, (path, body)
                    assert "body" in reply.body["error"]["message"]
    assert model.prompts == []


# ---- bodies by chance

VALUES: list[Any] = [
    None, True, False, 0, -1, 1.5, 10**30, "", "x", "\ud800", "é" * 50, [], {}, [1], ["a"], [[]],
    [{}], {"a": 1}, {"id": "c1"}, {"id": None}, {"type": "function"}, "auto", "none", "required",
    [{"type": "function", "name": "f"}], [{"type": "function", "function": {"name": "f"}}],
    ASKED, [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
    [{"type": "function_call", "call_id": "c", "name": "f"}],
    [{"type": "function_call_output", "call_id": "c", "output": "o"}],
    [{"type": "mcp_approval_response", "approval_request_id": "c", "approve": False}],
    "conv-1", "resp_conv-1.0123456789ab", "resp_68af", [{"role": "assistant", "content": None}],
    [{"type": "reasoning"}], [{"type": "message", "role": "user", "content": [{"type": "x"}]}],
    {"when_busy": "steer"}, {"when_busy": 5}, float("nan"), float("inf"), "\u0000", "\U0001f600",
    [{"type": "mcp", "server_label": "gateway", "require_approval": {"never": ["calc"]}}],
    [{"type": "mcp"}], [{"role": "tool", "content": "x"}], {"format": {"type": "json_object"}},
    [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}, *ASKED],
]  # fmt: skip
GOOD: dict[str, Any] = {
    "background": True, "conversation": "c1", "include": [], "instructions": "be kind",
    "max_output_tokens": 5, "max_tokens": 5, "metadata": {}, "parallel_tool_calls": False,
    "previous_response_id": None, "reasoning": {"effort": "low"}, "seed": 1, "stop": "x",
    "store": False, "stream": True, "temperature": 0.5, "text": {"format": {"type": "text"}},
    "tool_choice": "auto", "tools": [], "top_p": 1, "truncation": "auto", "user": "ann",
}  # fmt: skip
KNOWN: dict[str, tuple[fields.Table, dict[str, Any]]] = {
    RESPONSES: (fields.RESPONSES, {"input": "hello"}),
    COMPLETIONS: (fields.COMPLETIONS, {"messages": ASKED}),
    "/v1/conversations": (fields.CONVERSATIONS, {}),
    "/v1/threads": (fields.THREADS, {"messages": ASKED}),
    POST: (fields.MESSAGES, ASKED[0]),
    "/v1/threads/t/runs": (fields.RUNS, {"assistant_id": "a"}),
    "/v1/nothing": (fields.RESPONSES, {}),
}


def drawn(rng: random.Random) -> tuple[str, bytes]:
    """Draw a path and a body: one that is good, with fields that are good, or anything."""
    path = rng.choice([RESPONSES, RESPONSES, COMPLETIONS, *KNOWN])
    table, good = KNOWN[path]
    names = rng.sample([*table, "no_such_field"], rng.choice([0, 1, 1, 2, 2, 3]) % len(table))
    body = good | {
        name: GOOD[name] if name in GOOD and rng.random() < 0.5 else rng.choice(VALUES)
        for name in names
    }
    raw = json.dumps(body).encode()
    if rng.random() < 0.1:
        at = rng.randrange(len(raw))
        raw = raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]
    return path, raw


@pytest.mark.slow
@pytest.mark.seeds(4)
async def test_no_body_is_answered_with_a_fault_and_none_is_asked_twice(
    autojump_clock: MockClock, seed: int
) -> None:
    rng = random.Random(seed)
    model = Script()
    statuses: dict[int, int] = {}
    async with inside(model, "--gate-timeout", "1") as gateway:
        for _ in range(500):
            path, raw = drawn(rng)
            status = await answered(gateway, path, raw)
            statuses[status] = statuses.get(status, 0) + 1
            assert status < 500, (path, raw)
            assert len(model.prompts) <= statuses.get(200, 0), (path, raw)
    assert statuses[200] > 25, statuses
    assert statuses[400] > 25, statuses


async def answered(gateway: Gateway, path: str, raw: bytes) -> int:
    """Make a request; each answer is JSON, or a stream of it, and each error has its shape."""
    async with gateway.stream("POST", path, raw) as reply:
        if reply.headers["content-type"].startswith("text/event-stream"):
            assert [event async for event in reply]
            return reply.status
        reply.raw = b"".join([chunk async for chunk in reply.chunks])
    assert reply.status == 200 or reply.body["error"].keys() == {"message", "type", "param", "code"}
    return reply.status
