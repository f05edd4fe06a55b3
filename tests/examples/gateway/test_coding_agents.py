"""Requests in the shapes of coding agents are answered, and what is read over is named.

The shapes are written anew from public reports about the clients and versions that each case names;
the clients themselves are not run here.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from examples.chat_agent.model import ToolCall, Usage

from .inside import Script, inside

Json = dict[str, Any]
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
BASH: Json = {
    "name": "Bash", "description": "Run a command",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
        "properties": {"command": {"type": "string"}}, "required": ["command"],
        "additionalProperties": False,
    },
}  # fmt: skip
MESSAGES: Json = {
    "model": "claude-sonnet-4-6", "max_tokens": 32_000, "stream": True, "temperature": 1,
    "system": [{"type": "text", "text": "You help with code.", **CACHED}],
    "tools": [BASH], "metadata": {"user_id": "user_0_account__session_1"},
    "messages": [{"role": "user", "content": [
        {"type": "text", "text": "<system-reminder>today</system-reminder>"},
        {"type": "text", "text": "list the files", **CACHED},
    ]}],
}  # fmt: skip
ROUND: list[Json] = [
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}},
    ]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a.py", "is_error": False,
         **CACHED},
    ]},
]  # fmt: skip
EDITS: Json = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
ENABLED: Json = {"type": "enabled", "budget_tokens": 31_999}
CLAUDE_CODE: Any = [
    # client, version, what the request has more, what is read over
    ("Claude Code", "2.0.70", {"context_management": EDITS}, "context_management"),
    ("Claude Code", "2.1.84", {"thinking": ENABLED}, "thinking.budget_tokens"),
    ("Claude Code", "2.1.116", {"context_management": EDITS, "thinking": ENABLED},
     "thinking.budget_tokens, context_management"),
    ("Claude Code", "2.1.197",
     {"context_management": EDITS, "thinking": {"type": "adaptive"},
      "output_config": {"effort": "high"}}, "context_management"),
    ("Claude Code", "2.1.197", {"thinking": {"type": "disabled"}, "tools": []}, None),
]  # fmt: skip


@pytest.mark.parametrize(("client", "version", "more", "ignored"), CLAUDE_CODE)
async def test_requests_of_claude_code_are_answered(
    client: str, version: str, more: Json, ignored: str | None, autojump_clock: MockClock
) -> None:
    call = ToolCall("1", "Bash", '{"command": "ls"}')
    headers = {
        "user-agent": f"claude-cli/{version} (external, cli)",
        "anthropic-version": "2023-06-01",
    }
    async with inside(Script([call] if more.get("tools", True) else ["ok"], ["a.py"])) as gateway:
        path, body = "/v1/messages?beta=true", MESSAGES | more
        async with gateway.stream("POST", path, body, headers) as events:
            told = events.headers.get("x-lanes-ignored")
            kinds = [event["type"] async for event in events]
        assert kinds[-1] == "message_stop"
        assert _sorted(told) == _sorted(ignored)
        body = body | {"messages": [*body["messages"], *ROUND], "stream": False, "tools": [BASH]}
        reply = await gateway.request("POST", path, body, headers)
        assert reply.status == 200, reply.raw
        assert reply.body["content"] == [{"type": "text", "text": "a.py"}]
        reply = await gateway.request("POST", "/v1/messages/count_tokens?beta=true", body, headers)
        assert reply.status == 200, reply.raw
        assert _sorted(reply.headers.get("x-lanes-ignored")) == _sorted(ignored)


def _sorted(names: str | None) -> list[str] | None:
    return None if names is None else sorted(names.split(", "))


SHELL: Json = {
    "type": "function", "name": "shell", "description": "Run a command", "strict": False,
    "parameters": {"type": "object", "properties": {"command": {"type": "array", "items": {
        "type": "string"}}}, "required": ["command"], "additionalProperties": False},
}  # fmt: skip
RESPONSE: Json = {
    "model": "gpt-5.3-codex", "instructions": "You are a coding agent.", "stream": True,
    "tools": [SHELL], "tool_choice": "auto", "parallel_tool_calls": False, "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "019d6c12-17e6-7691-b810-b9c846d44539",
    "input": [
        {"type": "message", "role": "developer",
         "content": [{"type": "input_text", "text": "<permissions>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list"}]},
    ],
}  # fmt: skip
CALLED: list[Json] = [
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "x"},
    {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "c1"},
    {"type": "function_call_output", "call_id": "c1", "output": "a.py"},
]
INSTALLED: Json = {"client_metadata": {"x-codex-installation-id": "0f8a"}}
CODEX: Any = [
    ("codex-cli", "0.60.1", {"reasoning": {"effort": "medium", "summary": "auto"}}, None),
    ("codex-cli", "0.60.1", {"reasoning": {"effort": "high", "summary": "detailed"}},
     "reasoning.summary"),
    ("codex-tui", "0.118.0", {**INSTALLED, "text": {"verbosity": "low"}}, "client_metadata"),
    ("codex-tui", "0.118.0", {**INSTALLED, "access_programs": [], "service_tier": "priority",
                              "reasoning": {"effort": "xhigh", "summary": "concise"}},
     "client_metadata, reasoning.summary"),
]  # fmt: skip


@pytest.mark.parametrize(("client", "version", "more", "ignored"), CODEX)
async def test_requests_of_codex_are_answered(
    client: str, version: str, more: Json, ignored: str | None, autojump_clock: MockClock
) -> None:
    call = ToolCall("1", "shell", '{"command": ["ls"]}')
    headers = {"user-agent": f"{client}/{version}", "originator": "codex_cli_rs"}
    async with inside(Script([call], ["a.py"])) as gateway:
        for items in ([], CALLED):
            body = RESPONSE | more | {"input": [*RESPONSE["input"], *items]}
            async with gateway.stream("POST", "/v1/responses", body, headers) as events:
                told = events.headers.get("x-lanes-ignored")
                last = [event async for event in events][-1]
            assert last["type"] == "response.completed", last
            assert _sorted(told) == _sorted(ignored)


async def test_each_field_that_is_read_over_is_named_once(autojump_clock: MockClock) -> None:
    async with inside(Script(["ok"])) as gateway:
        asked: Json = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        body = asked | {"metadata": {"a": "b"}, "stream_options": {"include_obfuscation": True}}
        reply = await gateway.request("POST", "/v1/chat/completions", body)
        assert reply.headers["x-lanes-ignored"] == "metadata, stream_options.include_obfuscation"
        reply = await gateway.request("POST", "/v1/chat/completions", asked | {"metadata": {}})
        assert "x-lanes-ignored" not in reply.headers
        body = {"input": "hi", "context_management": [{"type": "compaction"}]}
        reply = await gateway.request("POST", "/v1/responses", body)
        assert reply.headers["x-lanes-ignored"] == "context_management"


async def test_each_reply_has_the_id_of_its_request(autojump_clock: MockClock) -> None:
    async with inside(Script(["ok"])) as gateway:
        ids = set()
        for path, body in (
            ("/v1/messages", MESSAGES), ("/v1/responses", {"input": "hi"}), ("/v1/nothing", {}),
        ):  # fmt: skip
            reply = await gateway.request("POST", path, body)
            assert reply.headers["request-id"] == reply.headers["x-request-id"]
            ids.add(reply.headers["request-id"])
        assert len(ids) == 3


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (ROUND[1:], "No tool call found"),
        ([ROUND[0], {"role": "user", "content": "go on"}], "No tool output found"),
        ([{"role": "assistant", "content": [
            ROUND[0]["content"][2], ROUND[0]["content"][2] | {"id": "toolu_2"}]}, ROUND[1]],
         "No tool output found"),
        ([*ROUND, ROUND[1]], "No tool call found"),
        ([{"role": "assistant", "content": [ROUND[0]["content"][2]] * 2}, ROUND[1]],
         "two calls of a message have one id"),
    ],
)  # fmt: skip
async def test_calls_and_results_that_do_not_match_are_refused(
    messages: list[Json], text: str, autojump_clock: MockClock
) -> None:
    model = Script(["ok"])
    async with inside(model) as gateway:
        asked = {"role": "user", "content": "hi"}
        body = MESSAGES | {"messages": [asked, *messages], "stream": False}
        reply = await gateway.request("POST", "/v1/messages", body)
        assert reply.status == 400, reply.raw
        assert text in reply.body["error"]["message"]
        chat = {"model": "m", "messages": [asked, {"role": "tool", "tool_call_id": "x"}]}
        assert (await gateway.request("POST", "/v1/chat/completions", chat)).status == 400
    assert not model.prompts


async def test_a_run_says_what_is_known_of_it(autojump_clock: MockClock) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    model = Script([ToolCall("1", "f", "{}"), Usage(7, 5, 2)], ["ok", Usage(9, 6, 3)])
    async with inside(model) as gateway:
        asked: Json = {"messages": [{"role": "user", "content": "hi"}]}
        thread = (await gateway.request("POST", "/v1/threads", asked)).body["id"]
        runs = f"/v1/threads/{thread}/runs"
        body = {
            "assistant_id": "a", "model": "m-1", "instructions": "be brief", "tools": [tool],
            "temperature": 0.5,
        }  # fmt: skip
        run = (await gateway.request("POST", runs, body)).body
        assert (run["created_at"] > 0, run["usage"], run["completed_at"]) == (True, None, None)
        id = run["id"]
        while run["status"] != "requires_action":
            await trio.sleep(1)
            run = (await gateway.request("GET", f"{runs}/{id}")).body
        calls = run["required_action"]["submit_tool_outputs"]["tool_calls"]
        outputs = {"tool_outputs": [{"tool_call_id": calls[0]["id"], "output": "x"}]}
        await gateway.request("POST", f"{runs}/{id}/submit_tool_outputs", outputs)
        while run["status"] != "completed":
            await trio.sleep(1)
            run = (await gateway.request("GET", f"{runs}/{id}")).body
    assert run["usage"] == {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
    assert (run["instructions"], run["tools"], run["temperature"]) == ("be brief", [tool], 0.5)
    assert run["completed_at"] >= run["created_at"]
    assert run["model"] == "m-1"
