"""Several processes of the gateway: what arrives in one reaches a turn that runs in another."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from examples.chat_agent.model import ToolCall
from examples.openai_api.wire import TERMINAL
from tests.support import hangs
from trio_lanes import JobCancelledError

from .inside import Reply, Script
from .several import Process, several

Json = dict[str, Any]
TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
CALL = ToolCall("1", "get_weather", "{}")


async def ask(process: Process, text: str, conversation: str = "c", **more: Any) -> Json:
    """Ask in the background, and return the response as it is then."""
    mode = more.pop("mode", None)
    body = {"input": text, "conversation": conversation, "background": True, **more}
    body |= {"metadata": {"when_busy": mode}} if mode else {}
    reply = await process.request("POST", "/v1/responses", body)
    assert reply.status == 200, reply.raw
    return dict(reply.body)


async def end(process: Process, response: Json) -> Json:
    """Wait for the end of a response, in any process."""
    async with process.stream("GET", f"/v1/responses/{response['id']}?stream=true") as events:
        last = [event async for event in events][-1]
    return dict(last["response"])


async def until(process: Process, response: Json, text: str) -> None:
    """Wait until the response says that text."""
    async with process.stream("GET", f"/v1/responses/{response['id']}?stream=true") as events:
        async for event in events:
            if event.get("delta") == text:
                return
    raise AssertionError(text)


def text_of(response: Json) -> list[str]:
    return [part["text"] for item in response["output"] for part in item.get("content", ())]


async def said(process: Process, conversation: str = "c") -> list[str]:
    path = f"/v1/conversations/{conversation}/items?order=asc&limit=100"
    items = (await process.request("GET", path)).body["data"]
    return [part["text"] for item in items for part in item.get("content", ())]


def outputs_of(response: Json, **more: Any) -> Json:
    calls = [item["call_id"] for item in response["output"] if item["type"] == "function_call"]
    assert calls, response
    items = [{"type": "function_call_output", "call_id": id, "output": "sunny"} for id in calls]
    return {"input": items, "previous_response_id": response["id"], "tools": [TOOL], **more}


async def test_outputs_of_tools_reach_the_turn_in_every_process(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model = Script(*([CALL], ["it is sunny"]) * 6)
    async with several(model, tmp_path, count=3) as processes:
        for place in range(6):
            first, second = processes[place % 3], processes[(place + 1) % 3]
            body = {"input": f"weather {place}", "tools": [TOOL]}
            asked = await first.request("POST", "/v1/responses", body)
            answer = await second.request("POST", "/v1/responses", outputs_of(asked.body))
            assert answer.status == 200
            assert text_of(answer.body) == ["it is sunny"]
            assert model.prompts[-1][-1].text == "sunny"
            late = await first.request("POST", "/v1/responses", outputs_of(asked.body))
            assert late.status == 400


@pytest.mark.many_seeds(5)
@pytest.mark.parametrize("background", [False, True])
async def test_outputs_that_two_clients_of_a_turn_bring_at_once_are_taken_once(
    autojump_clock: MockClock, tmp_path: Path, background: bool
) -> None:
    model, statuses = Script(["one ", 5.0], [CALL], ["it is sunny"]), list[Any]()
    async with several(model, tmp_path) as processes:
        here, there = processes
        await until(here, await ask(here, "hello"), "one ")
        more = {"mode": "collect", "tools": [TOOL]}
        both = [await ask(one, f"weather {place}", **more) for place, one in enumerate(processes)]
        both = [await end(here, one) for one in both]  # which share a turn, and so its call

        async def bring(process: Process, response: Json) -> None:
            body = outputs_of(response, background=background)
            reply = await process.request("POST", "/v1/responses", body)
            found = await end(there, reply.body) if reply.status == 200 else reply.body
            error = found["error"]  # of a response, too, that was begun before it was refused
            statuses.append(error["type"] if error else reply.status)

        async with trio.open_nursery() as nursery:
            for process, response in zip(processes, both, strict=True):
                nursery.start_soon(bring, process, response)
    assert 200 in statuses
    assert {*statuses} & {"invalid_request_error", "conflict_error"}
    assert len(model.prompts) == 3


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/responses/{}/cancel"),
        ("DELETE", "/v1/responses/{}"),
        ("POST", "/v1/responses"),
    ],
)
async def test_what_a_client_waits_for_at_a_process_that_ends_is_refused_and_asked_again(
    autojump_clock: MockClock, tmp_path: Path, method: str, path: str
) -> None:
    model, statuses = Script(["one ", 5.0, "two"]), []
    async with several(model, tmp_path) as processes:
        first = await ask(processes[0], "hello")
        await until(processes[0], first, "one ")
        (left,) = [process for process in processes if process.runs]
        (gone,) = [process for process in processes if process is not left]
        path, body = path.format(first["id"]), {"input": "more", "conversation": "c"}

        async def post(process: Process) -> None:
            reply = await process.request(method, path, body)
            statuses.append(reply.status)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(post, gone)
            await trio.sleep(0.01)  # the response is looked at each 0.05 s
            gone.end()
        assert trio.current_time() < 5.0
        await post(left)
    assert statuses == [503, 200]


async def test_a_conversation_stays_in_a_process_whichever_accepts_its_questions(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    turns = 6
    async with several(Script(*([5.0, "well"],) * 2 * turns), tmp_path, count=3) as processes:
        where: dict[str, list[int]] = {"a": [], "b": []}
        for place in range(turns):
            for name, ran in where.items():
                asked = await ask(processes[place % 3], "hello", name)
                await trio.sleep(1.5)
                ran.append([process.runs for process in processes].index(1))
                assert text_of(await end(processes[0], asked)) == ["well"]
        assert [len(set(ran)) for ran in where.values()] == [1, 1]


async def test_a_question_in_place_of_outputs_is_refused_in_every_process(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model = Script([CALL])
    async with several(model, tmp_path) as (here, there):
        asked = await end(here, await ask(here, "weather", tools=[TOOL]))
        for process in (here, there):
            body = {"input": "never mind", "conversation": "c"}
            refused = await process.request("POST", "/v1/responses", body)
            assert refused.status == 400
            assert asked["output"][0]["call_id"] in refused.body["error"]["message"]
        model.answers.append(["well"])
        stop = await ask(there, "stop", mode="interrupt")
        assert text_of(await end(here, stop)) == ["well"]
        assert text_of(await end(here, await ask(here, "hello"))) == ["well"]
        late = await here.request("POST", "/v1/responses", outputs_of(asked))
        assert late.status in (400, 409)


async def test_a_request_with_a_key_is_asked_once_in_all_processes(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    key = {"idempotency-key": "k"}
    model = Script(["one ", 5.0], [CALL], ["sunny"])
    async with several(model, tmp_path) as (here, there):
        body = {"input": "hello", "conversation": "c"}
        replies: list[Json] = []

        async def post(process: Process) -> None:
            reply = await process.request("POST", "/v1/responses", body, key)
            replies.append(reply.body)

        async with trio.open_nursery() as nursery:
            for process in (here, there, here):
                nursery.start_soon(post, process)
        assert [reply["id"] for reply in replies] == [replies[0]["id"]] * 3
        assert [text_of(reply) for reply in replies] == [["one "]] * 3
        other = await there.request("POST", "/v1/responses", {"input": "x"}, key)
        assert other.status == 422
        asked = await end(here, await ask(here, "weather", tools=[TOOL]))
        for process in (here, there):
            more = outputs_of(asked)
            reply = await process.request("POST", "/v1/responses", more, {"idempotency-key": "o"})
            assert text_of(reply.body) == ["sunny"]
        assert len(model.prompts) == 3


async def test_a_request_is_steered_into_a_turn_of_another_process(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model = Script(["one ", 5.0], ["two"])
    async with several(model, tmp_path) as (here, there):
        for process, name in ((there, "c"), (here, "d")):
            model.prompts.clear()
            first = await ask(here, "hello", name)
            await until(there, first, "one ")
            steer = await ask(process, "be quick", name, mode="steer")
            assert text_of(await end(here, first)) == ["one ", "two"]
            assert text_of(await end(here, steer)) == ["two"]
            assert [message.text for message in model.prompts[1]] == ["hello", "one ", "be quick"]
            assert await said(there, name) == ["hello", "one ", "be quick", "two"]


async def test_collected_requests_of_all_processes_share_a_turn(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model = Script(["one ", 5.0], ["both"])
    async with several(model, tmp_path) as (here, there):
        first = await ask(here, "hello")
        await until(here, first, "one ")
        more = [await ask(there, "a", mode="collect"), await ask(here, "b", mode="collect")]
        assert [text_of(await end(here, one)) for one in more] == [["both"], ["both"]]
        assert [message.text for message in model.prompts[1]] == ["hello", "one ", "a", "b"]


@pytest.mark.parametrize("mode", ["interrupt", "rollback"])
async def test_a_turn_is_interrupted_from_another_process(
    autojump_clock: MockClock, tmp_path: Path, mode: str
) -> None:
    model = Script(["one ", 1e6], ["two"])
    async with several(model, tmp_path) as (here, there):
        first = await ask(here, "hello")
        await until(here, first, "one ")
        waiting = await ask(here, "later")
        stop = await ask(there, "stop", mode=mode)
        assert (await end(here, first))["status"] == "cancelled"
        assert text_of(await end(here, stop)) == ["two"]
        assert text_of(await end(there, waiting)) == ["two"]
        kept = ["hello", "one "] if mode == "interrupt" else []
        assert await said(there) == [*kept, "stop", "two", "later", "two"]
        assert trio.current_time() < 1e5


async def test_a_request_is_rejected_while_a_turn_runs_in_another_process(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with several(Script(["one ", 5.0]), tmp_path) as (here, there):
        first = await ask(here, "hello")
        await until(here, first, "one ")
        body = {"input": "x", "conversation": "c", "metadata": {"when_busy": "reject"}}
        for process in (here, there):
            refused = await process.request("POST", "/v1/responses", body)
            assert (refused.status, refused.body["error"]["code"]) == (409, "conversation_busy")
        await end(there, first)
        assert (await there.request("POST", "/v1/responses", body)).status == 200


async def test_a_request_replaces_one_that_waits_in_another_process(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model = Script(["one ", 5.0], ["two"])
    async with several(model, tmp_path) as (here, there):
        first = await ask(here, "hello")
        await until(here, first, "one ")
        old, new = await ask(here, "old", mode="replace"), await ask(there, "new", mode="replace")
        assert (await end(there, old))["status"] == "cancelled"
        assert text_of(await end(here, new)) == ["two"]
        assert (await end(there, first))["status"] == "completed"
        assert await said(here) == ["hello", "one ", "new", "two"]


async def test_a_session_has_20_waiting_requests_over_all_processes(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with several(Script(["one ", 5.0]), tmp_path) as (here, there):
        await until(here, await ask(here, "hello"), "one ")
        for place in range(20):
            body = {"input": "x", "conversation": "c", "background": True}
            reply = await (here, there)[place % 2].request("POST", "/v1/responses", body)
            assert reply.headers["x-lanes-position"] == str(place + 1)
        body = {"input": "x", "conversation": "c"}
        for process in (here, there):
            assert (await process.request("POST", "/v1/responses", body)).status == 429


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_waiting_bounds_what_waits_for_turns_over_all_processes(
    path: str, autojump_clock: MockClock, tmp_path: Path
) -> None:
    options = ("--limit", "1", "--waiting", "4")
    said = {"input": "hello", "messages": [{"role": "user", "content": "hello"}]}
    body = {"/v1/responses": "input", "/v1/chat/completions": "messages"}[path]
    statuses: list[int] = []
    async with several(Script(["one ", 5.0]), tmp_path, *options) as processes:
        await until(processes[0], await ask(processes[0], "first"), "one ")

        async def post(process: Process) -> None:
            reply = await process.request("POST", path, {body: said[body]})
            statuses.append(reply.status)
            if reply.status == 429:
                assert int(reply.headers["retry-after-ms"]) > 0

        async with trio.open_nursery() as nursery:
            for place in range(10):
                nursery.start_soon(post, processes[place % 2])
                await trio.sleep(0.1)
            assert statuses == [429] * 6
    assert statuses == [429] * 6 + [200] * 4


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_a_user_with_many_conversations_leaves_room_to_others_over_all_processes(
    path: str, autojump_clock: MockClock, tmp_path: Path
) -> None:
    said = {"input": "hello", "messages": [{"role": "user", "content": "hello"}]}
    body = {"/v1/responses": "input", "/v1/chat/completions": "messages"}[path]
    statuses: Counter[int] = Counter()
    options = ("--limit", "1", "--waiting", "20")
    model = Script(*[["hello ", 1.0]] * 50)
    async with several(model, tmp_path, *options) as processes:

        async def post(place: int, **more: Any) -> int:
            sent = {body: said[body]} | more
            return (await processes[place % 2].request("POST", path, sent)).status

        async def flood(place: int) -> None:
            statuses[await post(place, user="flood")] += 1

        for _ in range(2):  # what has ended takes no room
            async with trio.open_nursery() as nursery:
                for place in range(60):
                    nursery.start_soon(flood, place)
                await trio.sleep(0.1)
                assert statuses == {429: 60 - 10}
                assert [await post(place, user="a") for place in (0, 1)] == [200, 200]
            assert statuses == {429: 60 - 10, 200: 10}
            statuses.clear()


async def test_a_client_cancels_its_own_response_of_a_turn_in_another_process(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model = Script(["one ", 5.0], ["two ", 5.0, "three"])
    async with several(model, tmp_path) as (here, there):
        first = await ask(here, "hello")
        await until(here, first, "one ")
        steer, waiting = await ask(there, "steer", mode="steer"), await ask(here, "later")
        ended = await there.request("POST", f"/v1/responses/{waiting['id']}/cancel")
        assert ended.body["status"] == "cancelled"
        await until(there, steer, "two ")
        ended = await here.request("POST", f"/v1/responses/{steer['id']}/cancel")
        assert ended.body["status"] == "cancelled"
        assert (await end(there, first))["status"] == "completed"
        assert await said(there) == ["hello", "one ", "steer", "two three"]


async def test_completions_have_places_among_the_turns_of_all_processes(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model = Script(["one ", 5.0])
    body = {"messages": [{"role": "user", "content": "hello"}]}
    async with several(model, tmp_path, "--limit", "1") as (here, there):
        first = await ask(here, "hello")
        await until(here, first, "one ")
        for process in (here, there):
            begun = trio.current_time()
            reply = await process.request("POST", "/v1/chat/completions", body)
            assert reply.body["choices"][0]["message"]["content"] == "one "
            assert trio.current_time() - begun > 4.9
        assert trio.current_time() > 14.9
        async with trio.open_nursery() as nursery:  # the other way round
            nursery.start_soon(here.request, "POST", "/v1/chat/completions", body)
            await trio.sleep(1.0)
            begun = trio.current_time()
            await end(there, await ask(there, "hello"))
            assert trio.current_time() - begun > 8.9


async def test_a_completion_whose_client_left_gives_its_place_back(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
    async with several(Script(["one ", 1e6], ["two"]), tmp_path, "--limit", "1") as (here, there):
        async with here.stream("POST", "/v1/chat/completions", body) as runs:
            await anext(runs)
            async with there.stream("POST", "/v1/chat/completions", body) as waits:
                await anext(waits)
        assert text_of(await end(there, await ask(there, "hello"))) == ["two"]
        jobs = await here.durable.statistics()
        assert (jobs.waiting, jobs.running) == (0, 0)


async def test_places_that_a_dead_process_waited_for_are_cleared(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with several(Script(["one ", 300.0]), tmp_path, "--limit", "1") as (here, there):
        first = await ask(here, "hello")
        await until(here, first, "one ")
        (own,) = [name for name in there.durable._handlers if name.startswith("place_of_")]
        job = await there.durable.submit(own, "place_1", lane="main")
        there.end()
        with pytest.raises(JobCancelledError):
            await here.durable.job(job.id).wait()
        assert trio.current_time() < 200.0


async def test_a_turn_goes_on_with_the_outputs_when_its_process_has_died_before(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model = Script(["let me see", CALL], ["sunny ", 5.0, "it is"], ["sunny ", "it is"])
    async with several(model, tmp_path, count=4) as processes:
        left = [*processes]

        def end_its_process(response: Json) -> Process:
            (runs,) = [one for one in left if one.runs]
            left.remove(runs)
            runs.end()
            return left[0]

        first = await end(processes[0], await ask(processes[0], "weather", tools=[TOOL]))
        process = end_its_process(first)
        await trio.sleep(1.0)
        again = await process.request("GET", f"/v1/responses/{first['id']}")
        assert again.body == first
        body = outputs_of(first, background=True)
        second = (await process.request("POST", "/v1/responses", body)).body
        await until(process, second, "sunny ")
        process = end_its_process(second)
        ended = await end(process, second)
        assert (ended["status"], text_of(ended)) == ("completed", ["sunny it is"])
        assert await said(process, first["conversation"]["id"]) == [
            "weather", "let me see", "sunny it is",
        ]  # fmt: skip
        prompts = [[message.text for message in prompt] for prompt in model.prompts]
        assert prompts[1] == prompts[2] == ["weather", "let me see", "sunny"]


async def test_a_request_that_was_steered_behind_outputs_is_asked_again_by_another_process(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model = Script([CALL], ["sunny ", 5.0], ["quick ", 5.0], ["sunny ", 5.0], ["quick"])
    async with several(model, tmp_path) as processes:
        first = await end(processes[0], await ask(processes[0], "weather", tools=[TOOL]))
        body = outputs_of(first, background=True)
        second = (await processes[0].request("POST", "/v1/responses", body)).body
        await until(processes[0], second, "sunny ")
        steer = await ask(processes[1], "be quick", mode="steer")
        await until(processes[1], steer, "quick ")
        (runs,) = [process for process in processes if process.runs]
        (left,) = [process for process in processes if process is not runs]
        runs.end()
        for response in (second, steer):
            assert (await end(left, response))["status"] == "completed"
        assert await said(left) == ["weather", "sunny ", "be quick", "quick"]


async def test_what_is_not_kept_steers_no_turn_that_is_kept(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model = Script(["zero"], ["one", 5.0], ["two"])
    async with several(model, tmp_path) as (here, there):
        first = (await here.request("POST", "/v1/responses", {"input": "first"})).body
        after = {"previous_response_id": first["id"], "metadata": {"when_busy": "steer"}}
        async with trio.open_nursery() as nursery:
            body = {"input": "second", **after}
            nursery.start_soon(here.request, "POST", "/v1/responses", body)
            await trio.sleep(1)
            body = {"input": "secret", "store": False, **after}
            nursery.start_soon(there.request, "POST", "/v1/responses", body)
    assert [message.text for message in model.prompts[2]] == ["first", "zero", "secret"]


async def ended_run(process: Process, thread: str, run: Json, *states: str) -> Json:
    """Read a run until it is in one of the states."""
    while True:
        found = await process.request("GET", f"/v1/threads/{thread}/runs/{run['id']}")
        assert found.status == 200, found.raw
        if found.body["status"] in states:
            return dict(found.body)
        await trio.sleep(0.1)


async def test_runs_of_a_thread_go_on_at_once_in_every_process_and_keep_their_order(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model = Script(["one ", 5.0], ["two"])
    async with several(model, tmp_path) as (here, there):
        (thread := (await here.request("POST", "/v1/threads", {})).body["id"])
        path, runs = f"/v1/threads/{thread}", []
        for text, process, other in (("a", here, there), ("b", there, here)):
            message = {"role": "user", "content": text}
            posted = await process.request("POST", f"{path}/messages", message)
            assert posted.status == 200, posted.raw
            listed = await other.request("GET", f"{path}/messages")
            assert listed.body["data"][0]["content"][0]["text"]["value"] == text
            runs.append((await other.request("POST", f"{path}/runs", {"assistant_id": "x"})).body)
            await ended_run(process, thread, runs[-1], "in_progress", "completed")
        await ended_run(here, thread, runs[1], "completed")
        assert (await ended_run(there, thread, runs[0], "in_progress"))["id"] == runs[0]["id"]
        await ended_run(there, thread, runs[0], "completed")
        listed = await there.request("GET", f"{path}/messages?order=asc")
        texts = [one["content"][0]["text"]["value"] for one in listed.body["data"]]
        assert texts == ["a", "one ", "b", "two"]


async def test_a_message_is_kept_when_its_run_is_cancelled_and_answered_by_the_next(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model = Script([1e6], ["two"])
    async with several(model, tmp_path) as (here, there):
        body = {"messages": [{"role": "user", "content": "a"}]}
        thread = (await here.request("POST", "/v1/threads", body)).body["id"]
        path = f"/v1/threads/{thread}"
        run = (await there.request("POST", f"{path}/runs", {"assistant_id": "x"})).body
        await ended_run(here, thread, run, "in_progress")
        again = await here.request("POST", f"{path}/runs", {"assistant_id": "x"})
        assert again.status == 400
        await here.request("POST", f"{path}/runs/{run['id']}/cancel")
        await ended_run(there, thread, run, "cancelled")
        run = (await here.request("POST", f"{path}/runs", {"assistant_id": "x"})).body
        await ended_run(there, thread, run, "completed")
        listed = await here.request("GET", f"{path}/messages?order=asc")
        texts = [one["content"][0]["text"]["value"] for one in listed.body["data"]]
        assert texts == ["a", "two"]


async def test_a_cancellation_of_a_run_is_refused_at_a_process_that_ends_and_asked_again(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with several(Script(["one ", 5.0, "two"]), tmp_path) as processes:
        path, replies = "/v1/threads/t", list[Reply]()
        await processes[0].request("POST", f"{path}/messages", {"role": "user", "content": "hello"})
        run = (await processes[0].request("POST", f"{path}/runs", {"assistant_id": "a"})).body
        await ended_run(processes[0], "t", run, "in_progress")
        (left,) = [process for process in processes if process.runs]
        (gone,) = [process for process in processes if process is not left]

        async def cancel(process: Process) -> None:
            replies.append(await process.request("POST", f"{path}/runs/{run['id']}/cancel"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel, gone)
            await trio.sleep(0.01)  # the response is looked at each 0.05 s
            gone.end()
        await cancel(left)
        assert [reply.status for reply in replies] == [503, 200]
        assert replies[1].body["status"] == "cancelled"


async def test_a_run_of_a_thread_begins_once_for_its_key_in_any_process(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model, key = Script(["yes", 5.0]), {"idempotency-key": "once"}
    async with several(model, tmp_path) as (here, there):
        path = "/v1/threads/t"
        ids = []
        for process in (here, there):
            message = {"role": "user", "content": "hello"}
            await here.request("POST", f"{path}/messages", message)  # both have one to ask
            reply = await process.request("POST", f"{path}/runs", {"assistant_id": "a"}, key)
            ids.append(reply.body["id"])
        assert ids[0] == ids[1]
        other = {"assistant_id": "b"}
        assert (await there.request("POST", f"{path}/runs", other, key)).status == 422
        await ended_run(there, "t", {"id": ids[0]}, "completed")
    assert len(model.prompts) == 1


async def test_outputs_that_come_again_with_their_key_are_for_the_run_once(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model, key = Script([CALL], ["done"]), {"idempotency-key": "once"}
    function = {"type": "function", "function": {"name": "get_weather"}}
    async with several(model, tmp_path) as (here, there):
        path = "/v1/threads/t"
        await here.request("POST", f"{path}/messages", {"role": "user", "content": "hello"})
        body = {"assistant_id": "a", "tools": [function]}
        run = (await here.request("POST", f"{path}/runs", body)).body
        run = await ended_run(here, "t", run, "requires_action")
        (call,) = run["required_action"]["submit_tool_outputs"]["tool_calls"]
        outputs = {"tool_outputs": [{"tool_call_id": call["id"], "output": "42"}]}
        place = f"{path}/runs/{run['id']}/submit_tool_outputs"
        for process in (here, there, here):
            again = await process.request("POST", place, outputs, key)
            assert (again.status, again.body["id"]) == (200, run["id"])
        assert (await there.request("POST", place, outputs)).status == 400
        await ended_run(there, "t", run, "completed")
    assert len(model.prompts) == 2


async def test_outputs_that_come_twice_at_once_are_for_a_run_once(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model, statuses = Script([CALL], ["done"]), []
    async with several(model, tmp_path) as processes:
        here, path = processes[0], "/v1/threads/t"
        await here.request("POST", f"{path}/messages", {"role": "user", "content": "hello"})
        tool = {"type": "function", "function": {"name": "get_weather"}}
        body = {"assistant_id": "a", "tools": [tool]}
        run = (await here.request("POST", f"{path}/runs", body)).body
        run = await ended_run(here, "t", run, "requires_action")
        (call,) = run["required_action"]["submit_tool_outputs"]["tool_calls"]
        outputs = {"tool_outputs": [{"tool_call_id": call["id"], "output": "42"}]}

        async def submit(process: Process) -> None:
            place = f"{path}/runs/{run['id']}/submit_tool_outputs"
            statuses.append((await process.request("POST", place, outputs)).status)

        async with trio.open_nursery() as nursery:
            for process in (*processes, *processes):
                nursery.start_soon(submit, process)
        await ended_run(here, "t", run, "completed")
    assert sorted(statuses) == [200, 400, 400, 400]
    assert len(model.prompts) == 2


async def test_outputs_reach_the_run_of_a_thread_in_every_process(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    function = {"name": "get_weather", "parameters": {"type": "object"}}
    body = {"assistant_id": "x", "tools": [{"type": "function", "function": function}]}
    message = {"messages": [{"role": "user", "content": "weather"}]}
    async with several(Script([CALL], [CALL], ["it is sunny"], [CALL]), tmp_path) as (here, there):
        thread = (await here.request("POST", "/v1/threads", message)).body["id"]
        path = f"/v1/threads/{thread}"
        run = (await here.request("POST", f"{path}/runs", body)).body
        for process in (here, there):
            run = await ended_run(process, thread, run, "requires_action")
            (call,) = run["required_action"]["submit_tool_outputs"]["tool_calls"]
            outputs = {"tool_outputs": [{"tool_call_id": call["id"], "output": "sunny"}]}
            where = f"{path}/runs/{run['id']}/submit_tool_outputs"
            run = (await process.request("POST", where, outputs)).body
        await ended_run(here, thread, run, "completed")
        await here.request("POST", f"{path}/messages", message["messages"][0])
        run = (await here.request("POST", f"{path}/runs", body)).body
        await ended_run(there, thread, run, "requires_action")
        await there.request("POST", f"{path}/runs/{run['id']}/cancel")
        await ended_run(here, thread, run, "expired")


class Calls(Script):
    """A model that takes its time, calls a tool when it is asked for the weather, and counts."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng, self.now, self.most = rng, 0, 0

    async def _events(self, answer: Any) -> AsyncIterator[Any]:
        last = self.prompts[-1][-1]
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            for _ in range(self.rng.randrange(3)):
                yield "word "
                await trio.sleep(self.rng.random())
            if last.role == "user" and "weather" in last.text:
                yield CALL
            else:
                yield f"<{last.text}>"
        finally:
            self.now -= 1


@pytest.mark.seeds(10)
async def test_random_histories_over_processes_that_come_and_go(
    autojump_clock: MockClock, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    model = Calls(rng)
    asked: dict[str, str] = {}  # {response: text}
    modes = [None, None, "steer", "collect", "interrupt", "rollback", "replace", "reject"]

    async def post(where: str, body: Json | None = None) -> Reply:
        """Ask a process, and another if it ends meanwhile, and has done nothing."""
        while (reply := await rng.choice(left).request("POST", where, body)).status == 503:
            pass
        return reply

    async def client(number: int) -> None:
        for count in range(6):
            await trio.sleep(rng.random() * 2)
            kind = rng.choice(["weather", "question", "completion"])
            text, name = f"{kind} {number}.{count}", f"c{rng.randrange(3)}"
            if kind == "completion":
                body: Json = {"messages": [{"role": "user", "content": text}]}
                with contextlib.suppress(RuntimeError):  # of a process that has ended
                    await rng.choice(left).request("POST", "/v1/chat/completions", body)
                continue
            body = {"input": text, "conversation": name, "background": True, "tools": [TOOL]}
            body["metadata"] = {"when_busy": mode} if (mode := rng.choice(modes)) else {}
            reply = await post("/v1/responses", body)
            if reply.status != 200:
                assert reply.status in (400, 409), reply.raw
                return  # busy, or calls wait
            response = dict(reply.body)
            asked[response["id"]] = text
            if rng.random() < 0.2:
                await trio.sleep(rng.random())
                cancelled = await post(f"/v1/responses/{response['id']}/cancel")
                assert cancelled.body["status"] in TERMINAL
            response = await end(left[0], response)
            if any(item["type"] == "function_call" for item in response["output"]):
                await trio.sleep(rng.random() * 3)
                reply = await post("/v1/responses", outputs_of(response, background=True))
                # the turn was interrupted, or another client has brought them
                assert reply.status in (200, 400, 409), reply.raw
                if reply.status == 200:
                    asked[reply.body["id"]] = ""
                    await end(left[0], reply.body)

    options = "--gate-timeout", "20"
    async with hangs.within(2_000), several(model, tmp_path, *options, count=3) as processes:
        left = [*processes]
        async with trio.open_nursery() as clients:
            for number in range(8):
                clients.start_soon(client, number)
            for _ in range(4):
                await trio.sleep(rng.random() * 4)
                gone = left.pop(rng.randrange(1, 3))  # clients read on at the first
                left.append(await gone.another())
                gone.end()
        here = left[0]
        for id, text in asked.items():
            response = (await here.request("GET", f"/v1/responses/{id}")).body
            assert response["status"] in ("completed", "cancelled", "failed"), response
            assert response["status"] != "failed" or not text, response["error"]
        texts = [text for name in ("c0", "c1", "c2") for text in await said(here, name)]
        for text in filter(None, asked.values()):
            assert texts.count(text) <= 1
        await trio.sleep(130.0)  # also places of processes that have gone are cleared
        numbers = await here.durable.statistics()
        assert (numbers.waiting, numbers.running) == (0, 0)
        assert 1 < model.most <= 2
