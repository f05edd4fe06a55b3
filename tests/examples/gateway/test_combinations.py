"""What clients may do at the same time, in combinations that no single feature has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from trio_lanes.durable import MemoryStore

from .inside import Json, Script, inside

RESPONSES = "/v1/responses"


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
