"""The gateway in the process, as tests open it."""

from __future__ import annotations

from pathlib import Path

import trio
from trio.testing import MockClock

from trio_lanes.durable import MemoryStore

from .inside import Script, inside


async def test_a_request_is_answered_and_a_client_that_hangs_up_frees_the_slot(
    autojump_clock: MockClock,
) -> None:
    model = Script(["one ", 5.0, "two"], ["never ", 1e6], ["three"])
    async with inside(model) as gateway:
        reply = await gateway.request("POST", "/v1/responses", {"input": "hello"})
        assert reply.status == 200
        assert reply.body["output"][0]["content"][0]["text"] == "one two"
        assert trio.current_time() >= 5.0
        async with gateway.stream("POST", "/v1/responses", {"input": "x", "stream": True}) as lost:
            async for event in lost:
                if event["type"] == "response.output_text.delta":
                    break
        reply = await gateway.request("POST", "/v1/responses", {"input": "hello"})
        assert reply.body["output"][0]["content"][0]["text"] == "three"
    assert [prompt[-1].text for prompt in model.prompts] == ["hello", "x", "hello"]
    assert trio.current_time() < 1e6


async def test_a_background_response_is_found_after_a_restart(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    jobs = MemoryStore()
    async with inside(Script(["yes", 5.0]), durable=tmp_path, jobs=jobs) as gateway:
        body = {"input": "hello", "background": True}
        id = (await gateway.request("POST", "/v1/responses", body)).body["id"]
        async with gateway.stream("GET", f"/v1/responses/{id}?stream=true") as stream:
            events = [event async for event in stream]
        assert events[-1]["type"] == "response.completed"
    async with inside(Script(), durable=tmp_path, jobs=jobs) as gateway:
        assert (await gateway.request("GET", f"/v1/responses/{id}")).body == events[-1]["response"]
