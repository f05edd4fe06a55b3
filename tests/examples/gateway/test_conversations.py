"""Conversations, threads, and responses that have ended, as clients read and change them."""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from examples.chat_agent.model import ToolCall
from examples.gateway.engine import KEPT
from trio_lanes.durable import MemoryStore

from .gateways import CLIENTS, client, gateway
from .inside import Gateway, Json, Script, inside

FUNCTION = {"type": "function", "name": "lookup", "parameters": {"type": "object"}}
CALL = ToolCall("x", "lookup", "{}")


def said(text: str) -> Json:
    return {"role": "user", "content": text}


def output(call: str, text: str = "42") -> Json:
    return {"type": "function_call_output", "call_id": call, "output": text}


def texts(prompt: Any) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in prompt]


class Client:
    """Requests to the gateway, each of which has to succeed unless a status is given."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        reply = await self._gateway.request(method, f"/v1/{path}", body)
        assert reply.status == status, reply.raw
        return reply.body

    async def ask(self, status: int = 200, **body: Any) -> Any:
        return await self("POST", "responses", body, status)

    async def items(self, conversation: str = "c") -> list[Json]:
        path = f"conversations/{conversation}/items?order=asc&limit=1000"
        found: list[Json] = (await self("GET", path))["data"]
        return found

    async def ended(self, thread: str, run: Json) -> str:
        while run["status"] in ("queued", "in_progress", "cancelling"):
            await trio.sleep(0.1)
            run = await self("GET", f"threads/{thread}/runs/{run['id']}")
        return str(run["status"])

    async def told(self, thread: str) -> list[str]:
        listed = (await self("GET", f"threads/{thread}/messages?order=asc&limit=100"))["data"]
        return [message["content"][0]["text"]["value"] for message in listed]


# ---- conversations


async def test_a_conversation_keeps_the_items_and_the_metadata_it_is_made_with(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model = Script(["yes"])
    async with inside(model, durable=tmp_path) as gateway:
        ask = Client(gateway)
        items = [said("my name is Zoe"), {"role": "assistant", "content": "hello Zoe"}]
        made = await ask("POST", "conversations", {"items": items, "metadata": {"who": "zoe"}})
        id = made["id"]
        await ask.ask(input="what is my name?", conversation=id)
        assert texts(model.prompts[0]) == [
            ("user", "my name is Zoe"), ("assistant", "hello Zoe"), ("user", "what is my name?"),
        ]  # fmt: skip
        kept = await ask.items(id)
        assert [item["role"] for item in kept] == ["user", "assistant", "user", "assistant"]
        assert len({item["id"] for item in kept}) == 4
        assert kept[1]["content"][0]["type"] == "output_text"
    async with inside(Script(), durable=tmp_path) as gateway:
        ask = Client(gateway)
        assert await ask("GET", f"conversations/{id}") == made
        assert await ask.items(id) == kept
        updated = await ask("POST", f"conversations/{id}", {"metadata": {"who": "ann"}})
        assert updated == made | {"metadata": {"who": "ann"}}
        assert await ask("GET", f"conversations/{id}") == updated
        assert (await ask("GET", "conversations/never-made"))["metadata"] == {}
        await ask("POST", f"conversations/{id}", {}, 400)
        await ask("POST", "conversations", {"items": ["x"]}, 400)
        await ask("POST", "conversations", {"items": [{"type": "nonsense"}]}, 400)


async def test_items_are_added_found_listed_in_pages_and_deleted(
    autojump_clock: MockClock,
) -> None:
    model = Script(["one"], ["two"])
    async with inside(model) as gateway:
        ask = Client(gateway)
        await ask.ask(input="question", conversation="c")
        call = {"type": "function_call", "call_id": "k", "name": "f", "arguments": "{}"}
        more = [said("a"), said("b"), call, output("k")]
        added = (await ask("POST", "conversations/c/items", {"items": more}))["data"]
        items = await ask.items()
        assert items[2:] == added
        assert [item["type"] for item in items[4:]] == ["function_call", "function_call_output"]

        for order in ("asc", "desc"):
            found: list[Json] = []
            while True:
                after = f"&after={found[-1]['id']}" if found else ""
                page = await ask("GET", f"conversations/c/items?limit=4&order={order}{after}")
                found += page["data"]
                assert page["first_id"] == page["data"][0]["id"]
                assert page["last_id"] == page["data"][-1]["id"]
                if not page["has_more"]:
                    break
            assert found == (items if order == "asc" else items[::-1])
        assert (await ask("GET", "conversations/empty/items"))["first_id"] is None
        for wrong in ("limit=0", "limit=x", "order=up", "after=nothing"):
            await ask("GET", f"conversations/c/items?{wrong}", status=400)

        for item in items:
            assert await ask("GET", f"conversations/c/items/{item['id']}") == item
        await ask("DELETE", f"conversations/c/items/{items[1]['id']}")
        await ask("DELETE", f"conversations/c/items/{added[0]['id']}")
        assert await ask.items() == [items[0], *items[3:]]
        await ask("GET", f"conversations/c/items/{items[1]['id']}", status=404)
        await ask("DELETE", f"conversations/c/items/{items[1]['id']}", status=404)
        await ask("POST", "conversations/c/items", {"items": []}, 400)
        await ask.ask(input="next", conversation="c")
        shown = [("user", "question"), ("user", "b"), ("assistant", ""), ("tool", "42")]
        assert texts(model.prompts[-1]) == [*shown, ("user", "next")]


async def test_a_deleted_conversation_is_empty_also_of_what_a_running_turn_writes(
    autojump_clock: MockClock,
) -> None:
    model = Script(["one"], ["two", 5.0], ["three"])
    async with inside(model) as gateway:
        ask = Client(gateway)
        await ask("POST", "conversations/c", {"metadata": {"a": "b"}})
        await ask.ask(input="question", conversation="c")
        running = await ask.ask(input="slow", conversation="c", background=True)
        await trio.sleep(1)
        deleted = await ask("DELETE", "conversations/c")
        assert deleted == {"id": "c", "object": "conversation.deleted", "deleted": True}
        await trio.sleep(10)
        assert (await ask("GET", f"responses/{running['id']}"))["status"] == "completed"
        assert await ask.items() == []
        assert (await ask("GET", "conversations/c"))["metadata"] == {}
        await ask.ask(input="new", conversation="c")
        assert texts(model.prompts[-1]) == [("user", "new")]


@pytest.mark.seeds(4)
async def test_clients_and_the_model_see_what_was_written_and_not_deleted(
    seed: int, autojump_clock: MockClock, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    wanted: dict[str, list[str]] = {"a": [], "b": []}  # {conversation: texts}
    number = 0
    for _ in range(3):  # with restarts between
        model = Script(["yes"])
        async with inside(model, durable=tmp_path) as gateway:
            ask = Client(gateway)
            for _ in range(20):
                number += 1
                name = rng.choice([*wanted])
                texts, place = wanted[name], f"conversations/{name}"
                does = rng.choice(["add", "ask", "ask", "delete", "delete", "clear"])
                if does == "add":
                    new = [f"item {number}.{n}" for n in range(rng.randrange(1, 4))]
                    await ask("POST", f"{place}/items", {"items": [*map(said, new)]})
                    texts += new
                elif does == "ask":
                    await ask.ask(input=f"question {number}", conversation=name)
                    texts.append(f"question {number}")
                    assert [message.text for message in model.prompts[-1]] == texts
                    texts.append("yes")
                elif does == "delete" and texts:
                    at = rng.randrange(len(texts))
                    item = (await ask.items(name))[at]
                    await ask("DELETE", f"{place}/items/{item['id']}")
                    del texts[at]
                elif does == "clear" and rng.random() < 0.2:
                    await ask("DELETE", place)
                    texts.clear()
                assert [item["content"][0]["text"] for item in await ask.items(name)] == texts


@pytest.mark.real_processes
def test_the_conversations_session_of_the_agents_sdk() -> None:
    with gateway() as url:
        client(sys.executable, CLIENTS / "agents_sdk.py", url, "session")


# ---- responses that have ended


async def test_responses_behind_many_newer_ones_are_what_they_were(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    model = Script(["yes"], [CALL], ["no", ValueError("broken")], ["wait", 1e6], ["ok"])
    async with inside(model, "--limit", "9", durable=tmp_path) as gateway:
        ask = Client(gateway)
        meta = {"metadata": {"a": "b"}}
        first = [await ask.ask(input=[said("a"), said("b")], **meta)]
        first.append(await ask.ask(input="call", tools=[FUNCTION], conversation="c", **meta))
        await gateway.request("POST", "/v1/responses", {"input": "fail", **meta})
        failed = [*gateway.engine.answers.values()][-1].object()
        assert failed["status"] == "failed"
        stopped = await ask.ask(input="stop", background=True, **meta)
        await trio.sleep(1)
        first += [failed, await ask("POST", f"responses/{stopped['id']}/cancel")]
        inputs = [await ask("GET", f"responses/{one['id']}/input_items") for one in first]
        for _ in range(KEPT + 5):
            await ask.ask(input="more")
        assert not gateway.engine.answers.keys() & {one["id"] for one in first}
        assert [await ask("GET", f"responses/{one['id']}") for one in first] == first
        assert [one["status"] for one in first] == [
            "completed", "completed", "failed", "cancelled",
        ]  # fmt: skip
        again = [await ask("GET", f"responses/{one['id']}/input_items") for one in first]
        assert again == inputs
        assert [item["content"][0]["text"] for item in inputs[0]["data"]] == ["b", "a"]
        async with gateway.stream("GET", f"/v1/responses/{first[0]['id']}?stream=true") as stream:
            events = [event async for event in stream]
        assert events[-1]["response"] == first[0]
    async with inside(Script(), durable=tmp_path) as gateway:
        ask = Client(gateway)
        assert [await ask("GET", f"responses/{one['id']}") for one in first] == first


@pytest.mark.parametrize("background", [False, True])
async def test_a_deleted_response_is_unknown(
    background: bool, autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with inside(Script(["yes"], ["never", 1e6]), durable=tmp_path) as gateway:
        ask = Client(gateway)
        for text in ("done", "runs"):
            body = {"input": text, "conversation": "c"}
            if background or text == "done":
                id = (await ask.ask(**body, background=background))["id"]
            else:
                async with gateway.stream("POST", "/v1/responses", body | {"stream": True}) as s:
                    id = (await anext(s))["response"]["id"]
                    assert (await ask("DELETE", f"responses/{id}"))["deleted"]
                    await ask("GET", f"responses/{id}", status=404)
                    continue
            await trio.sleep(5)
            deleted = await ask("DELETE", f"responses/{id}")
            assert deleted == {"id": id, "object": "response", "deleted": True}
            await ask("GET", f"responses/{id}", status=404)
        await ask("DELETE", "responses/resp_nothing.5", status=404)
        assert (await ask.items())[0]["content"][0]["text"] == "done"
        files = [*(tmp_path / "responses").iterdir()]
        assert files == []
        assert (await ask("GET", "models/scripted"))["object"] == "model"
        await ask("GET", "models/other", status=404)


# ---- outputs


@pytest.mark.parametrize("place", ["conversation", "previous", "whole"])
@pytest.mark.parametrize("is_first", [False, True])
async def test_a_message_beside_outputs_follows_the_results_in_the_same_turn(
    is_first: bool, place: str, autojump_clock: MockClock
) -> None:
    model = Script([CALL], ["done"])
    async with inside(model) as gateway:
        ask = Client(gateway)
        named = {"conversation": "c"} if place == "conversation" else {}
        one = await ask.ask(input="please look up", tools=[FUNCTION], **named)
        call = one["output"][-1]
        new = [output(call["call_id"]), said("and say BANANA")]
        new = new[::-1] if is_first else new
        more = {
            "conversation": {"conversation": "c", "input": new},
            "previous": {"previous_response_id": one["id"], "input": new},
            "whole": {"input": [said("please look up"), call, *new]},
        }[place]
        two = await ask.ask(tools=[FUNCTION], instructions="be brief", **more)
        assert two["status"] == "completed"
        assert texts(model.prompts[-1]) == [
            ("system", "be brief"), ("user", "please look up"), ("assistant", ""), ("tool", "42"),
            ("user", "and say BANANA"),
        ]  # fmt: skip
        kinds = [item["type"] for item in await ask.items(one["id"][5:].partition(".")[0])]
        assert kinds == ["message", "function_call", "function_call_output", "message", "message"]
        assert len(model.prompts) == 2


@pytest.mark.parametrize("place", ["conversation", "previous_response_id"])
async def test_another_question_than_the_outputs_is_refused_at_once(
    place: str, autojump_clock: MockClock
) -> None:
    model = Script([CALL], ["done"])
    async with inside(model, "--gate-timeout", "60") as gateway:
        ask = Client(gateway)
        one = await ask.ask(input="look up", tools=[FUNCTION], conversation="c")
        call = one["output"][-1]["call_id"]
        where = {place: "c" if place == "conversation" else one["id"]}
        refused = await ask.ask(400, input="forget it", **where)
        text = f"No tool output found for function call {call}."
        assert refused["error"]["message"] == text
        whole = [said("look up"), one["output"][-1], said("forget it")]
        assert (await ask.ask(400, input=whole))["error"]["message"] == text
        assert trio.current_time() < 1
        other = await ask.ask(input="hello")
        assert other["status"] == "completed"
        # a mode that stops the turn is a way out
        stopped = await ask.ask(input="hello", **where, metadata={"when_busy": "interrupt"})
        assert stopped["status"] == "completed"
        shown = [("user", "look up"), ("assistant", ""), ("tool", "cancelled"), ("user", "hello")]
        assert texts(model.prompts[-1]) == shown
        assert trio.current_time() < 1


@pytest.mark.parametrize("place", ["conversation", "previous_response_id"])
async def test_late_outputs_are_refused_and_questions_go_on_from_the_calls(
    place: str, autojump_clock: MockClock
) -> None:
    model = Script([CALL], ["done"])
    async with inside(model, "--gate-timeout", "60") as gateway:
        ask = Client(gateway)
        one = await ask.ask(input="look up", tools=[FUNCTION], conversation="c")
        call = one["output"][-1]["call_id"]
        await trio.sleep(70)
        where = {place: "c" if place == "conversation" else one["id"]}
        refused = await ask.ask(400, input=[output(call)], tools=[FUNCTION], **where)
        text = f"No tool call found for function call output with call_id {call}."
        assert refused["error"]["message"] == text
        assert len(model.prompts) == 1
        after = await ask.ask(input="hello", **where)
        assert after["status"] == "completed", after
        shown = [("user", "look up"), ("assistant", ""), ("tool", "skipped"), ("user", "hello")]
        assert texts(model.prompts[-1]) == shown


async def test_a_call_that_a_client_wrote_takes_one_output(autojump_clock: MockClock) -> None:
    async with inside(Script(["done"])) as gateway:
        ask = Client(gateway)
        call = {"type": "function_call", "call_id": "k", "name": "f", "arguments": "{}"}
        await ask("POST", "conversations/c/items", {"items": [said("x"), call]})
        await ask.ask(input=[output("k")], conversation="c")
        await ask.ask(400, input=[output("k")], conversation="c")


async def test_outputs_whose_turn_died_with_its_process_fail(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    jobs = MemoryStore()
    async with inside(Script([CALL], ["on", 1e6]), durable=tmp_path, jobs=jobs) as gateway:
        ask = Client(gateway)
        one = await ask.ask(input="look up", tools=[FUNCTION], conversation="c")
        outputs = [output(one["output"][-1]["call_id"])]
        two = await ask.ask(input=outputs, conversation="c", background=True)
        await trio.sleep(1)
    model = Script(["never"])
    async with inside(model, durable=tmp_path, jobs=jobs) as gateway:
        await trio.sleep(1)
        ended = await Client(gateway)("GET", f"responses/{two['id']}")
        assert ended["status"] == "failed"
    assert model.prompts == []


async def test_an_output_for_a_call_that_a_client_wrote_is_asked_again_after_a_restart(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    jobs = MemoryStore()
    call = {"type": "function_call", "call_id": "k", "name": "f", "arguments": "{}"}
    async with inside(Script(["on", 1e6]), durable=tmp_path, jobs=jobs) as gateway:
        ask = Client(gateway)
        await ask("POST", "conversations/c/items", {"items": [said("x"), call]})
        one = await ask.ask(input=[output("k")], conversation="c", background=True)
        await trio.sleep(1)
    async with inside(Script(["done"]), durable=tmp_path, jobs=jobs) as gateway:
        await trio.sleep(1)
        ended = await Client(gateway)("GET", f"responses/{one['id']}")
        assert ended["status"] == "completed", ended


# ---- threads


async def test_a_posted_message_is_listed_at_once_and_kept_when_its_run_is_cancelled(
    autojump_clock: MockClock,
) -> None:
    model = Script(["busy", 50.0], ["yes"])
    async with inside(model) as gateway:
        ask = Client(gateway)
        await ask("POST", "threads/busy/messages", said("first"))
        busy = await ask("POST", "threads/busy/runs", {})
        await trio.sleep(1)
        await ask("POST", "threads/busy/messages", said("second"))
        thread = (await ask("POST", "threads", {}))["id"]
        posted = await ask("POST", f"threads/{thread}/messages", said("precious"))
        assert await ask.told(thread) == ["precious"]
        run = await ask("POST", f"threads/{thread}/runs", {})
        await ask("POST", f"threads/{thread}/runs", {}, 400)  # that run asks it
        await ask("POST", f"threads/{thread}/runs/{run['id']}/cancel")
        assert await ask.ended(thread, run) == "cancelled"
        assert await ask.told(thread) == ["precious"]
        await ask("POST", f"threads/{thread}/messages", said("another"))
        run = await ask("POST", f"threads/{thread}/runs", {})
        assert await ask.ended(thread, run) == "completed"
        assert texts(model.prompts[-1]) == [("user", "precious"), ("user", "another")]
        assert await ask.told(thread) == ["precious", "another", "yes"]
        listed = (await ask("GET", f"threads/{thread}/messages?order=asc"))["data"]
        assert listed[0]["id"] == posted["id"]
        assert await ask.ended("busy", busy) == "completed"
        assert await ask.told("busy") == ["first", "busy", "second"]
        await ask("POST", f"threads/{thread}/runs", {}, 400)
        await ask("POST", f"threads/{thread}/messages", {"role": "robot", "content": "x"}, 400)


async def test_the_messages_of_a_run_without_an_answer_are_asked_by_the_next(
    autojump_clock: MockClock,
) -> None:
    model = Script([5.0, "late"], ["yes"])
    async with inside(model) as gateway:
        ask = Client(gateway)
        await ask("POST", "threads/t/messages", said("hello"))
        run = await ask("POST", "threads/t/runs", {})
        await trio.sleep(1)
        await ask("POST", f"threads/t/runs/{run['id']}/cancel")
        assert await ask.ended("t", run) == "cancelled"
        run = await ask("POST", "threads/t/runs", {})
        assert await ask.ended("t", run) == "completed"
        assert texts(model.prompts[-1]) == [("user", "hello")]
        assert await ask.told("t") == ["hello", "yes"]


class Tough(Script):
    """A model whose call takes a second to end when it is cancelled."""

    async def _events(self, answer: Any) -> AsyncIterator[Any]:
        try:
            async for event in super()._events(answer):
                yield event
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)


async def test_a_run_whose_cancellation_was_answered_is_not_run_again_after_a_kill(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    key, model = {"idempotency-key": "once"}, Tough(["one ", 50.0, "two"])
    async with inside(model, durable=tmp_path / "a") as gateway:
        ask = Client(gateway)
        await ask("POST", "threads/t/messages", said("hello"))
        run = (await gateway.request("POST", "/v1/threads/t/runs", {}, key)).body
        await trio.sleep(1)
        await ask("POST", f"threads/t/runs/{run['id']}/cancel")
        copytree(tmp_path / "a", tmp_path / "b")  # what a kill leaves now
    async with inside(model, durable=tmp_path / "b") as gateway:
        again = (await gateway.request("POST", "/v1/threads/t/runs", {}, key)).body
        assert (again["id"], again["status"]) == (run["id"], "cancelled")
    assert len(model.prompts) == 1


async def test_a_run_of_a_thread_goes_on_after_a_restart_and_is_found_later(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    jobs = MemoryStore()
    async with inside(Script(["half ", 1e6]), durable=tmp_path, jobs=jobs) as gateway:
        ask = Client(gateway)
        await ask("POST", "threads/t/messages", said("hello"))
        run = await ask("POST", "threads/t/runs", {})
        await trio.sleep(1)
    model = Script(["whole", 5.0])
    async with inside(model, durable=tmp_path, jobs=jobs) as gateway:
        ask = Client(gateway)
        await ask("POST", "threads/t/runs", {}, 400)  # that run asks the message
        assert await ask.ended("t", run) == "completed"
        assert await ask.told("t") == ["hello", "whole"]
    async with inside(Script(), durable=tmp_path, jobs=jobs) as gateway:
        assert (await Client(gateway)("GET", f"threads/t/runs/{run['id']}"))[
            "status"
        ] == "completed"
    assert len(model.prompts) == 1


async def test_outputs_that_a_model_cannot_read_are_refused_and_the_run_waits_on(
    autojump_clock: MockClock,
) -> None:
    tools = [{"type": "function", "function": {"name": "lookup"}}]
    async with inside(Script([CALL], ["done"])) as gateway:
        ask = Client(gateway)
        await ask("POST", "threads/t/messages", said("hello"))
        run = await ask("POST", "threads/t/runs", {"tools": tools})
        assert await ask.ended("t", run) == "requires_action"
        path = f"threads/t/runs/{run['id']}"
        run = await ask("GET", path)
        (call,) = run["required_action"]["submit_tool_outputs"]["tool_calls"]
        for output in (42, {"a": 1}, [{"type": "image_file"}]):
            outputs = {"tool_outputs": [{"tool_call_id": call["id"], "output": output}]}
            await ask("POST", f"{path}/submit_tool_outputs", outputs, 400)
        outputs = {"tool_outputs": [{"tool_call_id": call["id"], "output": "42"}]}
        assert await ask.ended("t", await ask("POST", f"{path}/submit_tool_outputs", outputs)) == (
            "completed"
        )
        await ask("POST", f"{path}/submit_tool_outputs", outputs, 400)
        for unknown in ("run_nothing.5", "run_.5", "nothing", f"{run['id']}_1"):
            await ask("GET", f"threads/t/runs/{unknown}", status=404)


async def test_threads_that_are_left_stand_in_no_way(autojump_clock: MockClock) -> None:
    async with inside(Script(["yes"])) as gateway:
        ask = Client(gateway)
        for _ in range(1_010):
            thread = (await ask("POST", "threads", {"messages": [said("left")]}))["id"]
        run = await ask("POST", f"threads/{thread}/runs", {})
        assert await ask.ended(thread, run) == "completed"
