"""The OpenAI-compatible client, against an endpoint on the loopback: a real server on Trio."""

import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import trio

from examples.chat_agent.agent import MAX_TRIES
from examples.chat_agent.builtin_model import BuiltinModel
from examples.chat_agent.chat import run_chat
from examples.chat_agent.limits import Limits
from examples.chat_agent.model import (
    Cut,
    Event,
    Message,
    Model,
    ModelBusyError,
    ModelError,
    Stopped,
    ToolCall,
    Usage,
)
from examples.chat_agent.openai_model import OpenAIModel
from examples.chat_agent.openai_server import Endpoint, serve
from examples.chat_agent.screen import Screen
from examples.chat_agent.tools import bundled_tools
from tests.examples.chat_agent.held_model import HeldModel

pytestmark = pytest.mark.real_processes

PATIENCE = 300  # seconds, on a machine that has much else to do

Step = str | Callable[[], Awaitable[object]]


class Script:
    """Lines that somebody types; a function is waited for before the next one."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = iter(steps)

    async def read(self, prompt: str) -> str | None:
        for step in self._steps:
            if isinstance(step, str):
                return step
            await step()
        return None


class Together:
    """The built-in model, which gives no answer before so many have asked."""

    name = "together"

    def __init__(self, number: int) -> None:
        self._missing = number
        self._all_here = trio.Event()

    @asynccontextmanager
    async def stream(self, messages: Sequence[Message]) -> AsyncIterator[AsyncIterator[Event]]:
        self._missing -= 1
        if self._missing <= 0:
            self._all_here.set()
        await self._all_here.wait()
        async with BuiltinModel(0.001).stream(messages) as events:
            yield events


@asynccontextmanager
async def open_endpoint(asked: Model | None = None) -> AsyncIterator[tuple[Endpoint, OpenAIModel]]:
    endpoint = Endpoint(BuiltinModel(0) if asked is None else asked)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(serve, endpoint)
            async with OpenAIModel.open(url, "secret", "tiny", bundled_tools().values()) as model:
                yield endpoint, model
            nursery.cancel_scope.cancel()


async def shown(model: OpenAIModel, *steps: Step, limit: int = 4) -> list[str]:
    screen: list[str] = []
    limits = Limits().with_turns(limit)
    assert await run_chat(model, Screen(screen.append), Script(steps), limits=limits) == 0
    return screen


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  (an endpoint has no event for it)
        await trio.sleep(0.005)


async def test_an_answer_is_streamed_piece_by_piece() -> None:
    async with open_endpoint() as (endpoint, model):
        async with model.stream([Message("user", "hello")]) as events:
            pieces = [event async for event in events]
        async with endpoint.model.stream([Message("user", "hello")]) as events:
            assert pieces == [event async for event in events]
        assert len(pieces) > 5
    assert endpoint.keys == {"Bearer secret"}
    (request,) = endpoint.requests
    assert request["stream"] is True
    assert request["model"] == "tiny"
    assert request["stream_options"] == {"include_usage": True}
    assert [tool["function"]["name"] for tool in request["tools"]] == [
        "time",
        "calc",
        "search",
        "send_mail",
        "ask_subagent",
    ]


async def test_tools_are_called_and_their_results_sent_in_pairs() -> None:
    async with open_endpoint() as (endpoint, model):
        lines = await shown(model, "calc 6*7, and search pausing", "hello")
    assert lines[0] == "me * calc: 6*7 = 42"
    assert lines[1].startswith("me * search: Pausing: ")
    assert lines[2] == "me | 6*7 = 42"
    assert lines[-1].startswith("me | Hello!")
    user, asked, calc, search = endpoint.requests[1]["messages"]
    assert user == {"role": "user", "content": "calc 6*7, and search pausing"}
    assert [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in asked["tool_calls"]
    ] == [("calc", {"expression": "6*7"}), ("search", {"query": "pausing"})]
    assert [calc["tool_call_id"], search["tool_call_id"]] == [
        call["id"] for call in asked["tool_calls"]
    ]
    assert len(endpoint.requests) == 3


@pytest.mark.parametrize(
    ("asked", "ending"),
    [
        (
            "http_error",
            "me * failed: the endpoint answered 500: out of order",
        ),
        ("cut_off", "me * failed: the endpoint ended its answer in the middle"),
        ("garbage", "me * failed: the endpoint sent invalid JSON: '{what is this'"),
        ("please fail", "me * failed: the endpoint reports: the built-in model failed, as it was"),
    ],
)
async def test_an_error_of_the_endpoint_is_one_line_and_the_next_message_is_answered(
    asked: str, ending: str
) -> None:
    async with open_endpoint() as (endpoint, model):
        lines = await shown(model, asked, "hello")
    assert [line for line in lines if line.startswith("me * ")] == [lines[-2]]
    assert lines[-2].startswith(ending)
    assert lines[-1].startswith("me | Hello!")
    assert len(endpoint.requests) == 2, "nothing is tried twice"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("busy 0.2", ["me * the model is busy; the next attempt is in 0.2 s"]),
        ("busy 100ms twice", ["me * the model is busy; the next attempt is in 0.1 s"] * 2),
    ],
)
async def test_a_429_is_asked_again_after_the_time_that_its_header_says(
    asked: str, told: list[str]
) -> None:
    async with open_endpoint() as (endpoint, model):
        began = trio.current_time()
        lines = await shown(model, asked, "hello")
        assert trio.current_time() - began >= 0.2
    assert lines[: len(told)] == told
    assert lines[len(told)].startswith(f"me | You said: {asked}")
    assert lines[-1].startswith("me | Hello!")
    assert len(endpoint.requests) == len(told) + 2


async def test_a_429_that_does_not_end_is_one_line_after_some_tries() -> None:
    async with open_endpoint() as (endpoint, model):
        lines = await shown(model, "busy 0 always", "hello")
    assert lines[-2] == "me * failed: the endpoint answered 429: slow down"
    assert lines[-1].startswith("me | Hello!")
    assert len(endpoint.requests) == MAX_TRIES + 1


async def test_a_429_without_a_header_does_not_say_for_how_long() -> None:
    async with open_endpoint() as (_, model):
        with pytest.raises(ModelBusyError) as caught:
            async with model.stream([Message("user", "busy")]):
                raise AssertionError
    assert caught.value.retry_after is None


async def test_an_endpoint_that_is_not_there_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # so that no other program has the port, and does not listen
        url = "http://{}:{}/v1".format(*taken.getsockname())
        async with OpenAIModel.open(url, "", "tiny", ()) as model:
            (line,) = await shown(model, "hello")
    assert line == "me * failed: no answer of the endpoint: ConnectError"


async def test_a_stream_that_stalls_is_stopped_and_the_endpoint_sees_it_go() -> None:
    async with open_endpoint() as (endpoint, model):

        async def stalled() -> None:
            await until(lambda: endpoint.streams == 1)

        async def gone() -> None:
            await until(lambda: endpoint.gave_up == 1)

        lines = await shown(model, "slow 600", stalled, "/stop", gone, "hello")
        assert endpoint.streams == 0
    assert lines[0] == "me * stopped"
    assert lines[1].startswith("me | Hello!")


async def test_a_stream_is_stopped_in_the_middle_of_its_words() -> None:
    async with open_endpoint(HeldModel()) as (endpoint, model):
        async with model.stream([Message("user", "one")]) as events:
            async for _ in events:
                break
        await until(lambda: endpoint.gave_up == 1)


async def test_twenty_sessions_stream_at_once() -> None:
    async with open_endpoint(Together(20)) as (endpoint, model):
        typed = [f"/as user{n} long 5" for n in range(20)]
        lines = await shown(model, *typed, limit=20)
        assert endpoint.most_streams == 20
    for n in range(20):
        mine = [line.split(" | ")[1] for line in lines if line.startswith(f"user{n} |")]
        assert [line[:2] for line in mine] == ["1.", "2.", "3.", "4.", "5."]


async def test_the_endpoint_never_sees_more_requests_than_the_lane_allows() -> None:
    async with open_endpoint(Together(3)) as (endpoint, model):
        lines = await shown(model, *(f"/as user{n} hello" for n in range(20)), limit=3)
        assert endpoint.most_streams == 3
    assert len(lines) == 20


# Endpoints that differ


async def answer_to(
    *chunks: object,
    content_type: str = "text/event-stream",
    settings: dict[str, Any] | None = None,
) -> list[Event]:
    """What the client makes of a response with these chunks."""
    data = "".join(
        f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n" for chunk in chunks
    )

    def respond(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": content_type}, text=data)

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(respond)) as client:
        model = OpenAIModel(client, "http://endpoint/v1/", "tiny", (), settings)
        async with model.stream([Message("user", "hello")]) as events:
            return [event async for event in events]


def delta(*, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"delta": fields, "finish_reason": finish}]}


async def test_an_endpoint_may_say_that_it_is_done_in_either_way() -> None:
    assert await answer_to(delta(content="yes"), "[DONE]") == ["yes"]
    assert await answer_to(delta(content="yes"), delta(finish="stop")) == ["yes"]


@pytest.mark.parametrize("stop", ["END", ["x", "END"], ["x"]])
@pytest.mark.parametrize("reason", ["END", 7, None])
@pytest.mark.parametrize("finish", ["stop", "length"])
async def test_the_stop_text_is_known_if_the_endpoint_says_it_and_it_is_one_of_those_asked_for(
    stop: str | list[str], reason: object, finish: str
) -> None:
    end = {"choices": [{"delta": {}, "finish_reason": finish, "stop_reason": reason}]}
    events = await answer_to(delta(content="yes"), end, settings={"stop": stop})
    is_known = reason == "END" and finish == "stop" and "END" in stop
    assert [event for event in events if isinstance(event, Stopped)] == [Stopped("END")] * is_known


@pytest.mark.parametrize(
    ("usages", "told"),
    [
        ([{"total_tokens": 7}], [Usage(7)]),
        ([{"total_tokens": 3}, {}, {"total_tokens": 7}, None], [Usage(7)]),
        ([{"total_tokens": 0}], [Usage(0)]),
        (
            [
                {
                    "total_tokens": 18,
                    "prompt_tokens": 11,
                    "completion_tokens": 7,
                    "prompt_tokens_details": {"cached_tokens": 8},
                    "completion_tokens_details": {"reasoning_tokens": 3},
                }
            ],
            [Usage(18, 11, 7, 8, 3)],
        ),
        ([{"total_tokens": 7, "prompt_tokens": "4", "prompt_tokens_details": 5}], [Usage(7)]),
        ([], []),
        ([{"total_tokens": -1}], []),
        ([{"total_tokens": "7"}], []),
        ([{"total_tokens": True}], []),
        ([{"total_tokens": 10**400}], []),
    ],
)
async def test_the_last_usage_that_makes_sense_is_told_once_at_the_end(
    usages: list[object], told: list[Event]
) -> None:
    chunks = [{"choices": [], "usage": usage} for usage in usages]
    assert await answer_to(delta(content="yes"), *chunks, "[DONE]") == ["yes", *told]


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_an_answer_that_was_cut_says_so_and_has_no_calls(reason: str) -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a": "b'}}
    assert await answer_to(
        delta(content="yes"), delta(tool_calls=[call]), delta(finish=reason), "[DONE]"
    ) == ["yes", Cut(reason)]


async def test_settings_are_in_the_request_and_those_of_tools_only_with_tools() -> None:
    bodies: list[dict[str, Any]] = []

    def respond(request: httpx2.Request) -> httpx2.Response:
        bodies.append(json.loads(request.content))
        return httpx2.Response(
            200, text="data: [DONE]\n\n", headers={"content-type": "text/event-stream"}
        )

    settings = {"model": "large", "temperature": 0.5, "tool_choice": "none"}
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(respond)) as client:
        for tools in ((), bundled_tools().values()):
            model = OpenAIModel(client, "http://endpoint/v1/", "tiny", tools, settings)
            async with model.stream([Message("user", "hello", name="ann")]) as events:
                assert [event async for event in events] == []
    without, with_tools = bodies
    assert (without["model"], without["temperature"]) == ("large", 0.5)
    assert without["messages"] == [{"role": "user", "content": "hello", "name": "ann"}]
    assert "tool_choice" not in without
    assert with_tools["tool_choice"] == "none"


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (400, {"code": "invalid_value", "param": "temperature"}, "invalid_value"),
        (404, {"code": None}, "refused"),
        (400, {"message": "the maximum context length is 5 tokens"}, "context_length_exceeded"),
        (422, "no", "refused"),
        (401, {"code": "invalid_api_key"}, None),
        (500, {"code": "overloaded"}, None),
    ],
)
async def test_what_the_endpoint_refuses_is_the_fault_of_the_request_or_not(
    status: int, error: Any, code: str | None
) -> None:
    def respond(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, json={"error": error})

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(respond)) as client:
        model = OpenAIModel(client, "http://endpoint/v1/", "tiny", ())
        with pytest.raises(ModelError) as raised:
            async with model.stream([Message("user", "hello")]):
                pass
    assert getattr(raised.value, "code", None) == code
    if isinstance(error, dict) and "param" in error:
        assert getattr(raised.value, "param", None) == error["param"]


async def test_chunks_without_text_are_passed_over() -> None:
    assert await answer_to(
        delta(role="assistant", content=None),
        delta(content=""),
        {"choices": []},
        {"choices": None, "usage": {}},
        {"choices": [{"delta": None}]},
        delta(content="yes"),
        "[DONE]",
    ) == ["yes"]


async def test_whole_calls_without_an_index_are_calls_of_their_own() -> None:
    calls = [
        {"id": "a", "function": {"name": "time", "arguments": "{}"}},
        {"id": "b", "function": {"name": "calc", "arguments": '{"expression'}},
        {"function": {"arguments": '": "1"}'}},
    ]
    assert await answer_to(*(delta(tool_calls=[call]) for call in calls), "[DONE]") == [
        ToolCall("a", "time", "{}"),
        ToolCall("b", "calc", '{"expression": "1"}'),
    ]


async def test_a_call_without_an_id_gets_one_that_no_other_has() -> None:
    call = {"index": 0, "function": {"name": "time"}}
    ids = set()
    for _ in range(2):
        (found,) = await answer_to(delta(tool_calls=[call]), "[DONE]")
        assert isinstance(found, ToolCall)
        assert (found.name, found.arguments) == ("time", "")
        ids.add(found.id)
    assert len(ids) == 2


async def test_text_that_utf_8_cannot_hold_does_not_enter_the_conversation() -> None:
    chunk = '{"choices": [{"delta": {"content": "half \\ud83d"}}]}'
    assert await answer_to(chunk, "[DONE]") == ["half �"]
    call = {"id": "\ud83d", "function": {"name": "ti\ud83dme", "arguments": "\ud83d"}}
    assert await answer_to(delta(tool_calls=[call]), "[DONE]") == [ToolCall("�", "ti�me", "�")]


@pytest.mark.parametrize(
    "chunk", ["[]", "3", '{"choices": [3]}', '{"choices": [{"delta": "x"}]}', "[" * 100_000]
)
async def test_a_chunk_of_another_shape_is_a_model_error(chunk: str) -> None:
    with pytest.raises(ModelError, match="the endpoint sent"):
        await answer_to(chunk, "[DONE]")


async def test_a_web_page_instead_of_a_stream_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="SSEError"):
        await answer_to("[DONE]", content_type="text/html")
