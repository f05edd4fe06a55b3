"""A store that is away delays an accepted response, and never makes it a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import trio
from trio.testing import MockClock

from examples.chat_agent.model import ToolCall
from tests.support.away import AWAY_SECONDS, Absence, AwayStore
from trio_lanes.agents import JsonlTranscript

from .inside import Gateway, Script, inside
from .several import several
from .test_once import KEY
from .test_several import CALL, TOOL, ask, end, ended_run, outputs_of, said, text_of

WRITES = (
    "acquire", "write_log", "checkpoint", "lend_slot", "regain_slot", "take",
)  # fmt: skip
READS = ("queue_of", "receive", "log_page", "all_instances")
HERE = {"type": "mcp", "server_label": "gateway"}


async def once_it_is_back(gateway: Gateway, body: Any) -> Any:
    """Make a request until it is accepted; meanwhile it is refused, having changed nothing."""
    while True:
        reply = await gateway.request("POST", "/v1/responses", body)
        if reply.status == 200:
            return reply.body
        assert reply.status == 503, reply.raw
        assert reply.body["error"]["code"] == "store_unavailable"
        await trio.sleep(0.5)


@pytest.mark.parametrize("seconds", AWAY_SECONDS)
@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("name", [*WRITES, *READS])
async def test_a_store_that_is_away_delays_a_response_and_never_makes_it_a_failure(
    name: str, unknown: bool, seconds: float, autojump_clock: MockClock, tmp_path: Path
) -> None:
    absence = Absence(name, seconds, unknown and name in WRITES)
    calls = [ToolCall("1", "time", "{}"), ToolCall("2", "get_weather", "{}")]
    model = Script([1.0, "wait"], [calls[0]], [calls[1]], ["it is sunny"], ["and more"])
    store = AwayStore.made(absence)
    async with several(model, tmp_path, "--limit", "1", store=store) as (one, two):
        await ask(one, "in front", "another")
        first = await ask(one, "how is it?", tools=[HERE, TOOL])
        steer = await ask(two, "and there?", mode="steer")
        absence.armed = True
        asked = await end(two, first)
        assert asked["status"] == "completed", asked["error"]
        answered = asked
        if any(item["type"] == "function_call" for item in asked["output"]):
            # else the turn was attempted anew, and the model has said something else
            body = outputs_of(asked, background=True)
            answered = await end(one, await once_it_is_back(two, body))
            assert answered["status"] == "completed", answered["error"]
        steered = await end(one, steer)
        assert steered["status"] == "completed", steered["error"]
        assert absence.back_at is not None
        await trio.sleep_until(absence.back_at)
        assert {"it is sunny", "and more"} & {*text_of(answered), *text_of(steered)}
        texts = await said(two)
        assert texts[0] == "how is it?"
        assert texts.count("and there?") == 1


@pytest.mark.parametrize("name", ["load", "append"])
@pytest.mark.parametrize("seconds", AWAY_SECONDS)
async def test_a_folder_that_cannot_be_used_for_a_while_delays_a_response(
    seconds: float, name: str, autojump_clock: MockClock, tmp_path: Path
) -> None:
    full_until, works = 0.0, getattr(JsonlTranscript, name)

    async def maybe(*args: Any) -> Any:
        if trio.current_time() < full_until:
            await trio.lowlevel.checkpoint()
            raise OSError(28, "No space left on device")
        return await works(*args)

    with patch.object(JsonlTranscript, name, maybe):
        async with inside(Script(["well"]), durable=tmp_path) as gateway:
            full_until = trio.current_time() + seconds
            for more in ({"background": True}, {}):
                body = {"input": "hello", "conversation": "c", **more}
                reply = await gateway.request("POST", "/v1/responses", body)
                assert reply.status == 200
                path = f"/v1/responses/{reply.body['id']}?stream=true"
                async with gateway.stream("GET", path) as events:
                    last = [event async for event in events][-1]
                assert last["type"] == "response.completed"


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("seconds", AWAY_SECONDS)
async def test_a_completion_waits_for_its_place_while_the_store_is_away(
    seconds: float, unknown: bool, autojump_clock: MockClock, tmp_path: Path
) -> None:
    absence = Absence("enqueue", seconds, unknown)
    async with several(Script(["well"]), tmp_path, store=AwayStore.made(absence)) as (one, _):
        absence.armed = True
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        reply = await one.request("POST", "/v1/chat/completions", body)
        assert absence.back_at is not None
        assert reply.status == 200, reply.raw
        assert reply.body["choices"][0]["message"]["content"] == "well"


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("seconds", AWAY_SECONDS)
@pytest.mark.parametrize("key", [{}, KEY])
async def test_outputs_that_a_store_has_not_answered_are_neither_lost_nor_taken_twice(
    key: dict[str, str], seconds: float, unknown: bool, autojump_clock: MockClock, tmp_path: Path
) -> None:
    absence = Absence("send", seconds, unknown)
    model = Script([CALL], ["it is sunny"])
    async with several(model, tmp_path, store=AwayStore.made(absence)) as (one, two):
        asked = await end(one, await ask(one, "weather", tools=[TOOL]))
        absence.armed = True
        body = outputs_of(asked)
        reply = await two.request("POST", "/v1/responses", body, key)
        assert reply.status == 200, reply.raw
        assert text_of(reply.body) == ["it is sunny"]
        found = await one.request("GET", f"/v1/responses/{reply.body['id']}")
        assert found.body == reply.body
        if key:
            assert (await one.request("POST", "/v1/responses", body, key)).body == reply.body
    assert len(model.prompts) == 2


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("seconds", AWAY_SECONDS)
async def test_a_question_that_a_store_has_not_answered_is_asked_once(
    seconds: float, unknown: bool, autojump_clock: MockClock, tmp_path: Path
) -> None:
    absence = Absence("enqueue", seconds, unknown)
    model = Script(["well"])
    async with several(model, tmp_path, store=AwayStore.made(absence)) as (one, two):
        absence.armed = True
        response = await ask(one, "hello")
        assert text_of(await end(two, response)) == ["well"]
        assert await said(two) == ["hello", "well"]
    assert len(model.prompts) == 1


@pytest.mark.parametrize("name", ["send", "enqueue"])
async def test_a_request_goes_on_by_its_key_when_its_process_ends_before_the_store_has_answered(
    name: str, autojump_clock: MockClock, tmp_path: Path
) -> None:
    absence = Absence(name, 60.0, unknown=True)
    model = Script([CALL], ["well"], ["and more"])
    store = AwayStore.made(absence)
    async with several(model, tmp_path, store=store, count=3) as processes:
        asked = await end(processes[0], await ask(processes[0], "weather", tools=[TOOL]))
        (runs,) = [process for process in processes if process.runs]
        gone, left = [process for process in processes if process is not runs]
        body = outputs_of(asked) if name == "send" else {"input": "hello", "conversation": "d"}
        absence.armed = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gone.request, "POST", "/v1/responses", body, KEY)
            await trio.sleep(10.0)
            gone.end()
            reply = await left.request("POST", "/v1/responses", body, KEY)
            assert text_of(reply.body) == ["well"]
            nursery.cancel_scope.cancel()
    assert len(model.prompts) == 2


async def test_outputs_that_others_have_brought_while_a_store_had_no_answer_are_refused(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    absence = Absence("send", 4.0, unknown=False)
    model, statuses = Script([CALL], ["well"]), list[int]()
    async with several(model, tmp_path, store=AwayStore.made(absence)) as (one, two):
        asked = await end(one, await ask(one, "weather", tools=[TOOL]))
        absence.armed = True

        async def bring(key: dict[str, str]) -> None:
            reply = await two.request("POST", "/v1/responses", outputs_of(asked), key)
            statuses.append(reply.status)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(bring, KEY)
            await trio.sleep(4.5)  # the store is back, and is asked again in a moment
            await bring({})
        await bring(KEY)  # a refusal frees the key
        assert len([*(tmp_path / "responses").iterdir()]) == 2
    assert statuses == [200, 409, 400]


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("waits", [False, True])
async def test_a_run_whose_cancellation_was_answered_ends_though_that_process_ends_at_once(
    waits: bool, unknown: bool, autojump_clock: MockClock, tmp_path: Path
) -> None:
    absence = Absence("cancel", 6.0, unknown)
    model, statuses = Script([CALL] if waits else ["one ", 50.0, "two"]), list[int]()
    function = {"type": "function", "function": {"name": "get_weather"}}
    async with several(model, tmp_path, store=AwayStore.made(absence)) as processes:
        path, here = "/v1/threads/t", processes[0]
        await here.request("POST", f"{path}/messages", {"role": "user", "content": "hello"})
        body = {"assistant_id": "a", "tools": [function]}
        run = (await here.request("POST", f"{path}/runs", body)).body
        await ended_run(here, "t", run, "requires_action" if waits else "in_progress")
        (left,) = [process for process in processes if process.runs]
        (gone,) = [process for process in processes if process is not left]
        absence.armed = True
        while 200 not in statuses:
            reply = await gone.request("POST", f"{path}/runs/{run['id']}/cancel")
            statuses.append(reply.status)
        gone.end()
        assert {*statuses[:-1]} <= {503}
        with trio.fail_after(20):
            await ended_run(left, "t", run, "expired" if waits else "cancelled")
        await trio.sleep(1)
        assert left.runs == 0
