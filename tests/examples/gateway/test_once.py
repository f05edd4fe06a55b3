"""`Idempotency-Key`: a request that comes again gets the answer of the first, and runs nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from examples.chat_agent.model import ModelError
from examples.gateway.serving import COMPLETIONS
from examples.openai_api.once import AGE
from trio_lanes.durable import MemoryStore

from .inside import Gateway, Script, inside
from .several import several

KEY = {"idempotency-key": "once"}
BODY = {"input": "hello", "conversation": "c"}


async def questions(gateway: Gateway, conversation: str = "c") -> list[str]:
    """Return what was asked in a conversation."""
    place = f"/v1/conversations/{conversation}/items?order=asc&limit=1000"
    items = (await gateway.request("GET", place)).body["data"]
    return [item["content"][0]["text"] for item in items if item["role"] == "user"]


@pytest.mark.parametrize("is_durable", [False, True])
async def test_the_same_key_and_body_is_the_same_response_and_another_body_is_a_422(
    is_durable: bool, autojump_clock: MockClock, tmp_path: Path
) -> None:
    model = Script(["yes", 5.0])
    async with inside(model, durable=tmp_path if is_durable else None) as gateway:
        first = await gateway.request("POST", "/v1/responses", BODY, KEY)
        again = await gateway.request("POST", "/v1/responses", BODY, KEY)
        assert first.body["status"] == "completed"
        assert (again.status, again.raw) == (200, first.raw)
        other = await gateway.request("POST", "/v1/responses", BODY | {"input": "bye"}, KEY)
        assert (other.status, other.body["error"]["code"]) == (422, "idempotency_key_reused")
        other = await gateway.request("POST", "/v1/conversations", BODY, KEY)
        assert other.status == 422
        without = await gateway.request("POST", "/v1/responses", BODY)
        assert without.body["id"] != first.body["id"]
        assert await questions(gateway) == ["hello", "hello"]
    assert len(model.prompts) == 2


@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_stream_is_told_from_its_start_also_while_the_first_runs_and_was_left(
    is_durable: bool, autojump_clock: MockClock, tmp_path: Path
) -> None:
    model = Script(["one ", 5.0, "two"])
    body = BODY | {"stream": True}
    async with inside(model, durable=tmp_path if is_durable else None) as gateway:
        async with gateway.stream("POST", "/v1/responses", body, KEY) as first:
            seen = [await anext(first) for _ in range(5)]
        assert seen[-1]["type"] == "response.output_text.delta"
        for _ in range(2):
            async with gateway.stream("POST", "/v1/responses", body, KEY) as again:
                events = [event async for event in again]
            assert events[:5] == seen
            assert [event["sequence_number"] for event in events] == [*range(len(events))]
            assert events[-1]["type"] == "response.completed"
        assert trio.current_time() == pytest.approx(5.0)
    assert len(model.prompts) == 1


async def test_requests_with_one_key_that_come_together_are_one(autojump_clock: MockClock) -> None:
    model = Script(["one ", 5.0, "two"])
    ids = []
    async with inside(model) as gateway:

        async def ask() -> None:
            ids.append((await gateway.request("POST", "/v1/responses", BODY, KEY)).body["id"])

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
    assert (len(ids), len({*ids}), len(model.prompts)) == (5, 1, 1)


@pytest.mark.parametrize("is_durable", [False, True])
async def test_after_a_refusal_the_key_is_free(
    is_durable: bool, autojump_clock: MockClock, tmp_path: Path
) -> None:
    folder = tmp_path if is_durable else None
    async with inside(Script(["yes", 5.0]), "--waiting", "1", durable=folder) as gateway:
        for _ in range(2):
            await gateway.request("POST", "/v1/responses", {"input": "x", "background": True})
        refused = await gateway.request("POST", "/v1/responses", BODY, KEY)
        assert refused.status == 429
        await trio.sleep(20)
        answered = await gateway.request("POST", "/v1/responses", BODY, KEY)
        assert answered.body["status"] == "completed"
        if is_durable:  # its job is not the one that was cancelled
            jobs = await gateway.durable.jobs("responses")
            assert [job.key for job in jobs if job.key.startswith(answered.body["id"])]
        assert await questions(gateway) == ["hello"]


@pytest.mark.many_seeds(20)
async def test_a_request_is_answered_although_a_refused_one_had_its_key_at_the_same_time(
    autojump_clock: MockClock,
) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    statuses = {}
    async with inside(Script(["yes"])) as gateway:

        async def post(n: int) -> None:
            reply = await gateway.request("POST", COMPLETIONS, body | {"n": n}, KEY)
            statuses[n] = reply.status

        async with trio.open_nursery() as nursery:
            nursery.start_soon(post, 2)
            nursery.start_soon(post, 1)
    assert statuses in ({1: 200, 2: 400}, {1: 200, 2: 422})


async def test_answers_are_forgotten_after_a_day_and_the_oldest_of_too_many(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.openai_api.once.KEPT", 3)
    model = Script(["yes"])

    async def ask(gateway: Gateway, key: str = "once") -> str:
        headers = {"idempotency-key": key}
        reply = await gateway.request("POST", "/v1/responses", BODY, headers)
        return str(reply.body["id"])

    async with inside(model) as gateway:
        first = await ask(gateway)
        await trio.sleep(AGE - 10)
        assert await ask(gateway) == first
        await trio.sleep(20)
        second = await ask(gateway)
        assert second != first
        for number in range(4):
            body = {"metadata": {"n": str(number)}}
            headers = {"idempotency-key": str(number)}
            await gateway.request("POST", "/v1/conversations", body, headers)
        assert await ask(gateway) != second


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_a_restart_cut_off_goes_on_when_it_comes_again(
    stream: bool, autojump_clock: MockClock, tmp_path: Path
) -> None:
    jobs = MemoryStore()
    model = Script(["one ", 50.0, "two"], ["three"])
    body: dict[str, Any] = BODY | {"stream": stream}
    async with inside(model, durable=tmp_path, jobs=jobs) as gateway:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gateway.request, "POST", "/v1/responses", body, KEY)
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
    async with inside(model, durable=tmp_path, jobs=jobs) as gateway:
        other = await gateway.request("POST", "/v1/responses", body | {"input": "x"}, KEY)
        assert other.status == 422
        ids = set()
        for _ in range(2):
            async with gateway.stream("POST", "/v1/responses", body, KEY) as reply:
                if stream:
                    events = [event async for event in reply]
                    numbers = [event["sequence_number"] for event in events]
                    assert numbers == [*range(len(events))]
                    response = events[-1]["response"]
                else:
                    reply.raw = b"".join([chunk async for chunk in reply.chunks])
                    response = reply.body
            assert response["output"][-1]["content"][0]["text"] == "three"
            ids.add(response["id"])
        assert len(ids) == 1
        assert await questions(gateway) == ["hello"]
    async with inside(Script(), durable=tmp_path, jobs=jobs) as gateway:
        found = await gateway.request("POST", "/v1/responses", body, KEY)
        assert ids.pop().encode() in found.raw


async def test_what_a_process_left_that_died_before_it_had_its_job_goes_on(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with inside(Script(["never", 1e6]), durable=tmp_path) as gateway:
        with trio.move_on_after(5):
            await gateway.request("POST", "/v1/responses", BODY, KEY)
    jobs = MemoryStore()  # which has no job of it
    async with inside(Script(["yes"]), durable=tmp_path, jobs=jobs) as gateway:
        reply = await gateway.request("POST", "/v1/responses", BODY, KEY)
        assert reply.body["status"] == "completed"
        assert await questions(gateway) == ["hello"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_conversations_threads_and_their_items_are_made_once_for_a_key(
    restarts: bool, autojump_clock: MockClock, tmp_path: Path
) -> None:
    said = {"role": "user", "content": "hello"}
    made: list[list[Any]] = []
    for _ in range(2):
        async with inside(Script(), durable=tmp_path if restarts else None) as gateway:
            for _ in range(1 if restarts else 2):
                ids = []
                for path, body in (
                    ("/v1/conversations", {"items": [said]}),
                    ("/v1/conversations/c/items", {"items": [said]}),
                    ("/v1/threads", {"messages": [said]}),
                    ("/v1/threads/t/messages", said),
                ):
                    key = {"idempotency-key": path}
                    reply = await gateway.request("POST", path, body, key)
                    assert reply.status == 200, reply.body
                    found = reply.body.get("id") or reply.body["data"][0]["id"]
                    ids.append(found)
                made.append(ids)
            for conversation in (made[-1][0], "c"):
                assert await questions(gateway, conversation) == ["hello"]
            for thread in (made[-1][2], "t"):
                listed = await gateway.request("GET", f"/v1/threads/{thread}/messages")
                assert len(listed.body["data"]) == 1
    assert made[0] == made[1]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_completion_is_asked_once_for_a_key(path: str, autojump_clock: MockClock) -> None:
    model = Script(["yes"])
    body = {"model": "any", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
    async with inside(model) as gateway:
        first = await gateway.request("POST", path, body, KEY)
        again = await gateway.request("POST", path, body, KEY)
        assert (again.raw, first.status) == (first.raw, 200)
        other = await gateway.request("POST", path, body | {"max_tokens": 8}, KEY)
        assert other.status == 422
        assert other.body.get("type") == ("error" if path == "/v1/messages" else None)
    assert len(model.prompts) == 1


async def test_a_completion_is_asked_once_for_a_key_over_processes(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model = Script(["one ", 5.0, "two"])
    body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
    replies = []
    async with several(model, tmp_path) as (here, there):

        async def post(process: Gateway) -> None:
            replies.append(await process.request("POST", COMPLETIONS, body, KEY))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(post, here)
            await trio.sleep(1)
            nursery.start_soon(post, there)
            other = await there.request("POST", COMPLETIONS, body | {"stream": False}, KEY)
            assert (other.status, other.body["error"]["code"]) == (422, "idempotency_key_reused")
    async with several(model, tmp_path, count=1) as (later,):
        await post(later)
    assert [reply.raw for reply in replies] == [replies[0].raw] * 3
    assert b"one " in replies[0].raw
    for reply in replies:  # only the ids are of the repeated request
        assert reply.headers.pop("request-id") == reply.headers.pop("x-request-id")
    assert [reply.headers for reply in replies] == [replies[0].headers] * 3
    assert len(model.prompts) == 1


async def test_a_completion_whose_process_died_is_asked_again_by_its_key(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model = Script(["one ", 5.0, "two"], ["all"])
    body = {"messages": [{"role": "user", "content": "hello"}]}
    async with several(model, tmp_path) as (here, there):
        replies = []

        async def post(process: Gateway) -> None:
            replies.append(await process.request("POST", COMPLETIONS, body, KEY))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(post, here)
            await trio.sleep(1)
            here.end()
            await post(there)
            nursery.cancel_scope.cancel()
        assert replies[-1].body["choices"][0]["message"]["content"] == "all"
    assert len(model.prompts) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_completion_that_a_process_left_half_written_goes_on_in_the_next(
    stream: bool, autojump_clock: MockClock, tmp_path: Path
) -> None:
    jobs = MemoryStore()
    said = [{"role": "user", "content": "hello"}]
    body: dict[str, Any] = {"messages": said, "stream": stream}
    async with inside(Script(["one ", 1e6]), durable=tmp_path, jobs=jobs) as gateway:
        with trio.move_on_after(5):
            await gateway.request("POST", COMPLETIONS, body, KEY)
    (file,) = (tmp_path / "responses").iterdir()
    with file.open("ab") as torn:
        torn.write(b'\n[1,{"type":"respon')  # it was killed while it wrote an event
    replies = []
    for model in (Script(["all ", 5.0, "of it"]), Script()):
        async with inside(model, durable=tmp_path, jobs=jobs) as gateway:
            other = await gateway.request("POST", COMPLETIONS, body | {"stop": "x"}, KEY)
            assert (other.status, other.body["error"]["code"]) == (422, "idempotency_key_reused")
            for _ in range(2):
                replies.append(await gateway.request("POST", COMPLETIONS, body, KEY))
    assert [reply.raw for reply in replies] == [replies[0].raw] * 4
    assert (b"one " in replies[0].raw, b"of it" in replies[0].raw) == (False, True)
    assert len(model.prompts) == 0


async def test_a_stream_whose_process_dies_says_so_and_its_key_has_the_whole_answer(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model = Script(["one ", 5.0, "two"], ["all"])
    body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
    async with several(model, tmp_path) as processes:
        here, there = processes
        async with here.stream("POST", COMPLETIONS, body, KEY) as stream:
            seen = [await anext(stream) for _ in range(2)]
            if here.runs:  # then the client reads on at the other
                async with there.stream("POST", COMPLETIONS, body, KEY) as other:
                    assert [await anext(other) for _ in range(2)] == seen
                    here.end()
                    events = [event async for event in other]
            else:
                there.end()
                events = [event async for event in stream]
        assert [event["error"]["code"] for event in events] == ["shutting_down"]
        (left,) = [process for process in processes if not process.scope.cancel_called]
        again = await (await left.another()).request("POST", COMPLETIONS, body, KEY)
        assert (b"one " in again.raw, b"all" in again.raw) == (False, True)
    assert len(model.prompts) == 2


async def test_without_room_on_the_disk_a_completion_is_answered_but_not_kept(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    model = Script(["yes", 5.0])

    def full(file: int, data: bytes) -> int:
        raise OSError("no space left")

    async with inside(model, durable=tmp_path) as gateway:
        with monkeypatch.context() as patched:
            patched.setattr("examples.openai_api.log.os.write", full)
            refused = await gateway.request("POST", COMPLETIONS, body, KEY)
            assert (refused.status, refused.body["error"]["code"]) == (503, "store_unavailable")
            assert model.prompts == []
        async with gateway.stream("POST", COMPLETIONS, body, KEY), trio.open_nursery() as nursery:
            nursery.start_soon(gateway.request, "POST", COMPLETIONS, body, KEY)
            await trio.sleep(1)
            with monkeypatch.context() as patched:
                patched.setattr("examples.openai_api.log.os.write", full)
                await trio.sleep(9)
        again = await gateway.request("POST", COMPLETIONS, body, KEY)
        assert (again.status, len(model.prompts)) == (200, 1)


async def test_a_completion_that_was_refused_leaves_its_key_and_answers_go_after_a_day(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    async with inside(Script(["yes"]), durable=tmp_path) as gateway:
        assert (await gateway.request("POST", COMPLETIONS, body | {"n": 2}, KEY)).status == 400
        assert not (tmp_path / "responses").exists()
        assert (await gateway.request("POST", COMPLETIONS, body, KEY)).status == 200
        (file,) = (tmp_path / "responses").iterdir()
    os.utime(file, (0, 0))
    async with inside(Script(), durable=tmp_path):
        assert not file.exists()


async def test_a_failed_turn_is_the_answer_to_its_key(autojump_clock: MockClock) -> None:
    model = Script([ModelError("the upstream is gone")])
    async with inside(model) as gateway:
        for _ in range(2):
            reply = await gateway.request("POST", "/v1/responses", BODY, KEY)
            assert reply.status == 502
        assert await questions(gateway) == ["hello"]
    assert len(model.prompts) == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_key_whose_completion_has_failed_does_not_ask_the_model_again(
    path: str, autojump_clock: MockClock
) -> None:
    model = Script(["half ", ModelError("down")])
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "model": "m"}
    async with inside(model) as gateway:
        replies = [await gateway.request("POST", path, body, KEY) for _ in range(2)]
    assert [reply.status for reply in replies] == [502, 502]
    assert replies[0].raw == replies[1].raw
    assert len(model.prompts) == 1


async def test_a_redirection_leaves_the_key_to_the_request_that_follows_it(
    autojump_clock: MockClock,
) -> None:
    async with inside(Script()) as gateway:
        assert (await gateway.request("POST", "/v1/responses/", BODY, KEY)).status == 307
        assert (await gateway.request("POST", "/v1/responses", BODY, KEY)).status == 200
