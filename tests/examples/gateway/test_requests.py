"""What a request asks for is done, and what has become of it is said: usage, ends, and errors."""

from __future__ import annotations

import re
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from examples.chat_agent.model import Cut, ModelError, RequestError, ToolCall, Usage
from examples.chat_agent.openai_model import TOO_LONG
from examples.chat_agent.upstream import Builtin
from examples.gateway.engine import Engine
from trio_lanes import JobCancelledError, LaneFullError
from trio_lanes.agents import TranscriptError
from trio_lanes.durable import KeyConflictError

from .inside import Gateway, Json, Reply, Script, inside

RESPONSES = "/v1/responses"
COMPLETIONS = "/v1/chat/completions"
CALC = ToolCall("c1", "calc", '{"expression": "6*7"}')
TIME = ToolCall("c2", "time", "{}")


async def ask(gateway: Gateway, input: Any = "hello", **body: Any) -> Json:
    reply = await gateway.request("POST", RESPONSES, {"input": input, **body})
    assert reply.status == 200, reply.raw
    result: Json = reply.body
    return result


async def complete(gateway: Gateway, **body: Any) -> Reply:
    messages = [{"role": "user", "content": "hello"}]
    return await gateway.request("POST", COMPLETIONS, {"messages": messages, **body})


async def streamed(gateway: Gateway, path: str, **body: Any) -> list[Any]:
    body |= {"stream": True}
    async with gateway.stream("POST", path, body) as stream:
        assert stream.status == 200
        return [event async for event in stream]


def texts(response: Json) -> list[str]:
    return [part["text"] for item in response["output"] for part in item.get("content", ())]


def mcp(**more: Any) -> list[Json]:
    return [{"type": "mcp", "server_label": "gateway", **more}]


# ---- usage, and ends that are none


async def test_usage_is_what_the_model_said_over_all_calls_of_the_turn(
    autojump_clock: MockClock,
) -> None:
    model = Script([CALC, Usage(18, 11, 7, 8, 3)], ["42", Usage(30, 20, 10, 16, 4)])
    async with inside(model) as gateway:
        usage = (await ask(gateway, tools=mcp()))["usage"]
        assert usage == {
            "input_tokens": 31,
            "input_tokens_details": {"cached_tokens": 24, "cache_write_tokens": 0},
            "output_tokens": 17,
            "output_tokens_details": {"reasoning_tokens": 7},
            "total_tokens": 48,
        }
        usage = (await complete(gateway)).body["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (20, 10)
        assert usage["prompt_tokens_details"]["cached_tokens"] == 16
        assert usage["completion_tokens_details"]["reasoning_tokens"] == 4


@pytest.mark.parametrize("path", [RESPONSES, COMPLETIONS])
async def test_a_turn_with_one_call_of_the_model_counts_once_in_the_rate(
    autojump_clock: MockClock, path: str
) -> None:
    body: Json = {"input": "hello"}
    if path == COMPLETIONS:
        body = {"messages": [{"role": "user", "content": "hello"}]}
    async with inside(Script(), "--rpm", "3") as gateway:
        for _ in range(3):
            assert (await gateway.request("POST", path, body)).status == 200
    assert 39 < trio.current_time() < 41  # 20 s between two


@pytest.mark.parametrize(
    ("reason", "why"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
async def test_an_answer_that_the_model_cut_is_incomplete(
    autojump_clock: MockClock, reason: str, why: str
) -> None:
    async with inside(Script(["half ", Cut(reason), Usage(5)])) as gateway:
        response = await ask(gateway)
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": why}
        assert response["output"][0]["status"] == "incomplete"
        assert response["completed_at"] is None
        events = await streamed(gateway, RESPONSES, input="hello")
        assert events[-1]["type"] == "response.incomplete"
        # its conversation goes on
        await ask(gateway, previous_response_id=response["id"])
        assert (await complete(gateway)).body["choices"][0]["finish_reason"] == reason
        chunks = await streamed(gateway, COMPLETIONS, messages=[{"role": "user", "content": "x"}])
        assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]][-1] == reason


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_completion_that_the_end_of_the_gateway_cuts_off_never_says_stop(
    autojump_clock: MockClock, is_streamed: bool
) -> None:
    got: list[Any] = []
    async with inside(Script(["half ", 60.0, "whole"])) as gateway:

        async def client() -> None:
            if is_streamed:
                messages = [{"role": "user", "content": "x"}]
                got.extend(await streamed(gateway, COMPLETIONS, messages=messages))
            else:
                reply = await complete(gateway)
                assert reply.status == 503
                got.append(reply.body)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(client)
            await trio.sleep(1)
            await gateway.lanes.drain(grace=1)
    assert got[-1]["error"]["code"] == "shutting_down"
    assert "stop" not in str(got)
    assert "[DONE]" not in got


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (ModelError("no luck"), 502, "upstream_error"),
        (RequestError("no such model", "model_not_found", "model"), 400, "model_not_found"),
        (RuntimeError("a defect"), 500, "server_error"),
    ],
)
async def test_a_turn_that_failed_is_an_error_on_the_wire_and_is_not_asked_again(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    fault: Exception,
    status: int,
    code: str,
) -> None:
    kind = "invalid_request_error" if status == 400 else "server_error"
    async with inside(Script(["half ", fault])) as gateway:
        for path, body in (
            (RESPONSES, {"input": "x"}),
            (COMPLETIONS, {"messages": [{"role": "user", "content": "x"}]}),
        ):
            reply = await gateway.request("POST", path, body)
            assert reply.status == status
            assert reply.headers["x-should-retry"] == "false"
            assert reply.body["error"]["code"] == code
            assert reply.body["error"]["type"] == kind
            events = await streamed(gateway, path, **body)
            done = events[-1]["response"] if path == RESPONSES else events[-1]
            assert done["error"].keys() == {"message", "type", "param", "code"}
            assert done["error"]["code"] == code
        assert events[-2]["choices"][0]["finish_reason"] is None
        response = await ask(gateway, background=True)  # this request itself has not failed
        reply = await gateway.request("GET", f"{RESPONSES}/{response['id']}?stream=true")
        assert b"response.failed" in reply.raw


# ---- tools of servers


async def test_a_call_that_is_to_be_approved_waits_for_a_person(autojump_clock: MockClock) -> None:
    model = Script([CALC, TIME], ["done"])
    tools = mcp(require_approval={"always": {"tool_names": ["calc"]}})
    async with inside(model) as gateway:
        asked = await ask(gateway, tools=tools)
        ran, request = asked["output"]
        assert (ran["type"], ran["name"]) == ("mcp_call", "time")
        assert request == {
            "id": request["id"], "type": "mcp_approval_request", "server_label": "gateway",
            "name": "calc", "arguments": CALC.arguments,
        }  # fmt: skip
        approval = {"type": "mcp_approval_response", "approval_request_id": request["id"]}
        approval |= {"approve": True}
        more = {"previous_response_id": asked["id"], "tools": tools}
        done = await ask(gateway, [approval], **more)
        assert done["output"][0]["output"] == "6*7 = 42"
        assert done["output"][0]["approval_request_id"] == request["id"]
        assert texts(done) == ["done"]
        # a client without a session sends all of it again
        items = [{"role": "user", "content": "hello"}, *asked["output"], approval, *done["output"]]
        assert texts(await ask(gateway, [*items, {"role": "user", "content": "thanks"}])) == [
            "done"
        ]


async def test_the_model_hears_that_a_person_has_refused_a_call(autojump_clock: MockClock) -> None:
    model = Script([CALC], ["as you like"])
    async with inside(model) as gateway:
        asked = await ask(gateway, tools=mcp(require_approval="always"))
        (request,) = asked["output"]
        assert request["type"] == "mcp_approval_request"
        refusal = {"type": "mcp_approval_response", "approval_request_id": request["id"],
                   "approve": False, "reason": "too dear"}  # fmt: skip
        done = await ask(gateway, [refusal], previous_response_id=asked["id"])
        assert [item["type"] for item in done["output"]] == ["message"]
    assert "too dear" in model.prompts[-1][-1].text


@pytest.mark.parametrize(
    ("approval", "waits"),
    [
        (None, False),
        ("never", False),
        ("always", True),
        ({"always": {"tool_names": ["time"]}}, False),
        ({"never": {"tool_names": ["calc"]}}, False),
        ({"never": {"tool_names": ["time"]}}, True),
    ],
)
async def test_approval_is_asked_for_where_the_request_says_so(
    autojump_clock: MockClock, approval: Any, waits: bool
) -> None:
    async with inside(Script([CALC], ["done"])) as gateway:
        response = await ask(gateway, tools=mcp(require_approval=approval))
        kind = "mcp_approval_request" if waits else "mcp_call"
        assert response["output"][0]["type"] == kind


@pytest.mark.parametrize("allowed", [["time"], {"tool_names": ["time"]}, []])
async def test_a_tool_that_is_not_allowed_is_not_offered_and_a_call_of_it_is_an_error(
    autojump_clock: MockClock, allowed: Any
) -> None:
    model = Script([CALC], ["done"])
    async with inside(model) as gateway:
        body = {"input": "hello", "tools": mcp(allowed_tools=allowed)}
        reply = await gateway.request("POST", RESPONSES, body)
        assert reply.status == 502
        assert "a tool that nobody offered: 'calc'" in reply.body["error"]["message"]
    names = [[tool["function"]["name"] for tool in tools] for tools in model.offered]
    assert names == [["time"] if allowed else []]


async def test_a_response_makes_no_more_calls_than_it_may(autojump_clock: MockClock) -> None:
    model = Script([CALC, TIME], [CALC], ["done"])
    async with inside(model) as gateway:
        response = await ask(gateway, tools=mcp(), max_tool_calls=1)
        assert [item["type"] for item in response["output"]] == ["mcp_call", "message"]


async def test_the_choice_of_a_tool_holds_for_one_call(autojump_clock: MockClock) -> None:
    model = Script([CALC], ["done"])
    async with inside(model) as gateway:
        await ask(gateway, tools=mcp(), tool_choice="required")
    assert [settings["tool_choice"] for settings in model.settings] == ["required", "auto"]


async def test_half_a_character_of_a_tool_or_of_the_upstream_can_be_sent(
    autojump_clock: MockClock,
) -> None:
    bad = ToolCall("c", "time", '{"zone": "\\ud800"}')
    fault = RequestError("\ud800", "\ud800", "\ud800")
    async with inside(Script([bad], ["done"], [fault])) as gateway:
        response = await ask(gateway, tools=mcp())
        assert response["output"][0]["status"] == "failed"
        assert texts(response) == ["done"]
        assert (await gateway.request("POST", RESPONSES, {"input": "x"})).status == 400


# ---- what is kept, and what is shown


async def test_a_response_that_is_not_stored_is_nowhere_afterwards(
    autojump_clock: MockClock,
) -> None:
    model = Script(["yes"])
    async with inside(model, "--gate-timeout", "5") as gateway:
        lost = await ask(gateway, "secret", store=False)
        assert lost["store"] is False
        assert (await gateway.request("GET", f"{RESPONSES}/{lost['id']}")).status == 404
        kept = await ask(gateway, "one")
        branch = await ask(gateway, "secret", store=False, previous_response_id=kept["id"])
        assert [m.text for m in model.prompts[-1]] == ["one", "yes", "secret"]
        assert (await gateway.request("GET", f"{RESPONSES}/{branch['id']}")).status == 404
        for id in (lost["id"], branch["id"]):
            session = id.removeprefix("resp_").partition(".")[0]
            items = await gateway.request("GET", f"/v1/conversations/{session}/items")
            assert b"secret" not in items.raw
        reply = await gateway.request(
            "POST", RESPONSES, {"input": "x", "previous_response_id": branch["id"]}
        )
        assert reply.status == 404
        # a conversation that the client has named keeps its items
        named = await ask(gateway, "two", store=False, conversation="c")
        assert (await gateway.request("GET", f"{RESPONSES}/{named['id']}")).status == 404
        assert b"two" in (await gateway.request("GET", "/v1/conversations/c/items")).raw


@pytest.mark.parametrize("truncation", ["auto", "disabled"])
async def test_the_oldest_exchanges_are_dropped_if_the_request_allows_it(
    autojump_clock: MockClock, truncation: str
) -> None:
    full = RequestError("maximum context length is 5", TOO_LONG, "messages")
    model = Script(["1"], ["2"], ["3"], [full], [full], ["4"])
    async with inside(model) as gateway:
        for text in ("one", "two", "three"):
            await ask(gateway, text, conversation="c")
        body = {"input": "four", "conversation": "c", "truncation": truncation}
        reply = await gateway.request("POST", RESPONSES, body)
    if truncation == "auto":
        assert texts(reply.body) == ["4"]
        shown = [[message.text for message in prompt] for prompt in model.prompts[3:]]
        assert shown == [
            ["one", "1", "two", "2", "three", "3", "four"],
            ["three", "3", "four"],
            ["four"],
        ]
    else:
        assert reply.status == 400
        assert reply.body["error"]["code"] == "context_length_exceeded"


FUNCTION = {"type": "function", "parameters": {"type": "object"}}


@pytest.mark.parametrize("mode", ["steer", "collect"])
async def test_requests_that_join_bring_their_instructions_and_tools(
    autojump_clock: MockClock, mode: str
) -> None:
    model = Script(["one ", 5.0, "two"])
    async with inside(model) as gateway, trio.open_nursery() as nursery:

        async def client(text: str, **body: Any) -> None:
            await ask(gateway, text, conversation="c", **body)

        def function(name: str) -> Json:
            return {"tools": [{"name": name, **FUNCTION}]}

        nursery.start_soon(lambda: client("first", instructions="be brief", **function("a")))
        await trio.sleep(1)
        metadata = {"when_busy": mode}
        for text, more in (
            ("second", {"instructions": "be a poet", **function("b")}),
            ("third", function("c")),
        ):
            nursery.start_soon(lambda t=text, m=more: client(t, metadata=metadata, **m))
            await trio.sleep(1)
    assert [message.text for message in model.prompts[0]] == ["be brief", "first"]
    assert model.prompts[-1][0].text == "be a poet"
    assert [message.text for message in model.prompts[-1]][-2:] == ["second", "third"]
    names = [tool["function"]["name"] for tool in model.offered[-1]]
    assert names == (["a", "b", "c"] if mode == "steer" else ["b", "c"])


URL = "data:image/png;base64,iVBORw0KGgo="
IMAGE = {"type": "input_image", "image_url": URL, "detail": "low"}
CHAT_IMAGE = {"type": "image_url", "image_url": {"url": URL, "detail": "low"}}


async def test_images_are_passed_on_but_the_built_in_model_takes_none(
    autojump_clock: MockClock,
) -> None:
    content = [{"type": "input_text", "text": "what is it?"}, IMAGE]
    parts = [{"type": "text", "text": "what is it?"}, CHAT_IMAGE]
    messages = [{"role": "user", "content": parts}]
    bodies = {
        RESPONSES: {"input": [{"role": "user", "content": content}]},
        COMPLETIONS: {"messages": messages},
    }
    model = Script()
    for upstream in (model, Builtin(0)):
        async with inside(upstream) as gateway:
            for path, body in bodies.items():
                reply = await gateway.request("POST", path, body)
                assert reply.status == (200 if upstream is model else 400)
    assert [[*prompt[-1].parts] for prompt in model.prompts] == [parts, parts]


async def test_a_response_of_a_conversation_with_a_long_name_is_found(
    autojump_clock: MockClock,
) -> None:
    async with inside(Script()) as gateway:
        response = await ask(gateway, conversation="c" * 100)
        found = await gateway.request("GET", f"{RESPONSES}/{response['id']}")
    assert found.body == response


# ---- errors, and the shape of a response


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/responses/resp_abc", 404),
        ("GET", "/v1/responses/resp_..", 404),
        ("GET", "/v1/responses/resp_...x", 404),
        ("GET", "/v1/responses/resp_68af4030592c81938ec0a5fbab4a3e9f", 404),
        ("POST", "/v1/responses/resp_x.y/cancel", 404),
        ("GET", "/v1/threads/a/runs/b", 404),
        ("GET", "/v1/nothing", 404),
        ("PUT", "/v1/responses", 405),
        ("GET", "/", 404),
    ],
)
async def test_errors_have_the_shape_of_the_api(
    autojump_clock: MockClock, method: str, path: str, status: int
) -> None:
    async with inside(Script()) as gateway:
        reply = await gateway.request(method, path)
    assert reply.status == status
    assert reply.body["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize("id", ["resp_68af4030592c81938ec0a5fbab4a3e9f", "resp_a.0", "x", ".."])
async def test_a_request_that_goes_on_from_an_unknown_response_is_refused(
    autojump_clock: MockClock, id: str
) -> None:
    model = Script()
    async with inside(model) as gateway:
        body = {"input": "x", "previous_response_id": id}
        reply = await gateway.request("POST", RESPONSES, body)
    assert reply.status == 404
    assert reply.body["error"]["param"] == "previous_response_id"
    assert model.prompts == []


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (LaneFullError("main", 5), 429),
        (KeyConflictError("k", 1, "payload"), 409),
        (TranscriptError("damaged"), 500),
        (JobCancelledError("why"), 500),
        (TypeError("a defect"), 500),
    ],
)
async def test_only_want_of_room_is_a_429_and_no_fault_is_asked_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, fault: Exception, status: int
) -> None:
    def post(*args: object) -> None:
        raise fault

    async with inside(Script()) as gateway:
        monkeypatch.setattr(Engine, "post", post)
        reply = await gateway.request("POST", RESPONSES, {"input": "x"})
    assert reply.status == status
    assert reply.body["error"]["message"]
    assert ("retry-after-ms" in reply.headers) == (status == 429)
    assert reply.headers.get("x-should-retry") == ("false" if status == 500 else None)


@pytest.mark.parametrize("host", ["127.0.0.1:8080, evil.example", "evil.example", "127.0.0.1:x"])
async def test_a_host_with_several_names_is_not_this_machine(
    autojump_clock: MockClock, host: str
) -> None:
    async with inside(Script()) as gateway:
        assert (await gateway.request("GET", "/v1/models", headers={"host": host})).status == 403


REQUIRED = re.findall(
    r"\w+",
    """id object created_at completed_at status incomplete_details model previous_response_id
    instructions output error tools tool_choice truncation parallel_tool_calls text top_p
    presence_penalty frequency_penalty top_logprobs temperature reasoning user usage
    max_output_tokens max_tool_calls store background service_tier metadata safety_identifier
    prompt_cache_key""",
)


async def test_a_response_has_all_fields_that_open_responses_requires(
    autojump_clock: MockClock,
) -> None:
    async with inside(Script()) as gateway:
        response = await ask(gateway, tools=[{"name": "f", **FUNCTION}], temperature=None)
    assert [name for name in REQUIRED if name not in response] == []
    assert isinstance(response["completed_at"], int)
    assert response["temperature"] == 1.0
    assert response["tools"][0]["strict"] is None


# ---- the built-in model


async def test_the_built_in_model_honours_what_it_is_asked_for(autojump_clock: MockClock) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "ages": {"type": "array", "items": {"$ref": "#/$defs/n"}},
        },
        "$defs": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
    }
    form = {"type": "json_schema", "name": "n", "schema": schema}
    f, g = ({"name": name, **FUNCTION} for name in "fg")
    async with inside(Builtin(0)) as gateway:
        response = await ask(gateway, "I am 7", text={"format": form})
        assert texts(response)[0].endswith('"ages": [7]}')
        response = await ask(gateway, "long", max_output_tokens=3)
        assert response["status"] == "incomplete"
        assert len(texts(response)[0].split()) == 3
        response = await ask(gateway, "hello", tools=[f, g], tool_choice="required")
        assert [item["name"] for item in response["output"]] == ["f"]
        choice = {"type": "function", "name": "g"}
        response = await ask(gateway, "f", tools=[f, g], tool_choice=choice)
        assert [item["name"] for item in response["output"]] == ["g"]
        response = await ask(gateway, "f", tools=[f, g], tool_choice="none")
        assert texts(response)
        response = await ask(gateway, "f and g", tools=[f, g], parallel_tool_calls=False)
        assert [item["name"] for item in response["output"]] == ["f"]
        reply = await complete(gateway, stop=["Ask", "me"])
        assert reply.body["choices"][0]["message"]["content"] == "Hello! "
        assert reply.body["choices"][0]["stop_reason"] == "Ask"
