"""What clients may do at the same time, in combinations that no single feature has."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from examples.chat_agent.model import ToolCall
from trio_lanes.durable import MemoryStore

from .inside import Json, Script, inside

RESPONSES = "/v1/responses"
LOOKUP: Json = {"type": "function", "name": "lookup", "parameters": {"type": "object"}}
CALL = [ToolCall("c", "lookup", "{}")]


async def test_what_is_not_kept_is_in_no_conversation_although_it_steers_one(
    autojump_clock: MockClock,
) -> None:
    model = Script(["zero"], ["one", 5.0], ["two"])
    found: list[Json] = []
    async with inside(model) as gateway:

        async def ask(body: Json) -> None:
            found.append((await gateway.request("POST", RESPONSES, body)).body)

        await ask({"input": "first"})
        after = {"previous_response_id": found[0]["id"]}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, {"input": "second", **after})
            await trio.sleep(1)
            mode = {"store": False, "metadata": {"when_busy": "steer"}}
            nursery.start_soon(ask, {"input": "secret", **after, **mode})
        assert [response["status"] for response in found] == ["completed"] * 3
        await ask({"input": "third", "previous_response_id": found[1]["id"]})
    assert [message.text for message in model.prompts[2]] == ["first", "zero", "secret"]
    texts = [message.text for message in model.prompts[3]]
    assert texts == ["first", "zero", "second", "one", "third"]


async def test_after_a_restart_clients_reach_responses_for_which_there_is_no_room_yet(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    jobs, model, ids = MemoryStore(), Script(["yes", 50.0]), []
    options: Any = {"durable": tmp_path, "jobs": jobs}
    with trio.CancelScope() as process:
        async with inside(model, **options) as gateway:
            for number in range(6):
                body = {"input": "x", "background": True, "conversation": f"c{number}"}
                ids.append((await gateway.request("POST", RESPONSES, body)).body["id"])
            process.cancel()
            await trio.sleep_forever()
    async with inside(model, "--waiting", "1", **options) as gateway:
        roomless = [id for id in ids[1:] if id not in gateway.engine.answers]
        assert len(roomless) >= 3
        cancelled = await gateway.request("POST", f"{RESPONSES}/{roomless[0]}/cancel")
        assert cancelled.body["status"] == "cancelled"
        deleted = await gateway.request("DELETE", f"{RESPONSES}/{roomless[1]}")
        assert deleted.body["deleted"]
        async with gateway.stream("GET", f"{RESPONSES}/{roomless[2]}?stream=true") as stream:
            events = [event async for event in stream]
        assert events[-1]["type"] == "response.completed"
        assert [event["sequence_number"] for event in events] == [*range(len(events))]
        again = await gateway.request("GET", f"{RESPONSES}/{roomless[0]}")
        assert again.body["status"] == "cancelled"
        missing = await gateway.request("GET", f"{RESPONSES}/{roomless[1]}")
        assert missing.status == 404


@pytest.mark.many_seeds(20)
async def test_outputs_that_are_brought_twice_at_once_are_given_to_the_model_once(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model, statuses = Script(CALL, ["done"]), []
    async with inside(model, durable=tmp_path) as gateway:
        first = await gateway.request("POST", RESPONSES, {"input": "x", "tools": [LOOKUP]})
        call = first.body["output"][0]["call_id"]
        output = {"type": "function_call_output", "call_id": call, "output": "42"}

        async def bring(**more: Any) -> None:
            reply = await gateway.request("POST", RESPONSES, {"input": [output], **more})
            statuses.append(reply.status)

        async with trio.open_nursery() as nursery:
            for is_background in (False, True, True):
                nursery.start_soon(partial(bring, background=is_background))
        await trio.sleep(1)
    assert sorted(statuses) == [200, 400, 400]
    assert [[message.role for message in prompt] for prompt in model.prompts] == [
        ["user"],
        ["user", "assistant", "tool"],
    ]


@pytest.mark.parametrize("place", [1, 2])  # of the call, and of its output
async def test_a_call_and_its_output_are_deleted_together(
    place: int, autojump_clock: MockClock
) -> None:
    model = Script(CALL, ["done"])
    async with inside(model) as gateway:
        body = {"input": "x", "tools": [LOOKUP], "conversation": "c"}
        first = await gateway.request("POST", RESPONSES, body)
        call = first.body["output"][0]["call_id"]
        output = {"type": "function_call_output", "call_id": call, "output": "42"}
        await gateway.request("POST", RESPONSES, {"input": [output], "conversation": "c"})
        items = "/v1/conversations/c/items"
        found = (await gateway.request("GET", items + "?order=asc")).body["data"]
        kinds = ["message", "function_call", "function_call_output", "message"]
        assert [item["type"] for item in found] == kinds
        await gateway.request("DELETE", f"{items}/{found[place]['id']}")
        left = (await gateway.request("GET", items + "?order=asc")).body["data"]
        assert left == [found[0], found[3]]
        await gateway.request("POST", RESPONSES, {"input": "y", "conversation": "c"})
    assert [message.text for message in model.prompts[-1]] == ["x", "done", "y"]


async def test_a_response_that_a_drain_suspends_before_its_job_is_stopped_goes_on(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    jobs = MemoryStore()
    options: Any = {"durable": tmp_path, "jobs": jobs}
    async with inside(Script(["half ", 50.0, "whole"]), **options) as gateway:
        body = {"input": "x", "background": True}
        id = (await gateway.request("POST", RESPONSES, body)).body["id"]
        await trio.sleep(1)
        await gateway.lanes.drain(grace=0)  # and the durable lanes a moment later
        await trio.sleep(0.1)
    async with inside(Script(["all is well"]), **options) as gateway:
        await trio.sleep(10)
        found = await gateway.request("GET", f"{RESPONSES}/{id}")
        assert found.body["status"] == "completed"
