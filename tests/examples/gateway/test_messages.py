"""`/v1/messages`: what is passed on, done and refused, and what comes back."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from random import Random
from typing import Any, get_args

import pytest
import trio
from anthropic import types
from pydantic import TypeAdapter
from trio.testing import MockClock

from examples.anthropic_api.fields import TABLES
from examples.anthropic_api.requests import to_completion
from examples.chat_agent.model import Cut, ModelError, Stopped, ToolCall
from examples.chat_agent.upstream import Builtin

from .inside import Gateway, Script, inside

Json = dict[str, Any]
MESSAGES = "/v1/messages"
HELLO: Json = {
    "model": "m",
    "max_tokens": 99,
    "messages": [{"role": "user", "content": "hello"}],
}
WEATHER: Json = {
    "name": "get_weather",
    "description": "The weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
EVENTS: TypeAdapter[Any] = TypeAdapter(types.RawMessageStreamEvent)
OF_TYPES: dict[str, tuple[Any, ...]] = {
    "request": (
        types.message_create_params.MessageCreateParamsBase,
        types.message_create_params.MessageCreateParamsStreaming,
        types.MessageCountTokensParams,
    ),
    "tool": (types.ToolParam,),
    "tool_choice": get_args(types.ToolChoiceParam),
    "message": get_args(types.MessageParam),
    "text": (types.TextBlockParam,),
    "image": (types.ImageBlockParam,),
    "base64": (types.Base64ImageSourceParam,),
    "url": (types.URLImageSourceParam,),
    "tool_use": (types.ToolUseBlockParam,),
    "tool_result": (types.ToolResultBlockParam,),
}
OF_FIELDS: dict[str, tuple[Any, ...]] = {
    "metadata": (types.MetadataParam,),
    "thinking": get_args(types.ThinkingConfigParam),
    "output_config": (types.OutputConfigParam,),
}
HEADERS = {"user_profile_id", "workspace_id"}  # the client sends them as headers


async def streamed(gateway: Gateway, body: Json) -> list[Json]:
    """The events of a message, each of which is what the client's own types say."""
    async with gateway.stream("POST", MESSAGES, body | {"stream": True}) as stream:
        assert stream.status == 200
        events = [event async for event in stream]
    for event in events:
        if event["type"] not in ("ping", "error"):
            EVENTS.validate_python(event)
    return events


@pytest.mark.parametrize("kind", TABLES)
def test_each_field_of_the_client_is_in_the_table(kind: str) -> None:
    fields = {name for one in OF_TYPES[kind] for name in typing.get_type_hints(one)}
    assert fields - HEADERS <= TABLES[kind].keys()


@pytest.mark.parametrize("name", OF_FIELDS)
def test_each_field_of_a_field_is_in_the_table(name: str) -> None:
    fields = {field for one in OF_FIELDS[name] for field in typing.get_type_hints(one)}
    known = TABLES["request"][name].fields
    assert known is not None
    assert fields <= known.keys()


async def test_a_message_is_answered(autojump_clock: MockClock) -> None:
    async with inside(Script(["all ", "is well"])) as gateway:
        reply = await gateway.request("POST", MESSAGES, HELLO)
    assert reply.status == 200
    message = types.Message.model_validate(reply.body)
    assert [block.to_dict() for block in message.content] == [
        {"type": "text", "text": "all is well"}
    ]
    assert (message.role, message.type, message.stop_reason) == ("assistant", "message", "end_turn")


async def test_a_message_is_streamed_as_text_grows(autojump_clock: MockClock) -> None:
    call = ToolCall("call_1", "get_weather", '{"city": "Rome"}')
    async with inside(Script(["one ", 5.0, "two", call])) as gateway:
        tool = {"name": "get_weather", "input_schema": {"type": "object"}}
        events = await streamed(gateway, HELLO | {"tools": [tool]})
    kinds = [event["type"] for event in events]
    block = ["content_block_start", "content_block_delta"]
    assert kinds == [
        "message_start", "ping", *block, "content_block_delta", "content_block_stop",
        *block, "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert [event.get("index") for event in events] == [None] * 2 + [0] * 4 + [1] * 3 + [None] * 2
    assert events[7]["delta"] == {"type": "input_json_delta", "partial_json": call.arguments}
    assert events[9]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ([Stopped("END")], ("stop_sequence", "END")),
        ([], ("end_turn", None)),  # the upstream does not say at which text it has stopped, if any
        ([Cut("length")], ("max_tokens", None)),
    ],
)
async def test_a_message_says_at_which_text_it_has_stopped_if_the_upstream_does(
    ends: list[Any], said: tuple[str, str | None], autojump_clock: MockClock
) -> None:
    body = HELLO | {"stop_sequences": ["END"]}
    async with inside(Script(["one", *ends])) as gateway:
        whole = (await gateway.request("POST", MESSAGES, body)).body
        events = await streamed(gateway, body)
        message = {"messages": HELLO["messages"], "stop": ["END"]}
        choice = (await gateway.request("POST", "/v1/chat/completions", message)).body["choices"][0]
    assert (whole["stop_reason"], whole["stop_sequence"]) == said
    assert events[-2]["delta"] == {"stop_reason": said[0], "stop_sequence": said[1]}
    assert choice.get("stop_reason") == said[1]


async def test_a_tool_loop_reaches_the_model(autojump_clock: MockClock) -> None:
    model = Script([ToolCall("call_1", "get_weather", '{"city": "Rome"}')], ["sun"])
    asked: list[Json] = [*HELLO["messages"]]
    body = HELLO | {"system": [{"type": "text", "text": "be brief"}], "tools": [WEATHER]}
    async with inside(model) as gateway:
        first = (await gateway.request("POST", MESSAGES, body | {"messages": asked})).body
        assert first["stop_reason"] == "tool_use"
        (use,) = first["content"]
        assert use == {
            "type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Rome"},
        }  # fmt: skip
        result = {"type": "tool_result", "tool_use_id": use["id"], "is_error": True}
        said = [result | {"content": [{"type": "text", "text": "rain"}]}]
        said.append({"type": "text", "text": "really?"})
        thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
        asked.append({"role": "assistant", "content": [thought, *first["content"]]})
        asked.append({"role": "user", "content": said})
        second = (await gateway.request("POST", MESSAGES, body | {"messages": asked})).body
    assert second["content"] == [{"type": "text", "text": "sun"}]
    assert [message.role for message in model.prompts[0]] == ["system", "user"]
    assert [(message.role, message.text, message.call_id) for message in model.prompts[1]] == [
        ("system", "be brief", ""),
        ("user", "hello", ""),
        ("assistant", "", ""),
        ("tool", "error: rain", "call_1"),
        ("user", "really?", ""),
    ]
    assert json.loads(model.prompts[1][2].calls[0].arguments) == {"city": "Rome"}
    (tool,) = model.offered[0]
    assert tool["function"]["name"] == "get_weather"
    assert tool["function"]["parameters"] == WEATHER["input_schema"]


SETTINGS: Json = {
    "temperature": 0.5,
    "top_p": 0.9,
    "stop_sequences": ["END"],
    "tools": [WEATHER],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "output_config": {
        "effort": "low",
        "format": {"type": "json_schema", "schema": {"type": "object"}},
    },
    "service_tier": "standard_only",
    "metadata": {"user_id": "u1"},
    "thinking": {"type": "adaptive"},
    "cache_control": {"type": "ephemeral"},
    "speed": "standard",
    "container": None,
}


def test_settings_are_named_as_in_chat_completions() -> None:
    asked = to_completion(HELLO | SETTINGS)
    assert asked.pop("messages") == [{"role": "user", "content": "hello"}]
    assert asked.pop("tools")[0]["function"]["description"] == "The weather"
    assert asked == {
        "model": "m",
        "max_completion_tokens": 99,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["END"],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True},
        },
        "service_tier": "default",
        "user": "u1",
    }
    named = to_completion(HELLO | {"tool_choice": {"type": "tool", "name": "get_weather"}})
    assert named["tool_choice"] == {"type": "function", "function": {"name": "get_weather"}}


def test_an_image_is_passed_on_as_a_part_of_a_chat_completion() -> None:
    of_data = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    of_url = {"type": "url", "url": "https://example.org/cat.png"}
    images = [{"type": "image", "source": source} for source in (of_data, of_url)]
    content = [{"type": "text", "text": "what is it?"}, *images]
    asked = to_completion(HELLO | {"messages": [{"role": "user", "content": content}]})
    urls = ["data:image/png;base64,iVBORw0KGgo=", "https://example.org/cat.png"]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    assert asked["messages"][0]["content"] == [{"type": "text", "text": "what is it?"}, *parts]


async def test_a_request_whose_values_are_mixed_up_is_done_or_refused(
    autojump_clock: MockClock,
) -> None:
    random = Random(1)
    model = Script()
    parts = [
        {"type": "tool_result", "tool_use_id": "i", "content": [{"type": "text", "text": "r"}]},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/cat.png"}},
        {"type": "text", "text": "and"},
    ]
    use = {"type": "tool_use", "id": "i", "name": "get_weather", "input": {}}
    asked = HELLO | SETTINGS
    asked["messages"] = [
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": parts},
    ]
    values = [None, True, 0, 1.5, "", "x", [], {}, [None], {"type": "text"}, "user", "url"]
    async with inside(model) as gateway:
        for _ in range(300):
            body = json.loads(json.dumps(asked))
            for _ in range(random.randint(1, 3)):
                holder, key = random.choice([*places_in(body)])
                holder[key] = random.choice(values)
            before = len(model.prompts)
            reply = await gateway.request("POST", MESSAGES, body)
            assert reply.status in (200, 400), (reply.body, body)
            assert len(model.prompts) == before + (reply.status == 200)


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """All places in the value, each as its holder and its key."""
    inner = [*value.items()] if isinstance(value, dict) else [*enumerate(value)]
    for key, one in inner:
        yield value, key
        if isinstance(one, dict | list):
            yield from places_in(one)


async def test_a_model_is_shown_images(autojump_clock: MockClock) -> None:
    source = {"type": "url", "url": "https://example.org/cat.png"}
    asked = HELLO | said({"type": "image", "source": source})
    model = Script()
    async with inside(model) as gateway:
        assert (await gateway.request("POST", MESSAGES, asked)).status == 200
    assert model.prompts[0][0].parts == (
        {"type": "image_url", "image_url": {"url": source["url"]}},
    )
    async with inside(Builtin(0.0)) as gateway:
        reply = await gateway.request("POST", MESSAGES, asked)
        assert (reply.status, reply.body["type"]) == (400, "error")


def said(*blocks: Json, role: str = "user") -> Json:
    return {"messages": [{"role": role, "content": [*blocks]}]}


BAD: dict[str, Json] = {
    "max_tokens is missing": {"max_tokens": None},
    "max_tokens must": {"max_tokens": 0},
    "model must": {"model": 5},
    "model is missing": {"model": None},
    "messages: the last": {"messages": []},
    "messages: the last must": said({"type": "text", "text": "The answer is"}, role="assistant"),
    "messages.0.role": said(role="robot"),
    "messages.0.content": {"messages": [{"role": "user", "content": 5}]},
    "messages.0 must": {"messages": ["hello"]},
    "messages.0.content.0.type": said({"type": "document"}),
    "messages.0.content.0.text": said({"type": "text", "text": 5}),
    "messages.0.content.0.citations": said({"type": "text", "text": "x", "citations": [{}]}),
    "messages.0.content.0.tool_use_id": said({"type": "tool_result"}),
    "messages.0.content.0.content.0.type": said(
        {"type": "tool_result", "tool_use_id": "x", "content": [{"type": "image"}]}
    ),
    "messages.0.content.0.source.type": said({"type": "image", "source": {"type": "file"}}),
    "messages.0.content.0.source.media_type": said({"type": "image", "source": {"type": "base64"}}),
    "messages.0.content.0.input": said(
        {"type": "tool_use", "id": "x", "name": "y", "input": "z"}, role="assistant"
    ),
    "system": {"system": 5},
    "tools.0.type": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    "tools.0.input_schema": {"tools": [{"name": "x"}]},
    "tools.0.defer_loading": {"tools": [WEATHER | {"defer_loading": True}]},
    "tools.0.input_examples": {"tools": [WEATHER | {"input_examples": [{}]}]},
    "tool_choice.type": {"tool_choice": {"type": "never"}},
    "tool_choice": {"tool_choice": {"type": "tool", "name": "other"}, "tools": [WEATHER]},
    "thinking.type": {"thinking": {"type": "sometimes"}},
    "thinking.budget_tokens": {"thinking": {"type": "enabled", "budget_tokens": "many"}},
    "thinking.display": {"thinking": {"type": "adaptive", "display": "whole"}},
    "output_config.format": {"output_config": {"format": {"type": "json_schema"}}},
    "output_config.effort": {"output_config": {"effort": "huge"}},
    "stop_sequences": {"stop_sequences": "END"},
    "temperature": {"temperature": "hot"},
    "service_tier": {"service_tier": "best"},
    "metadata.email": {"metadata": {"email": "x"}},
    "metadata.user_id": {"metadata": {"user_id": 5}},
    "top_k": {"top_k": 5},
    "speed": {"speed": "fast"},
    "container": {"container": "x"},
    "inference_geo": {"inference_geo": "us"},
    "context_management": {"context_management": "x"},
    "mcp_servers": {"mcp_servers": []},
}
OF_AN_ANSWER = ("max_tokens is missing", "tool_choice")  # not needed to count tokens


async def test_what_cannot_be_done_is_refused_by_name_before_anything_runs(
    autojump_clock: MockClock,
) -> None:
    model = Script()
    async with inside(model) as gateway:
        for name, more in BAD.items():
            for path in (MESSAGES, f"{MESSAGES}/count_tokens"):
                if name in OF_AN_ANSWER and path != MESSAGES:
                    continue
                reply = await gateway.request("POST", path, HELLO | more)
                assert reply.status == 400, (name, reply.body)
                assert reply.body["type"] == "error"
                error = reply.body["error"]
                assert error["type"] == "invalid_request_error"
                assert error["message"].startswith(name), error
        reply = await gateway.request("POST", MESSAGES, HELLO | {"thread": {}})
        assert reply.body["error"]["details"] == {"error_code": "thread_unsupported_request"}
        reply = await gateway.request("POST", MESSAGES, b"[")
        assert (reply.status, reply.body["type"]) == (400, "error")
    assert model.prompts == []


async def test_tokens_are_estimated_without_the_model(autojump_clock: MockClock) -> None:
    model = Script()
    body = {"model": "m", "messages": [{"role": "user", "content": "word " * 400}]}
    async with inside(model) as gateway:
        reply = await gateway.request("POST", f"{MESSAGES}/count_tokens", body)
        more = await gateway.request(
            "POST", f"{MESSAGES}/count_tokens", body | {"tools": [WEATHER], "system": "be brief"}
        )
    assert 500 <= reply.body["input_tokens"] < more.body["input_tokens"] < 600
    assert model.prompts == []


async def test_a_failed_answer_is_an_api_error(autojump_clock: MockClock) -> None:
    failures: list[list[Any]] = [["half ", ModelError("it broke")]] * 2
    failures += [[ToolCall("call_1", "get_weather", "{oops")]]
    async with inside(Script(*failures)) as gateway:
        reply = await gateway.request("POST", MESSAGES, HELLO)
        assert (reply.status, reply.body["error"]["type"]) == (502, "api_error")
        assert "it broke" in reply.body["error"]["message"]
        events = await streamed(gateway, HELLO)
        assert [event["type"] for event in events][-2:] == ["content_block_delta", "error"]
        assert events[-1]["error"]["type"] == "api_error"
        reply = await gateway.request("POST", MESSAGES, HELLO)  # the input of a tool is no JSON
        assert (reply.status, reply.body["error"]["type"]) == (502, "api_error")
        assert (await streamed(gateway, HELLO))[-1]["type"] == "error"


async def test_a_full_lane_is_a_429_with_the_time_to_wait(autojump_clock: MockClock) -> None:
    async with inside(Script(["slow", 5.0]), "--waiting", "1") as gateway:
        replies: list[Any] = []

        async def ask() -> None:
            replies.append(await gateway.request("POST", MESSAGES, HELLO))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
    refused, *others = sorted(replies, key=lambda reply: -reply.status)
    assert [reply.status for reply in others] == [200, 200]
    assert refused.status == 429
    assert refused.body["error"]["type"] == "rate_limit_error"
    assert int(refused.headers["retry-after"]) >= 1
    assert int(refused.headers["retry-after-ms"]) >= 200


async def test_a_gateway_that_closes_is_overloaded(autojump_clock: MockClock) -> None:
    async with inside(Script()) as gateway:
        gateway.lanes.close()
        reply = await gateway.request("POST", MESSAGES, HELLO)
    assert (reply.status, reply.body["error"]["type"]) == (503, "overloaded_error")


async def test_each_error_of_the_path_is_in_its_shape(autojump_clock: MockClock) -> None:
    async with inside(Script()) as gateway:
        wrong = [
            await gateway.request("GET", MESSAGES),
            await gateway.request("POST", f"{MESSAGES}/batches", HELLO),
            await gateway.request("POST", MESSAGES, HELLO, {"origin": "http://evil.example"}),
        ]
    assert [reply.status for reply in wrong] == [405, 404, 403]
    assert [reply.body["type"] for reply in wrong] == ["error"] * 3
    kinds = ["invalid_request_error", "not_found_error", "permission_error"]
    assert [reply.body["error"]["type"] for reply in wrong] == kinds


async def test_a_client_that_hangs_up_frees_the_slot(autojump_clock: MockClock) -> None:
    async with inside(Script(["never ", 1e6], ["at once"])) as gateway:
        async with gateway.stream("POST", MESSAGES, HELLO | {"stream": True}) as stream:
            await anext(stream)
        assert (await gateway.request("POST", MESSAGES, HELLO)).body["content"][0]["text"]
    assert trio.current_time() < 1e6


async def test_users_take_turns(autojump_clock: MockClock) -> None:
    model = Script(["yes", 1.0])

    async def ask(user: str) -> None:
        body = HELLO | {"messages": [{"role": "user", "content": user}]}
        await gateway.request("POST", MESSAGES, body | {"metadata": {"user_id": user}})

    async with inside(model) as gateway, trio.open_nursery() as nursery:
        for user in ("a", "a", "a", "a", "b"):
            nursery.start_soon(ask, user)
            await trio.sleep(0.01)
    assert [prompt[-1].text for prompt in model.prompts].index("b") < 3
