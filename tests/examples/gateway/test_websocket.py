"""The WebSocket of `/v1/responses`: order, steering, errors, and its end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter
from trio.testing import MockClock

from examples.chat_agent.model import ModelError, ToolCall
from examples.gateway.websocket import IDLE_SECONDS, REQUESTS
from examples.openai_api.http import MAX_BODY

from .inside import Gateway, Script, inside

Json = dict[str, Any]
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
STEERS = ("response.steer.accepted", "response.steer.failed", "error")
WEATHER: Json = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


@attrs.define(eq=False)
class Socket:
    """A client of a WebSocket."""

    to_app: trio.MemorySendChannel[Json]
    from_app: trio.MemoryReceiveChannel[Json]

    async def send(self, event: Json | str) -> None:
        """Send an event, or a text."""
        text = event if isinstance(event, str) else json.dumps(event)
        await self.to_app.send({"type": "websocket.receive", "text": text})

    async def create(self, text: str, **more: Any) -> None:
        """Ask for a response."""
        await self.send({"type": "response.create", "input": text, **more})

    async def steer(self, text: Any, id: str) -> None:
        """Steer a response."""
        await self.send({"type": "response.steer", "input": text, "previous_response_id": id})

    async def get(self, *kinds: str) -> Json:
        """Return the next event of one of these kinds, or "response.KIND"."""
        every = [*kinds, *(f"response.{kind}" for kind in kinds)]
        while True:
            message = await self.from_app.receive()
            event: Json = json.loads(message["text"]) if "text" in message else message
            assert event["type"] != "websocket.close" or event["type"] in every
            if event["type"] in every:
                if event["type"] in STEERS:
                    EVENTS.validate_python(event)
                return event


@asynccontextmanager
async def connected(
    gateway: Gateway, headers: Mapping[str, str] | None = None, path: str = "/v1/responses"
) -> AsyncIterator[Socket]:
    """A connection; leaving hangs up."""
    to_app, app_receives = trio.open_memory_channel[Any](100)
    app_sends, from_app = trio.open_memory_channel[Any](1_000)
    pairs = {"host": "127.0.0.1", **(headers or {})}
    scope: Any = {
        "type": "websocket", "path": path, "raw_path": path.encode(),
        "query_string": b"", "root_path": "", "scheme": "ws", "subprotocols": [],
        "headers": [(name.encode(), value.encode()) for name, value in pairs.items()],
        "extensions": {"websocket.http.response": {}},
    }  # fmt: skip
    await to_app.send({"type": "websocket.connect"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gateway.app, scope, app_receives.receive, app_sends.send)
        yield Socket(to_app, from_app)
        await to_app.send({"type": "websocket.disconnect", "code": 1006})


def text_of(event: Json) -> str:
    """The text of the response in an event."""
    items = event["response"]["output"]
    return "".join(part["text"] for item in items for part in item.get("content", ()))


async def test_requests_of_a_connection_are_answered_in_order(autojump_clock: MockClock) -> None:
    model = Script(["one", 2.0], ["two"])
    async with inside(model, "--limit", "8") as gateway, connected(gateway) as socket:
        await socket.create("first")
        await socket.create("second")
        first = await socket.get("created")
        assert first["sequence_number"] == 0
        first = await socket.get("completed")
        assert text_of(first) == "one"
        second = await socket.get("created")
        assert text_of(await socket.get("completed")) == "two"
        await socket.create("third", previous_response_id=second["response"]["id"])
        await socket.get("completed")
    assert [message.text for message in model.prompts[2]] == ["second", "two", "third"]


async def test_a_steer_is_accepted_at_once_and_a_successor_goes_on(
    autojump_clock: MockClock,
) -> None:
    model = Script(["one", 5.0], ["two"])
    async with inside(model) as gateway, connected(gateway) as socket:
        await socket.create("first", instructions="be brief", metadata={"a": "b"})
        id = (await socket.get("in_progress"))["response"]["id"]
        await socket.steer([{"type": "message", "role": "user", "content": "and more"}], id)
        accepted = await socket.get("steer.accepted")
        assert accepted["steer"]["previous_response_id"] == id
        assert trio.current_time() < 1.0
        ended = await socket.get("completed", "incomplete")
        assert ended["response"]["id"] == id
        assert ended["response"]["incomplete_details"] == {"reason": "steered"}
        assert text_of(ended) == "one"
        successor = await socket.get("created")
        assert successor["response"]["previous_response_id"] == id
        assert successor["response"]["metadata"] == {"a": "b"}
        assert (await socket.get("in_progress"))["became"] == "steered"
        ended = await socket.get("completed", "incomplete")
        assert (ended["type"], text_of(ended)) == ("response.completed", "two")
        await socket.create("last", previous_response_id=ended["response"]["id"])
        await socket.get("completed")
    assert [message.role for message in model.prompts[1]] == ["system", "user", "assistant", "user"]
    texts = [message.text for message in model.prompts[2]]
    assert texts == ["first", "one", "and more", "two", "last"]


async def test_each_steer_has_a_successor_in_order(autojump_clock: MockClock) -> None:
    async with inside(Script(["one", 5.0], ["two"])) as gateway, connected(gateway) as socket:
        await socket.create("first")
        id = (await socket.get("in_progress"))["response"]["id"]
        for text in ("second", "third"):
            await socket.steer(text, id)
        accepted = [(await socket.get("steer.accepted"))["steer"]["id"] for _ in range(2)]
        assert len({*accepted}) == 2
        ends = [await socket.get("completed", "incomplete") for _ in range(3)]
    states = [end["response"]["status"] for end in ends]
    assert states == ["incomplete", "incomplete", "completed"]
    assert text_of(ends[-1]) == "two"


async def test_a_steer_comes_back_if_the_response_waits_for_its_client(
    autojump_clock: MockClock,
) -> None:
    call = ToolCall("x", "get_weather", '{"city": "Rome"}')
    model = Script([1.0, call], ["sunny, in short"])
    async with inside(model) as gateway, connected(gateway) as socket:
        await socket.create("the weather", tools=[WEATHER])
        id = (await socket.get("in_progress"))["response"]["id"]
        await socket.steer("in short", id)
        accepted = await socket.get("steer.accepted")
        ended = await socket.get("completed", "incomplete")
        assert ended["type"] == "response.completed"
        failed = await socket.get("steer.failed")
        assert failed["error"]["code"] == "successor_creation_failed"
        assert failed["steer"] == accepted["steer"] | {"input": "in short"}
        call_id = ended["response"]["output"][0]["call_id"]
        outputs = [{"type": "function_call_output", "call_id": call_id, "output": "sunny"}]
        more = {"tools": [WEATHER], "previous_response_id": id}
        await socket.send({"type": "response.create", "input": outputs, **more})
        assert text_of(await socket.get("completed")) == "sunny, in short"
    assert [message.role for message in model.prompts[1]] == ["user", "assistant", "tool"]


async def test_a_steer_that_cannot_be_done_comes_back(autojump_clock: MockClock) -> None:
    async def failed(text: Any, id: str) -> tuple[str, Any]:
        await socket.steer(text, id)
        event = await socket.get("steer.failed", "steer.accepted")
        return event["error"]["code"], event["steer"]["input"]

    model = Script(["one", 5.0], [5.0, ModelError("it broke")])
    async with inside(model) as gateway, connected(gateway) as socket:
        assert await failed("x", "resp_other.1") == ("response_not_found", "x")
        await socket.create("first")
        id = (await socket.get("created"))["response"]["id"]
        bad = [{"type": "function_call_output", "call_id": "x", "output": "y"}]
        await socket.get("in_progress")
        assert await failed(bad, id) == ("invalid_input", bad)
        assert await failed([], id) == ("invalid_input", [])
        more = {"input": "x", "previous_response_id": id, "stream_id": "y"}
        await socket.send({"type": "response.steer", **more})
        assert (await socket.get("steer.failed"))["error"]["code"] == "invalid_input"
        await socket.send({"type": "response.steer", "input": "x"})
        assert (await socket.get("error"))["error"]["param"] == "previous_response_id"
        await socket.get("completed")
        assert await failed("x", id) == ("response_not_found", "x")
        await socket.create("second")
        id = (await socket.get("in_progress"))["response"]["id"]
        await socket.steer("too late", id)
        accepted = await socket.get("steer.accepted")
        await socket.get("failed")
        event = await socket.get("steer.failed")
        assert event["error"]["code"] == "successor_creation_failed"
        assert event["steer"] == accepted["steer"] | {"input": "too late"}
    assert len(model.prompts) == 2


async def test_a_response_that_waits_cannot_be_steered(autojump_clock: MockClock) -> None:
    async with inside(Script(["one", 5.0])) as gateway, connected(gateway) as socket:
        async with connected(gateway) as other:
            await other.create("first")
            await other.get("in_progress")
            await socket.create("second")
            id = (await socket.get("created"))["response"]["id"]
            await socket.steer("x", id)
            assert (await socket.get("steer.failed"))["error"]["code"] == "response_not_active"


async def test_a_client_that_hangs_up_frees_the_slot(autojump_clock: MockClock) -> None:
    async with inside(Script(["never ", 1e6], ["at once"])) as gateway:
        async with connected(gateway) as socket:
            await socket.create("first")
            id = (await socket.get("in_progress"))["response"]["id"]
            await socket.steer("more", id)
            await socket.get("steer.accepted")
        reply = await gateway.request("POST", "/v1/responses", {"input": "second"})
        assert reply.body["status"] == "completed"
        reply = await gateway.request("GET", f"/v1/responses/{id}")
        assert reply.body["status"] == "cancelled"
    assert trio.current_time() < 1e6


async def test_a_response_in_the_background_outlives_the_connection(
    autojump_clock: MockClock,
) -> None:
    async with inside(Script(["one", 5.0])) as gateway:
        async with connected(gateway) as socket:
            await socket.create("first", background=True)
            id = (await socket.get("in_progress"))["response"]["id"]
        await trio.sleep(6.0)
        reply = await gateway.request("GET", f"/v1/responses/{id}")
    assert reply.body["status"] == "completed"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("[", 400),
        ("[]", 400),
        ("{}", 400),
        ('{"type": "response.cancel"}', 400),
        ('{"type": "response.create", "input": []}', 400),
        ('{"type": "response.create", "input": "x", "generate": false}', 400),
        ('{"type": "response.create", "input": "x", "stream": false}', 400),
        ('{"type": "response.create", "input": "x", "stream_id": "y"}', 400),
        ("x" * (MAX_BODY + 1), 413),
    ],
)
async def test_a_frame_that_cannot_be_done_is_an_error_event(
    text: str, status: int, autojump_clock: MockClock
) -> None:
    async with inside(Script()) as gateway, connected(gateway) as socket:
        await socket.send(text)
        event = await socket.get("error")
        assert event["status"] == status
        assert event["error"]["type"] == "invalid_request_error"
        await socket.create("hello")
        assert text_of(await socket.get("completed")) == "all is well"


async def test_errors_say_how_long_to_wait(autojump_clock: MockClock) -> None:
    async with inside(Script(["slow", 5.0]), "--waiting", "1") as gateway:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(gateway.request, "POST", "/v1/responses", {"input": "x"})
            async with connected(gateway) as socket:
                await trio.sleep(0.1)
                await socket.create("hello")
                event = await socket.get("error")
                assert (event["status"], event["error"]["code"]) == (429, "rate_limit_exceeded")
                assert int(event["error"]["headers"]["retry-after-ms"]) >= 200


async def test_few_requests_wait_on_a_connection(autojump_clock: MockClock) -> None:
    async with inside(Script(["slow", 5.0])) as gateway, connected(gateway) as socket:
        await socket.create("first")
        await socket.get("in_progress")
        for _ in range(REQUESTS + 1):
            await socket.create("more")
        assert (await socket.get("error"))["status"] == 429
        for _ in range(REQUESTS + 1):
            await socket.get("completed")


async def test_an_idle_connection_is_closed(autojump_clock: MockClock) -> None:
    async with inside(Script(["one", 2 * IDLE_SECONDS])) as gateway:
        async with connected(gateway) as socket:
            await socket.create("first", background=True)
            await socket.get("failed")  # the time of the turn is over
            before = trio.current_time()
            assert (await socket.get("websocket.close"))["code"] == 1001
            assert trio.current_time() - before <= IDLE_SECONDS


async def test_a_gateway_that_closes_closes_its_connections(autojump_clock: MockClock) -> None:
    async with inside(Script(["one", 5.0])) as gateway:
        async with connected(gateway) as busy, connected(gateway) as idle:
            await busy.create("first")
            await busy.get("in_progress")
            gateway.lanes.close()
            assert (await idle.get("websocket.close"))["code"] == 1001
            assert text_of(await busy.get("completed")) == "one"
            assert (await busy.get("websocket.close"))["code"] == 1001


async def test_a_page_of_another_site_cannot_connect(autojump_clock: MockClock) -> None:
    async with inside(Script()) as gateway:
        async with connected(gateway, {"origin": "http://evil.example"}) as socket:
            assert (await socket.get("websocket.http.response.start"))["status"] == 403
            body = (await socket.get("websocket.http.response.body"))["body"]
            assert "this machine" in json.loads(body)["error"]["message"]


async def test_there_is_no_other_websocket(autojump_clock: MockClock) -> None:
    async with inside(Script()) as gateway, connected(gateway, path="/v1/realtime") as socket:
        assert (await socket.get("websocket.http.response.start"))["status"] == 404
        body = (await socket.get("websocket.http.response.body"))["body"]
        assert json.loads(body)["error"]["code"] == "unknown_url"


async def test_a_client_learns_at_once_what_becomes_of_its_message(
    autojump_clock: MockClock,
) -> None:
    async def places(text: str, when_busy: str) -> None:
        body = {"input": text, "conversation": "c", "metadata": {"when_busy": when_busy}}
        path = "/v1/responses"
        async with gateway.stream("POST", path, body | {"stream": True}) as stream:
            asked = trio.current_time()
            header = stream.headers["x-lanes-position"]
            waits = None
            async for event in stream:
                if event["type"] == "response.queued":
                    waits = event["position"]
                    assert trio.current_time() == asked
                if event["type"] == "response.in_progress":
                    found[text] = header, waits, event.get("became")

    found: dict[str, Any] = {}
    async with inside(Script(["one", 5.0])) as gateway, trio.open_nursery() as nursery:
        modes = {"a": "followup", "b": "steer", "c": "collect", "d": "collect", "e": "followup"}
        for text, when_busy in modes.items():
            nursery.start_soon(places, text, when_busy)
            await trio.sleep(0.1)
    assert found == {
        "a": ("0", None, None),
        "b": ("1", 1, "steered"),
        "c": ("2", 2, "collected"),
        "d": ("3", 3, "collected"),
        "e": ("4", 4, None),
    }
